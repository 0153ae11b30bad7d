"""Fed-Heart-Disease: FLamby's table of eleven strategies beside ours, and few labels at real
hospitals.

    python experiments/fed_heart_disease.py --path FOLDER --seeds 5               # FLamby's table
    python experiments/fed_heart_disease.py --path FOLDER --seeds 5 --few-labels  # ours

FOLDER holds UCI's four files (docs/datasets.md). The first writes fed_heart_disease.csv: accuracy
on every hospital's test rows, and on all of them standardized alike ("pooled"), in percent.
Published: mean and sample deviation of seeds 42 to 46, from
`results_benchmark_fed_heart_disease/*.csv` of FLamby (owkin/FLamby, du Terrail et al., NeurIPS
2022). The second writes fed_heart_disease_few_labels.csv and .png: softmax regression, mean over
seeds and 95 % interval.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pandas
import scipy.stats
from tables import facts, markdown, train_seeds

import fedjax_ssl as fs
from fedjax_ssl import data
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.config import ConfigNote, with_settings
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.runs.build import federate, load_experiment

FIRST_SEED = 42
CLIENTS = ("Cleveland", "Hungary", "Switzerland", "VA", "pooled")
ALONE = {
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.001,
    "optimizer.local_steps": None,
    "optimizer.local_epochs": 50,
    "rounds": 1,
}
POOLED = {"partition.name": "iid", "partition.num_clients": 1, "data.standardize": "train"}
ADAPTIVE = {"federated.tau": 1e-8, "federated.beta1": 0.9}
MOMENTS = {**ADAPTIVE, "federated.beta2": 0.999, "federated.bias_correction": False}
STRATEGIES: dict[str, dict[str, Any]] = {  # settings that differ from configs/fed_heart_disease.py
    "all data in one place": {**ALONE, **POOLED},
    "alone": {**ALONE, "federated.name": "local"},  # four rows
    "FedAvg": {},
    "FedProx": {"federated.name": "fedprox", "federated.mu": 0.01},
    "SCAFFOLD": {"federated.name": "scaffold", "federated.weighted_variates": True},
    "FedAdam": {
        **{
            "federated.name": "fedadam",
            "federated.server_learning_rate": 0.01,
            "optimizer.learning_rate": 0.01,
        },
        **MOMENTS,
    },
    "FedYogi": {
        **{
            "federated.name": "fedyogi",
            "federated.server_learning_rate": 0.01,
            "optimizer.learning_rate": 0.003162,
        },
        **MOMENTS,
    },
    "FedAdagrad": {
        **{"federated.name": "fedadagrad", "federated.server_learning_rate": 0.316228},
        **{"optimizer.learning_rate": 0.003162, **ADAPTIVE},
    },
}
PUBLISHED = {  # mean and deviation for each of CLIENTS
    "all data in one place": ((78.3, 1.1), (76.4, 0.0), (75.0, 0.0), (64.4, 0.0), (79.5, 0.3)),
    "Cleveland alone": ((74.6, 1.6), (76.0, 0.6), (72.5, 7.1), (65.8, 2.0), (78.4, 0.7)),
    "Hungary alone": ((74.6, 1.5), (74.6, 0.6), (52.5, 7.1), (49.8, 1.2), (72.7, 1.3)),
    "Switzerland alone": ((48.1, 5.4), (39.1, 4.2), (72.5, 12.2), (67.1, 6.4), (48.3, 4.5)),
    "VA alone": ((57.7, 3.1), (46.7, 1.3), (80.0, 8.1), (70.2, 5.1), (61.1, 3.9)),
    "FedAvg": ((73.1, 2.2), (71.9, 3.3), (65.0, 11.4), (64.0, 5.1), (74.8, 2.7)),
    "FedProx": ((73.1, 2.2), (71.9, 3.3), (65.0, 11.4), (64.0, 5.1), (74.8, 2.7)),
    "SCAFFOLD": ((72.7, 1.9), (71.9, 3.3), (65.0, 11.4), (64.0, 5.1), (74.8, 2.7)),
    "FedAdam": ((75.2, 1.7), (74.6, 1.9), (73.8, 2.8), (66.7, 4.4), (77.9, 1.5)),
    "FedYogi": ((76.0, 1.8), (75.3, 1.8), (73.8, 2.8), (67.6, 4.0), (77.9, 1.5)),
    "FedAdagrad": ((76.0, 1.8), (75.3, 1.8), (73.8, 2.8), (67.6, 4.0), (77.9, 1.5)),
}
LABELS = {"5": 5, "10": 10, "20": 20, "all": None, "10, VA none": 10}  # of every hospital
FEW_LABELS = {
    **{
        "FedAvg": "fedavg",
        "XCLP": "xclp",
        "pseudo-labels": "network_pseudo_label",
        "mean teacher": "mean_teacher",
    },
    **{
        "VAT": "vat",
        "ProtoFSSL": "protofssl",
        "FedUL, counted sets": "fedul",
        "mixed, sets at VA": "mixed",
    },
}


def main() -> None:
    """Print one of the two tables, and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", required=True, help="folder of UCI's four files")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--few-labels", action="store_true", help="few labels in place of FLamby's table"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("."), help="folder of the table, and of the picture"
    )
    given = parser.parse_args()
    use_compilation_cache()
    warnings.simplefilter("ignore", ConfigNote)
    begin = time.perf_counter()
    seeds = range(FIRST_SEED, FIRST_SEED + given.seeds)
    given.output.mkdir(parents=True, exist_ok=True)
    if given.few_labels:
        table = few_labels(given.path, seeds)
        table.to_csv(
            given.output / "fed_heart_disease_few_labels.csv", index=False, float_format="%.2f"
        )
        cells = {
            place: [f"{m:.1f} ± {w:.1f}" for m, w in zip(g["mean"], g["interval"], strict=True)]
            for place, g in table.groupby("method", sort=False)
        }
        print(markdown(("method", *LABELS), [(name, *row) for name, row in cells.items()]))
        draw(table, given.output / "fed_heart_disease.png")
    else:
        table = flamby(given.path, seeds)
        table.to_csv(given.output / "fed_heart_disease.csv", index=False, float_format="%.2f")
        for title, (mean, std) in {
            "FLamby": ("published_mean", "published_std"),
            "here": ("mean", "std"),
        }.items():
            rows = [
                (name, *(f"{m:.1f} ± {s:.1f}" for m, s in zip(own[mean], own[std], strict=True)))
                for name, own in table.groupby("strategy", sort=False)
            ]
            print(f"\n{markdown((title, *CLIENTS), rows)}")
        apart = table[
            (table["mean"] - table["published_mean"]).abs() > table["published_std"] + 0.05
        ]
        for _, row in apart.iterrows():
            print(f"further than the published deviation: {row.strategy}, {row.client}")
        print(f"{len(table) - len(apart)} of {len(table)} means are within the published deviation")
    print("\n".join(facts(time.perf_counter() - begin, given.seeds)))


