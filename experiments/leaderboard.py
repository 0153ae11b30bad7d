"""A leaderboard that others can check: all methods of a table on the same splits and rounds.

    python experiments/leaderboard.py --run digits                       # a table, stored
    python experiments/leaderboard.py --run digits --rows fixmatch sage  # rows of it
    python experiments/leaderboard.py --run heart --data FOLDER          # whose data are elsewhere
    python experiments/leaderboard.py --run mnist --data mnist.npz

A row is one `fedjax-ssl sweep` with five seeds; a row that was run before goes on from its folder.
Results are kept in experiments/leaderboard/TABLE.json, with the commands of their rows, and
results_page.py writes the tables of docs/results.md from them. To add a method, add it to its
tables in `TABLES` and run its rows.
"""

import argparse
import itertools
import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

from fedjax_ssl.folder.environment import device_description, git_commit, versions
from fedjax_ssl.folder.files import encode_json, write_atomically
from fedjax_ssl.folder.stored_run import StoredRun, find_runs, read_run
from fedjax_ssl.report.exports import markdown_table
from fedjax_ssl.report.numbers import Cell, around_text, compare

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "experiments" / "leaderboard"
RUNS = Path("runs/leaderboard")
SAME_STEPS = 0.5  # a step's half: what rounding makes of a mean over clients of unequal size
TITLES = (
    "method",
    "accuracy, %",
    "over labels alone",
    "worst client, %",
    "local steps",
    "MB",
)
Settings = Mapping[str, Any]
# Methods whose rounds are counted otherwise than by `optimizer.local_steps`.
OWN_STEPS = {
    "fedrgd": "method.local_steps",
    "fedmatch": "optimizer.local_epochs",  # passes over its labels, which are one batch
    "protofssl": "optimizer.local_epochs",  # episodes
}
BY_EPOCH = ("single", "semifl", "fl2")  # the clients' epoch is over confident examples, if at all


class Row(NamedTuple):
    """A method in a table."""

    method: str  # the config's name for it
    settings: Mapping[str, Any] = {}  # beside those of the table


class Table(NamedTuple):
    """A federation and the methods that fit it."""

    title: str
    text: str  # what a reader has to know
    config: str  # NAME:{method},PLACE
    settings: Settings  # of all rows
    steps: int  # local steps of a client in a round
    rows: Mapping[str, Row]
    place: str = ""  # what stands for the user's --data in commands
    seeds: int = 5
    alone: str = "fedavg"  # the row that learns from labels alone
    pairs: Sequence[tuple[str, str]] = ()  # rows whose differences by seed are written
    uneven: str = ""  # why some rows have other local steps
    counted: float | None = None  # what the column shows then, with the server's; None: `steps`


