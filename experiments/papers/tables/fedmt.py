"""FedMT: Zhang et al., Federated learning with mixed-type labels, arXiv:2210.02042, version 4.

Our text of the paper ends before its experiments: tables without numbers are what its sections
name, with SemiFL's settings. The curves are those that the authors published.
"""

from experiments.papers import Table, without_unlabelled
from experiments.papers.claims import Claim, above

SOURCE = "arXiv:2210.02042, "
COARSE_GONE = {"supervision.server_labels": None, "supervision.correspondence": None}
AT_SERVER = {**COARSE_GONE, "supervision.name": "server"}
SECOND_HEAD = {"model.aux_head": True}
STAGES = {"method.coarse_rounds": 400, "optimizer.schedule_rounds": 400, **SECOND_HEAD}
SMALL_STAGES = {"small": {"method.coarse_rounds": 15, "optimizer.schedule_rounds": 15}}
ALL_EXAMPLES = {"method.projection_examples": "all"}
SYSTEMS = {
    "server alone": {"method.name": "single", **AT_SERVER},
    "SemiFL": {"method.name": "semifl", **AT_SERVER},
    "FedTrans": {"method.name": "fedtrans", **STAGES, **SMALL_STAGES},
    "FedTrans, head alone": {
        "method.name": "fedtrans",
        "method.finetune": "head",
        **STAGES,
        **SMALL_STAGES,
    },
    "FedRep": {
        "method.name": "fedrep",
        **SECOND_HEAD,
        "small": {"method.head_epochs": 5},
    },
    "FedMT(T)": {},
    "FedMT(T), all examples": {**ALL_EXAMPLES, "method.gate": "none"},
    "FedMT(E)": {"method.correspondence": "estimated"},
    "FedMT(E), all examples": {"method.correspondence": "estimated", **ALL_EXAMPLES},
    "FedAvg, all class labels": {"method.name": "fedavg", **COARSE_GONE, "supervision.name": "all"},
}
# FedMT without losses on pseudo-labels, with that on coarse labels. SemiFL without its own is the
# server alone, the labelled-only baseline.
NO_LOSS = {"method.fix_weight": 0.0, "method.mix_weight": 0.0}
CONTROLS = {
    without_unlabelled(row): {**SYSTEMS[row], **NO_LOSS} for row in ("FedMT(T)", "FedMT(E)")
}
SYSTEMS |= CONTROLS
NO_SERVER = ("FedRep", "FedAvg, all class labels")  # without epochs at the server
SPLITS = {"iid": "iid", "Dirichlet 0.3": "0.3", "Dirichlet 0.1": "0.1"}
# Two cores: MNIST's digits by the shape of their strokes.
SMALL = {
    "seeds": 3,
    "other": "MNIST's digits by the shape of their strokes in place of CIFAR-100's superclasses",
    "rounds": 30,
    "eval_every": 5,
    "data.name": "mnist",
    "data.pools": (1000, 0, 500),
    "partition.name": "iid",
    "partition.num_clients": 20,
    "partition.alpha": None,
    "partition.min_examples": None,
    "partition.skip_full": None,
    "augment.name": "none",
    "augment.pixels": None,
    "strong_augment.name": "none",
    "model.name": "mlp",
    "optimizer.learning_rate": 0.1,
    "optimizer.local_epochs": 2,
}
REDUCED = (
    "10,000 of MNIST's images at 20 clients, which say whether a digit is curved, straight or "
    "both, and 50 digits at the server; one hidden layer; 30 rounds instead of 800"
)
DIFFERS = (
    "the paper's tables are not in our text: SemiFL's settings, 100 clients with ten in a round, "
    "WRN-28-2, and our numbers of labels",
    "baselines with two label spaces are our definitions (docs/methods/fedmt.md)",
)


CONFIDENT = "an epoch goes through the examples of which a method is confident, as in the papers"


def small(title: str) -> dict:
    """Settings of two cores, with the title of a table there."""
    there = title.replace("CIFAR-100 with 20 superclasses", "MNIST with three shapes of strokes")
    return {
        **SMALL,
        "name": there.replace("CIFAR-100", "MNIST").replace("2,000 labels", "50 labels"),
    }