def flamby(path: str, seeds: range) -> pandas.DataFrame:
    """Train the eleven strategies, all seeds of one in a program; test each model as FLamby
    does.
    """
    tests = test_sets(path)
    rows = []
    for name, settings in STRATEGIES.items():
        config = fs.load_config("fed_heart_disease", {"data.path": path, **settings})
        states, _ = train_seeds(config, seeds)
        params = states.params["model"]
        models = {name: params}
        if name == "alone":
            one = jax.tree.map(lambda leaf: leaf[0], params)
            own = jax.vmap(jax.vmap(packing(one).unpack))(states.clients.params["model"])
            models = {
                f"{client} alone": jax.tree.map(lambda leaf, at=at: leaf[:, at], own)
                for at, client in enumerate(CLIENTS[:4])
            }
        for strategy, model in models.items():
            kernel, bias = (np.asarray(model[part], np.float64) for part in ("kernel", "bias"))
            for client, (x, y), published in zip(CLIENTS, tests, PUBLISHED[strategy], strict=True):
                right = 100 * (((x @ kernel)[..., 0] + bias > 0) == y).mean(axis=1)  # of each seed
                spread = right.std(ddof=1) if len(seeds) > 1 else np.nan
                rows.append((strategy, client, right.mean(), spread, *published))
    return pandas.DataFrame(
        rows, columns=["strategy", "client", "mean", "std", "published_mean", "published_std"]
    )