LABELS_FROM = {"method.labels_from": "global"}
FREEMATCH = {**LABELS_FROM, "method.threshold_rule": "freematch"}
CONSISTENCY = {
    "fixmatch": Row("fixmatch"),
    "fixmatch, labels of the received model": Row("fixmatch", LABELS_FROM),
    "freematch, labels of the received model": Row("fixmatch", FREEMATCH),
    "freematch, labels of the received model, decay 0.99": Row(
        "fixmatch", {**FREEMATCH, "method.threshold_decay": 0.99}
    ),
    **{
        name: Row(name)
        for name in ("uda", "mixmatch", "mean_teacher", "pi_model", "vat", "pseudo_label")
    },
}
LABELS_ONLY = {"fedavg": Row("fedavg"), "alone": Row("alone"), "pooled": Row("pooled")}
GRAPHS = {
    name: Row(name) for name in ("xclp", "per_client_lp", "network_pseudo_label", "fedsem", "mixed")
}
AT_CLIENTS = {
    **LABELS_ONLY,
    **CONSISTENCY,
    **GRAPHS,
    **{name: Row(name) for name in ("sage", "proxyfl", "fedmatch", "protofssl", "fedrgd")},
}
# FedMatch's epoch without labels is six batches of twenty.
AT_SERVER = {
    name: Row(name)
    for name in ("single", "semifl", "fl2", "fixmatch", "uda", "mean_teacher", "fedrgd")
} | {"fedmatch": Row("fedmatch", {"optimizer.local_epochs": 2})}
# SAGE's federation on a tenth of the images and an eighth of the network's width, for one core; of
# the rates 0.01, 0.03 and 0.1 the one at which labels alone learn most in twelve rounds (seed 0).
CIFAR = {
    "rounds": 15,
    "eval_every": 5,
    "data.pools": "(500,0,200)",
    "partition.labels_per_class": 50,
    "model.widen": 1,
    "model.width_factor": 0.5,
    "optimizer.batch_size": 8,
    "optimizer.learning_rate": 0.03,
}
CIFAR_TEXT = (
    "SAGE's federation on a tenth of the images: 20 clients with 25 labelled of 250 images each, 8 "
    "in each of 15 rounds; 2,000 images are the test. ResNet-8 of an eighth of the width, batches "
    "of 8 labelled and 16 of all images; of the rates 0.01, 0.03 and 0.1 the one with the best test "
    "accuracy of labels alone (Dirichlet 0.1, seed 0). Images of CIFAR-10 that went through JPEG. "
    "Two seeds, which tell no two methods apart, on one core."
)
OF_SAGE = {"method.unlabelled_ratio": 2, "method.labelled_too": True}
SAGES = {
    "fedavg": Row("fedavg"),
    "fixmatch": Row("fixmatch", OF_SAGE),
    "fixmatch, labels of the received model": Row("fixmatch", {**OF_SAGE, **LABELS_FROM}),
    "sage": Row("sage"),
    "proxyfl": Row("proxyfl"),
}
SERVER_STEPS = (
    "`single` trains at the server alone; SemiFL's and (FL)^2's clients take an epoch over what is "
    "confident; FedMatch's server takes 5 steps a round, FedRGD's 24."
)
PLAIN_SGD = {"optimizer.momentum": 0.0}
TABLES = {
    "digits": Table(
        "Digits, 5 labels at each writer",
        "The digits of the package: 11 writers train with 5 labels of about 125 examples each, 10 "
        "of them in a round, 3 writers that were never seen are the test. A network of one hidden "
        "layer, 80 rounds. Client accuracy is that of a test writer.",
        "digits:{method},per_client",
        {"rounds": 80, "eval_every": 20, "optimizer.batch_size": 10},
        12,
        AT_CLIENTS,
        pairs=(
            ("freematch, labels of the received model, decay 0.99", "fixmatch"),
            ("freematch, labels of the received model", "fixmatch"),
            ("fixmatch, labels of the received model", "fixmatch"),
            ("proxyfl", "sage"),
        ),
    ),
    "digits-server": Table(
        "Digits, 50 labels at the server",
        "The same writers without any label, and 50 labelled examples at the server, taken from "
        "the writers that train. 80 rounds. Local steps count those of the server with the "
        "clients': 12 at each of ten clients and 50 at the server are 17.",
        "digits:{method},server",
        {"rounds": 80, "eval_every": 20, "optimizer.batch_size": 10},
        12,
        AT_SERVER,
        alone="single",
        uneven=SERVER_STEPS,
        counted=17,
    ),
    "heart": Table(
        "Fed-Heart-Disease, 10 labels at each hospital",
        "FLamby's four hospitals with 386 patients who train and 254 who are tested, 13 numbers "
        "each; softmax regression, all hospitals in each of 60 rounds. Client accuracy is that of "
        "a hospital. Methods that augment images do not fit.",
        "fed_heart_disease:{method},10",
        {"rounds": 60, "eval_every": 20},
        12,
        {
            **LABELS_ONLY,
            **GRAPHS,
            **{name: Row(name) for name in ("pseudo_label", "vat", "mean_teacher", "protofssl")},
        },
        "FOLDER",
    ),
    "mnist": Table(
        "MNIST, 10 labels at each client",
        "60,000 images dealt iid to 100 clients, 10 labels at each, 10 clients in each of 20 "
        "rounds; a network of one hidden layer of 100. `sage` and `proxyfl` are without the "
        "momentum of their config, with which this network hardly learns (57.9 ± 5.9 and "
        "47.8 ± 4.4 %). Momentum was left out after these test accuracies.",
        "mnist:{method},per_client",
        {"rounds": 20, "eval_every": 10, "optimizer.batch_size": 10, "model.hidden": "(100,)"},
        20,
        AT_CLIENTS | {name: Row(name, PLAIN_SGD) for name in ("sage", "proxyfl")},
        "mnist.npz",
        pairs=(
            ("freematch, labels of the received model, decay 0.99", "fixmatch"),
            ("fixmatch, labels of the received model", "fixmatch"),
            ("proxyfl", "sage"),
        ),
    ),
    **{
        f"cifar10-{alpha}": Table(
            f"CIFAR-10, 10 % labels at the clients, Dirichlet {alpha}",
            CIFAR_TEXT,
            f"cifar10_proxyfl:{alpha}",
            CIFAR,
            20,
            SAGES,
            "cifar10.npz",
            seeds=2,
            pairs=tuple(itertools.pairwise(reversed(SAGES))),
        )
        for alpha in ("0.1", "1")
    },
}