def cell(row: str, labels: int, split: str = "iid") -> dict:
    """Settings of a system at a number of labels and a split."""
    settings = {**SYSTEMS[row], "config": f"cifar100_fedmt:{labels},known,{split}"}
    own = dict(settings.pop("small", {}))
    if row not in NO_SERVER:
        own |= {"method.server_epochs": 10, "method.server_batch_size": 10}
    elif row == "FedRep":
        own |= {"method.server_batch_size": 10}
    if settings.get("supervision.name") == "server":
        settings["supervision.labels"] = labels
        own["supervision.labels"] = 50
    elif "supervision.server_labels" not in settings:
        own |= {"supervision.server_labels": 50, "supervision.correspondence": "shape"}
    return {**settings, "small": own}


def systems(
    name: str, title: str, columns: dict, rows: tuple = tuple(SYSTEMS), **fields: object
) -> Table:
    """A table of systems; columns: labels at the server, split, and further words of a column."""
    usual = {"source": SOURCE + "section 4", "differs": DIFFERS, "steps": CONFIDENT}
    usual["cells"] = {
        (row, column): cell(row, labels, split)
        for row in rows
        for column, (labels, split, _) in columns.items()
    }
    return Table(
        name=name,
        title=title,
        config="cifar100_fedmt",
        rows={row: {} for row in rows},
        columns={column: words for column, (_, _, words) in columns.items()},
        seeds=3,
        small=small(title),
        reduced=REDUCED,
        **usual | fields,
    )