def test_sets(path: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Give the test rows of every hospital, by its own statistics, and all of them, by those of
    all training rows.
    """
    raw = data.load("fed_heart_disease", path=path)
    own, _ = data.standardized(raw, "client")
    together, _ = data.standardized(raw, "train")
    parts = [
        (own.test.x[own.test.client == at], own.test.y[own.test.client == at]) for at in range(4)
    ]
    return [*parts, (np.asarray(data.normalizer(together)(jnp.asarray(raw.test.x))), raw.test.y)]


def few_labels(path: str, seeds: range) -> pandas.DataFrame:
    """Train every method with few labels; a method that takes none is the same in all columns."""
    rows = []
    for name, method in {**FEW_LABELS, "one-shot XCLP": None}.items():
        for labels, count in LABELS.items():
            if method == "fedul" and labels != "5":
                rows.append((name, labels, *rows[-1][2:]))  # it sees no labels
                continue
            config = few_labels_config(path, method, labels, count)
            if method is None:
                accuracy = np.array(
                    [one_shot(with_settings(config, {"seed": seed})) for seed in seeds]
                )
            else:
                accuracy = train_seeds(config, seeds)[1]["test_accuracy"][:, -1]
            half = (
                scipy.stats.t.ppf(0.975, len(seeds) - 1) * accuracy.std(ddof=1) / len(seeds) ** 0.5
            )
            rows.append((name, labels, 100 * accuracy.mean(), 100 * half))
            print(*rows[-1], flush=True)
    return pandas.DataFrame(rows, columns=["method", "labels", "mean", "interval"])


def few_labels_config(
    path: str, method: str | None, labels: str, count: int | None
) -> ml_collections.ConfigDict:
    """Make the config of one cell."""
    shown: dict[str, Any] = (
        {} if count is None else {"supervision.name": "per_client", "supervision.labels": count}
    )
    if "none" in labels:
        shown |= {"supervision.labelled_clients": 3}  # the first
    if method == "fedul":
        shown = {"supervision.name": "sets", "supervision.sets": 4}
    if method == "mixed":
        shown |= {
            "supervision.name": "mixed",
            "supervision.labelled_clients": 3,
            "supervision.set_clients": 1,
        }
        shown |= {
            "supervision.sets": 4,
            "supervision.coarse_clients": 0,
            "supervision.correspondence": "identity",
        }
    return fs.load_config(f"fed_heart_disease:{method or 'fedavg'}", {"data.path": path, **shown})


def one_shot(config: ml_collections.ConfigDict) -> float:
    """Label the test rows in one graph of all hospitals' standardized inputs; nothing is
    trained.
    """
    federation = federate(load_experiment(config), jax.random.key(config.seed))
    found, _ = fs.propagate_labels(
        federation.inputs,
        federation.observed,
        num_classes=2,
        seed=config.seed,
        similarity_power=3.0,
        label_norm="class",
    )
    tested = np.asarray(federation.test_index)
    return float((found[tested] == np.asarray(federation.labels)[tested]).mean())


def draw(table: pandas.DataFrame, path: Path) -> None:
    """Draw accuracy over labels, one line a method, on a background that light and dark pages
    can show.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=110)
    columns = [labels for labels in LABELS if "none" not in labels]
    colours = plt.get_cmap("tab10").colors
    for number, (name, own) in enumerate(table.groupby("method", sort=False)):
        own = own.set_index("labels").reindex(columns)
        places = np.arange(len(columns)) + 0.04 * (number - 4)
        axes.errorbar(
            places,
            own["mean"],
            own["interval"],
            color=colours[number],
            marker="o",
            capsize=2,
            elinewidth=0.8,
            label=name,
        )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_xlabel("labels of every hospital")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("Four real hospitals, 254 test patients")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, bbox_inches="tight", facecolor="white")
    plt.close(figure)


if __name__ == "__main__":
    main()