def command(name: str, row: str, data: str | None) -> list[str]:
    """The sweep of a row, without the program."""
    table = TABLES[name]
    method, own = table.rows[row]
    settings = {**table.settings, **steps(table, method), **own}
    config = table.config.format(method=method)
    if config == table.config:
        settings = {"method.name": method, **settings}
    if data:
        settings |= {"data.path": data}
    if data and table.place.endswith(".npz"):
        settings |= {"data.name": "npz"}
    words = ["sweep", config, "--seeds", str(table.seeds)]
    words += [f"--{field}={value}" for field, value in settings.items()]
    return [*words, "--workdir", str(RUNS / name / row.replace(" ", "_").replace(",", ""))]


def steps(table: Table, method: str) -> Settings:
    """Settings with which a client takes the local steps of its table in a round."""
    if method in BY_EPOCH:
        return {"optimizer.local_epochs": 1}
    if method in OWN_STEPS:
        return {OWN_STEPS[method]: table.steps}
    return {"optimizer.local_epochs": 1, "optimizer.local_steps": table.steps}


def run(name: str, row: str, data: str | None) -> None:
    """Runs a row and stores what came out."""
    words = command(name, row, data)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    program = [sys.executable, "-m", "fedjax_ssl.cli", *words, "--workers", "1", "--quiet"]
    done = subprocess.run(program, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    stored = load(name)
    if done.returncode:
        print(f"{name}, {row}: did not run")
        return
    found = numbers(map(read_run, find_runs([words[-1]])))
    if earlier := stored.get(row):
        seconds = max(seconds, earlier["processor_seconds"])  # a finished row runs no more
    stored[row] = found | {
        "command": shlex.join(["fedjax-ssl", *command(name, row, TABLES[name].place)]),
        "processor_seconds": round(seconds, 1),
        "device": device_description(),
        "commit": git_commit(),
        "versions": versions(("jax",)),
    }
    STORED.mkdir(exist_ok=True)
    write_atomically(path_of(name), encode_json(stored, indent=1) + "\n")
    print(
        f"{name}, {row}: {around_text(mean_of(found['accuracy']), '%')} % ({seconds:.0f} s)",
        flush=True,
    )


def numbers(runs: Any) -> dict[str, Any]:
    """What finished runs of a row say, by seed."""
    ordered = sorted((one for one in runs if one.finished), key=lambda one: one.config["seed"])
    return {
        "seeds": [one.config["seed"] for one in ordered],
        "accuracy": [one.rows[-1]["test_accuracy"] for one in ordered],
        "worst_client": [worst(one) for one in ordered],
        "rounds": ordered[0].summary["rounds"] if ordered[0].summary else None,
        "bytes": float(
            np.mean([total(one, "bytes_up") + total(one, "bytes_down") for one in ordered])
        ),
        "steps": float(np.mean([total(one, "local_steps") for one in ordered])),
        "clients": float(np.mean([total(one, "clients") for one in ordered])),
        "splits": [(one.summary or {})["split"] for one in ordered],
        "dropped": sum(total(one, "dropped_clients") for one in ordered),
        "diverged": sum("diverged" in (one.summary or {}) for one in ordered),
    }


def worst(one: StoredRun) -> float | None:
    """Accuracy of the client on whose test examples the model is worst; None without such."""
    found = list(one.clients.get("model", {}).values())
    return min(found) if found else None


def total(one: StoredRun, column: str) -> float:
    """Sum over all rounds of a run."""
    return float(sum(row.get(column) or 0 for row in one.rows))


def path_of(name: str) -> Path:
    """Where a table's results are."""
    return STORED / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    """The stored rows of a table; none: an empty dictionary."""
    path = path_of(name)
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def sections() -> list[str]:
    """The sections of all tables, from the stored results."""
    return [section(name, load(name)) for name in TABLES]


def section(name: str, stored: Mapping[str, Any]) -> str:
    """A table with its federation, what it shows, where it was measured and its command."""
    table = TABLES[name]
    ranked = sorted(stored, key=lambda row: -float(np.mean(stored[row]["accuracy"])))
    usual = stored[table.alone if table.alone in stored else ranked[0]]["splits"]
    data = f" --data {table.place}" if table.place else ""
    parts = [
        f"### {table.title}",
        table.text,
        markdown_table(TITLES, [line(table, row, stored, usual) for row in ranked]),
        " ".join(shown(table, ranked, stored)),
        notes(table, ranked, stored, usual),
        f"    python experiments/leaderboard.py --run {name}{data}",
    ]
    return "\n\n".join(parts)


def shown(table: Table, ranked: Sequence[str], stored: Mapping[str, Any]) -> list[str]:
    """Sentences: who is ahead of labels alone, whom the seeds cannot tell from the best."""
    said = []
    against = verdicts(ranked, table.alone, stored)
    for words, verdict in (
        ("By more than chance ahead of labels alone", "ahead"),
        ("By more than chance behind", "behind"),
        (f"{counted_seeds(stored[ranked[0]])} cannot tell from labels alone", "unknown"),
    ):
        if rows := [row for row, found in against.items() if found == verdict]:
            said.append(f"{words}: {'; '.join(rows)}.")
    best, *others = [row for row in ranked if stored[row]["splits"] == stored[ranked[0]]["splits"]]
    alike = [row for row, found in verdicts(others, best, stored).items() if found == "unknown"]
    if alike:
        said.append(f"Not distinguishable from the best, {best}: {'; '.join(alike)}.")
    elif others:
        said.append(f"The best, {best}, is ahead of every other by more than chance.")
    pairs = [
        f"{first} over {second} {around_text(difference(stored, first, second), '%', sign=True)}"
        for first, second in table.pairs
        if {first, second} <= stored.keys()
    ]
    if pairs:
        said.append(f"Differences by seed: {'; '.join(pairs)}.")
    return said


def counted_seeds(stored: Mapping[str, Any]) -> str:
    """The number of seeds of a row, at the start of a sentence."""
    number = len(stored["seeds"])
    return {2: "Two seeds", 5: "Five seeds"}.get(number, f"{number} seeds")


def mean_of(shares: Sequence[float]) -> Cell:
    """Mean and interval of one share per seed."""
    return compare(pandas.Series(shares))


def difference(stored: Mapping[str, Any], first: str, second: str) -> Cell:
    """Differences of accuracy by seed, as shares."""
    both = zip(stored[first]["accuracy"], stored[second]["accuracy"], strict=True)
    return mean_of([one - other for one, other in both])


def verdicts(rows: Sequence[str], other: str, stored: Mapping[str, Any]) -> dict[str, str]:
    """Row -> "ahead" of another on the same splits, "behind" it or "unknown"."""
    found = {}
    for row in rows:
        if row == other or other not in stored or stored[row]["splits"] != stored[other]["splits"]:
            continue
        apart = difference(stored, row, other)
        found[row] = "unknown"
        if abs(apart.mean) > apart.around:
            found[row] = "ahead" if apart.mean > 0 else "behind"
    return found


def line(table: Table, row: str, all_rows: Mapping[str, Any], usual: Sequence[str]) -> list[str]:
    """The cells of a row."""
    stored = all_rows[row]
    base = all_rows.get(table.alone)
    gain = "-"
    if base is not None and row != table.alone and base["splits"] == stored["splits"]:
        gain = around_text(difference(all_rows, row, table.alone), "%", sign=True)
    worst = [value for value in stored["worst_client"] if value is not None]
    taken = steps_of(stored)
    return [
        row + " †" * (stored["splits"] != usual),
        around_text(mean_of(stored["accuracy"]), "%") + " ‡" * bool(stored["diverged"]),
        gain,
        around_text(mean_of(worst), "%") if worst else "-",
        f"{taken:.1f}" + " §" * differs(table, stored),
        f"{stored['bytes'] / 1e6:.1f}",
    ]


def steps_of(stored: Mapping[str, Any]) -> float:
    """Mean local steps of a client in a round; of the server, where it trains alone."""
    return float(stored["steps"] / (stored["clients"] or stored["rounds"]))


def differs(table: Table, stored: Mapping[str, Any]) -> bool:
    """Whether a row has other local steps than its table."""
    return abs(steps_of(stored) - (table.counted or table.steps)) > SAME_STEPS


def notes(
    table: Table, ranked: Sequence[str], stored: Mapping[str, Any], usual: Sequence[str]
) -> str:
    """What is common to the rows: splits, device, commit; what the marks say."""
    said = [
        f"Measured: {counted_seeds(stored[ranked[0]]).lower()}, [split](partitions.md#split-files) of the first `{usual[0]}`."
    ]
    if any(stored[row]["splits"] != usual for row in ranked):
        said.append("†: other splits, all examples being at one place.")
    if any(stored[row]["diverged"] for row in ranked):
        said.append("‡: some seed diverged.")
    for row in ranked:
        if stored[row].get("dropped"):
            said.append(
                f"{row}: {stored[row]['dropped']:.0f} updates of clients were not finite and left "
                "out."
            )
    others = [row for row in ranked if differs(table, stored[row])]
    if others:
        said.append(f"§: others have {table.counted or table.steps}. {table.uneven}".strip())
    commits: dict[str, set[str]] = {}
    for one in stored.values():
        machine = f"{one['device']}, jax {one['versions'].get('jax')}"
        commits.setdefault(machine, set()).add(str(one["commit"])[:8])
    origins = [
        f"{machine}, {'commits' if len(found) > 1 else 'commit'} {', '.join(sorted(found))}."
        for machine, found in sorted(commits.items())
    ]
    return " ".join([*said, *origins])


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--run", choices=TABLES, metavar="TABLE", required=True, help=", ".join(TABLES)
    )
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="of the table; all by default")
    parser.add_argument("--data", help="file or folder of the table's data, where they are yours")
    asked = parser.parse_args(arguments)
    rows = TABLES[asked.run].rows
    if unknown := [row for row in asked.rows or () if row not in rows]:
        parser.error(f"{asked.run} has no row {unknown[0]!r}; its rows: {', '.join(rows)}")
    for row in asked.rows or rows:
        run(asked.run, row, asked.data)


if __name__ == "__main__":
    main()