def curve(row: str, number: int) -> dict:
    """A point of a curve; at the small scale, of a twenty-fifth of the rounds."""
    settings = cell(row.replace("FedMT", "FedMT(T)"), 2_000)
    return settings | {"small": {**settings["small"], "value": ("round", number // 25)}}


# Column -> settings of the clients with coarse labels, and at the small scale.
SPACES = {
    "20 superclasses": ({}, {}, "three shapes"),
    "20 superclasses or 100 classes, by client": (
        {"supervision.correspondence": "superclass,identity"},
        {"supervision.correspondence": "shape,parity"},
        "three shapes or parity, by client",
    ),
    "20 superclasses, a fifth of the labels any of them": (
        {"supervision.overlap": 0.2},
        {},
        "shapes, a fifth any",
    ),
}


def space(row: str, column: str) -> dict:
    """Settings of a system in label spaces."""
    settings = cell(row, 2_000)
    (large, small, _) = SPACES[column]
    if settings.get("supervision.name") == "server":
        return settings
    return {**settings, **large, "small": {**settings["small"], **small}}


ROUNDS = (50, 100, 200, 300, 400, 500, 600, 700, 800)
MATRIX = {
    "test accuracy": {},
    "coarse accuracy": {"metric": "test_coarse_accuracy"},
    "pseudo-labels right": {"metric": "pseudo_label_accuracy"},
    "confident examples": {"metric": "pseudo_label_coverage"},
    "largest error of the matrix": {"metric": "correspondence_error"},
}
WEIGHTS = (
    "Weights of FedMT(T)'s losses: test accuracy on CIFAR-100 with 20 superclasses, 2,000 "
    "labels, in %"
)
FEDMT = tuple(row for row in SYSTEMS if row.startswith("FedMT") and row not in CONTROLS)
SPACED = ("server alone", "SemiFL", "FedRep", *FEDMT, *CONTROLS)
CURVES = ("FedMT", "SemiFL", without_unlabelled("FedMT"), "server alone")

TABLES = (
    systems(
        "fedmt-systems",
        "Test accuracy on CIFAR-100 with 20 superclasses at the clients, iid, in %",
        {
            "2,000 labels": (2_000, "iid", {"small": {"name": "50 labels"}}),
            "1,000 labels": (1_000, "iid", {}),
        },
        small_cells={"columns": ["2,000 labels"]},
    ),
    systems(
        "fedmt-splits",
        "Test accuracy on CIFAR-100 with 20 superclasses at the clients, 2,000 labels, in %",
        {name: (2_000, split, {}) for name, split in SPLITS.items()},
        small_cells={"columns": ["iid"]},
    ),
    systems(
        "fedmt-matrix",
        "Known and estimated correspondence on CIFAR-100 with 20 superclasses, 2,000 labels, in %",
        {name: (2_000, "iid", words) for name, words in MATRIX.items()},
        FEDMT,
    ),
    systems(
        "fedmt-spaces",
        "Label spaces that differ between clients: test accuracy on CIFAR-100, 2,000 labels, in %",
        {column: (2_000, "iid", {"small": {"name": words[2]}}) for column, words in SPACES.items()},
        SPACED,
        cells={(row, column): space(row, column) for row in SPACED for column in SPACES},
        source=SOURCE + "section 3, a matrix per client",
        differs=("which spaces the clients have is ours", *DIFFERS),
    ),
    Table(
        name="fedmt-weights",
        title=WEIGHTS,
        source=SOURCE + "section 3.4",
        config="cifar100_fedmt:2000,known,iid",
        rows={
            "projection": {},
            "fix": {},
            "mix": {},
        },
        columns={f"{weight:g}": {} for weight in (0, 0.1, 1, 10)},
        cells={
            (kind, f"{weight:g}"): {f"method.{kind}_weight": float(weight)}
            for kind in ("projection", "fix", "mix")
            for weight in (0, 0.1, 1, 10)
        },
        small={
            **small(WEIGHTS),
            "seeds": 2,
            "supervision.server_labels": 50,
            "supervision.correspondence": "shape",
            "method.server_epochs": 10,
            "method.server_batch_size": 10,
        },
        reduced=REDUCED,
        differs=DIFFERS[:1],
        x="weight",
    ),
    Table(
        name="fedmt-curves",
        title="Test accuracy over the rounds, CIFAR-100, in %",
        source=(
            "the authors' published figures (SarahQiong/FedMT-ICML2024-rebuttal), read off to "
            "one point"
        ),
        config="cifar100_fedmt",
        settings={"eval_every": 50},
        rows={row: {} for row in CURVES},
        columns={
            f"{one}": {"value": ("round", one), "small": {"name": f"{one // 25}"}} for one in ROUNDS
        },
        cells={(row, f"{number}"): curve(row, number) for row in CURVES for number in ROUNDS},
        paper={
            "FedMT": ("50.5", "52.7", "54.0", "55.0", "56.1", "57.1", "62.3", "68.8", "69.8"),
            "SemiFL": ("14.0", "15.9", "20.0", "23.9", "27.3", "32.1", "33.8", "33.6", "33.7"),
        },
        small={
            **small("Test accuracy over the rounds, CIFAR-100, in %"),
            "rounds": 32,
            "eval_every": 2,
        },
        steps=CONFIDENT,
        reduced=f"rounds by 25: 32 instead of 800; {REDUCED}",
        differs=("one run; labels, split and FedMT(T) or FedMT(E) are not stated", *DIFFERS[:1]),
        x="round",
    ),
)

WEAKER = ("server alone", "SemiFL", "FedTrans", "FedTrans, head alone", "FedRep")
FEW = ("2,000 labels",)

# The claims are about coarse labels. Without them, and what follows from them, FedMT is the server
# alone.
SETTING = "MNIST with coarse labels for the shape of a digit's strokes"

CLAIMS = (
    Claim(
        paper="FedMT",
        text="with the known matrix ahead of transfer, SemiFL and the server alone",
        source="section 4",
        pairs=above("fedmt-systems", "FedMT(T)", WEAKER, FEW),
        baseline="server alone",
        setting=SETTING,
    ),
    Claim(
        paper="FedMT",
        text="with the estimated matrix ahead of transfer, SemiFL and the server alone",
        source="section 4",
        pairs=above("fedmt-systems", "FedMT(E)", WEAKER, FEW),
        baseline="server alone",
        setting=SETTING,
    ),
    Claim(
        paper="FedMT",
        text="the estimated matrix is nearly as good as the known one",
        source="section 4",
        pairs=above("fedmt-systems", "FedMT(E)", ("FedMT(T)",), FEW, level=3),
        setting=SETTING,
    ),
)
