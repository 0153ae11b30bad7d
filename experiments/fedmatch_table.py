"""FedMatch beside its baselines with the paper's network and settings: orderings of its Tables 1 and 2, in small.

    python experiments/fedmatch_table.py --path cifar10.npz                                     # labels at clients, iid
    python experiments/fedmatch_table.py --path cifar10.npz --variant ls,noniid,0.25
    python experiments/fedmatch_table.py --config mnist_fedmatch --path mnist.npz --variant lc,0.25 --rounds 100

The config is configs/cifar10_fedmatch.py (or mnist_fedmatch.py) with a share of the channels, fewer clients and rounds,
and the test examples of the file in place of a share of all images. FixMatch and UDA have the settings of FedMatch's
paper: weights 10 and 1, batches of 10 labelled and 100 unlabelled images (`--unlabelled-ratio 3`: 30; a client with few
unlabelled images then takes as many steps as FedMatch's), no weak augmentation. "labels only" and "all
labels" are FedAvg on batches of 10 (labels at the server: `single` alone) with the learning rate times 10, the weight
of FedMatch's supervised loss. Baselines keep their learning rate; FedMatch's clients lower theirs by validation loss.

Leaves fedmatch_table.md (means and sample standard deviations over the seeds) and .csv (every evaluation of every run)
in the output folder, rewritten after every method.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_collections
import numpy as np
from tables import MISSING, facts, leave, markdown, parser_of, positive, spread, train_seeds

from fedjax_ssl import config as configs
from fedjax_ssl.command_line import use_compilation_cache

LABELS_ONLY, ALL_LABELS = "labels only", "all labels"
PAIRS = {"labelled_weight": 10.0, "unlabelled_weight": 1.0}  # lambda_s, lambda_u
METHODS: dict[str, dict[str, Any]] = {
    "fedmatch": {},
    "fixmatch": {**PAIRS, "threshold": 0.85, "augment_labelled": False},
    "uda": {**PAIRS, "threshold": 0.8, "temperature": 0.4},
    LABELS_ONLY: {},
    ALL_LABELS: {},
}
MEASURED = {  # column -> metric, as a share
    "test accuracy, %": "test_accuracy",
    "local models, %": "client_validation_accuracy",
    "pseudo-labels right, %": "pseudo_label_accuracy",
    "coverage, %": "pseudo_label_coverage",
    "S2C, %": "s2c",
    "C2S, %": "c2s",
}


class Row(NamedTuple):
    """One method: metrics [seeds, evaluations]."""

    method: str
    metrics: dict[str, np.ndarray]
    seconds: float  # of all seeds, compiling included


def make_config(method: str, options: argparse.Namespace) -> ml_collections.ConfigDict:
    """The config of one row.

    Args:
        method: of `METHODS`.
        options: of the command line.
    """
    config = configs.load(f"{options.config}:{options.variant}")
    at_server = config.supervision.name == "server"
    config.data.name, config.data.path = "npz", options.path
    config.data.pool_splits, config.data.test_fraction = False, 0.0
    config.partition.num_clients = options.clients or config.partition.num_clients
    config.rounds = options.rounds or config.rounds
    config.eval_every = max(config.rounds // 10, 1)
    if method in (LABELS_ONLY, ALL_LABELS):
        name = "single" if at_server and method == LABELS_ONLY else "fedavg"
        settings = {"server_batch_size": 100, "server_epochs": 1} if name == "single" else {}
        config.method = ml_collections.ConfigDict(configs.default(name).method.to_dict() | settings)
        config.optimizer.learning_rate *= 10
        if method == ALL_LABELS:
            config.supervision.name, config.supervision.labels = "all", None
        return config
    if method != config.method.name:
        settings = METHODS[method] | {"unlabelled_ratio": options.unlabelled_ratio}
        config.method = ml_collections.ConfigDict(configs.default(method).method.to_dict() | settings)
    return config


def main(arguments: list[str] | None = None) -> None:
    """Runs the methods and writes the files.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    options = _parse(arguments)
    use_compilation_cache()
    begin, rows = time.perf_counter(), []
    for method in options.methods:
        started = time.perf_counter()
        _, metrics = train_seeds(make_config(method, options), range(options.seeds))
        rows.append(Row(method, metrics, time.perf_counter() - started))
        print(f"{method}: {spread(metrics['test_accuracy'][:, -1])} % ({rows[-1].seconds:.0f} s)", flush=True)
        notes = facts(time.perf_counter() - begin, options.seeds, options.rounds)
        header = ["method", "seed", "round", *MEASURED.values()]
        text = leave(options, "fedmatch_table", [table(rows)], notes, header, _evaluations(rows))
    print(text)


def table(rows: list[Row]) -> str:
    """The methods in Markdown: accuracies after the last round and the best, costs as means over the rounds."""
    header = ["method", "test accuracy, %", "best, %", *list(MEASURED)[1:], "s"]
    lines = []
    for row in rows:
        accuracy = row.metrics["test_accuracy"]
        cells = [row.method, spread(accuracy[:, -1]), spread(accuracy.max(axis=1))]
        for name in list(MEASURED.values())[1:]:
            values = row.metrics.get(name)
            if values is None:
                cells.append(MISSING)
            else:
                cells.append(spread(np.nanmean(values, axis=1) if name in ("s2c", "c2s") else values[:, -1]))
        lines.append([*cells, f"{row.seconds:.0f}"])
    return markdown(header, lines)


def _evaluations(rows: list[Row]) -> Iterator[list[Any]]:
    for row in rows:
        for (seed, number), after in np.ndenumerate(row.metrics["round"]):
            values = [row.metrics[name][seed, number] if name in row.metrics else "" for name in MEASURED.values()]
            yield [row.method, seed, int(after), *values]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, "fedmatch_table", 1)
    parser.add_argument("--config", choices=("cifar10_fedmatch", "mnist_fedmatch"), default="cifar10_fedmatch")
    parser.add_argument("--variant", default="lc,iid,0.25", help="of the config; by default %(default)s")
    parser.add_argument("--path", required=True, help="an .npz file with training and test images")
    parser.add_argument("--clients", type=positive, help="the config's by default")
    parser.add_argument("--rounds", type=positive, help="the config's by default")
    parser.add_argument(
        "--unlabelled-ratio",
        type=positive,
        default=10,
        help="of FixMatch and UDA: unlabelled images to a labelled one in a batch; a round is a pass over the "
        "unlabelled images, so that this decides how many local steps it has; by default %(default)s",
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
