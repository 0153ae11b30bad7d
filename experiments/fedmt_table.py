"""FedMT: coarse labels at the clients and a few class labels at the server, with a known and an estimated matrix.

    python experiments/fedmt_table.py                                          # embedded digits, 5 seeds
    python experiments/fedmt_table.py --labels 20 50 --spaces shape parity
    python experiments/fedmt_table.py --path mnist.npz --clients 20            # MNIST, clients iid

Compared with the server alone (`single`), SemiFL, which drops the coarse labels, transfer learning (`fedtrans`: the
server trains the whole network, or its new head alone), and `fedavg` with all class labels as the upper bound. Settings
are those of configs/digits_fedmt.py. "all examples": the projection loss on all of a client's examples instead of the
confident ones of each batch; with a known matrix nobody then waits for confident examples. Seed s of the table is
`--config.seed=s` of the command line.

Leaves fedmt_table.md (means and sample standard deviations over the seeds, and the matrix that the network of seed 0
gives in the end beside the true one) and fedmt_table.csv (every single run) in the output folder. Measured result:
docs/methods/fedmt.md.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from tables import facts, leave, markdown, parser_of, positive, spread, train_seeds

from fedjax_ssl import config as configs
from fedjax_ssl import runs
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.federated import ServerState
from fedjax_ssl.objectives import correspondence_counts, normalize_counts
from fedjax_ssl.runs.build import build_method, federate, load_experiment

NO_SPACE = "-"
ALL_LABELS = "fedavg, all class labels"
ALONE: dict[str, str] = {"server alone": "single", "SemiFL, no coarse labels": "semifl"}
TRANSFER: dict[str, dict[str, Any]] = {
    "fedtrans": {"finetune": "all"},
    "fedtrans, new head alone": {"finetune": "head"},
}
WITH_COARSE: dict[str, dict[str, Any]] = {
    **TRANSFER,
    "FedMT(T)": {"correspondence": "known"},
    "FedMT(T), all examples": {"correspondence": "known", "projection_examples": "all", "gate": "none"},
    "FedMT(E)": {"correspondence": "estimated"},
    "FedMT(E), all examples": {"correspondence": "estimated", "projection_examples": "all"},
}


class Cell(NamedTuple):
    """One row of the table at one number of labels; one entry per seed, shares in [0, 1]."""

    name: str
    space: str  # of the coarse labels
    labels: str  # at the server
    metrics: dict[str, np.ndarray]  # after the last rounds


def main(arguments: list[str] | None = None) -> None:
    """Runs the experiments and writes the files, after every row anew.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    options = _parse(arguments)
    use_compilation_cache()
    jobs = [(name, NO_SPACE, "all") for name in (ALL_LABELS,) if name in options.rows]
    for labels in map(str, options.labels):
        jobs += [(name, NO_SPACE, labels) for name in ALONE if name in options.rows]
        jobs += [(name, space, labels) for space in options.spaces for name in WITH_COARSE if name in options.rows]
    cells: list[Cell] = []
    matrices: list[str] = []
    begin = time.perf_counter()
    print(f"{len(jobs)} experiments of {options.seeds} seeds each on {runs.device_description()}", flush=True)
    for name, space, labels in jobs:
        started = time.perf_counter()
        config = make_config(name, space, labels, options)
        states, metrics = train_seeds(config, range(options.seeds))
        cells.append(Cell(name, space, labels, {key: values[:, -1] for key, values in metrics.items()}))
        accuracy = spread(cells[-1].metrics["test_accuracy"])
        print(f"{name}, {space}, {labels} labels: {accuracy} % ({time.perf_counter() - started:.0f} s)", flush=True)
        if name == "FedMT(E)":
            first = jax.tree.map(lambda leaf: leaf[0], states)
            matrices.append(f"{space}, {labels} labels at the server\n\n" + matrix_beside_truth(config, first))
        notes = facts(time.perf_counter() - begin, options.seeds, options.rounds)
        header = ["method", "coarse_labels", "server_labels", "seed", *SHARES]
        text = leave(options, "fedmt_table", [table(cells), *matrices], notes, header, _rows(cells))
    print(text)


def make_config(name: str, space: str, labels: str, options: argparse.Namespace) -> ml_collections.ConfigDict:
    """The config of one row.

    Args:
        name: of the row.
        space: of the coarse labels, or `NO_SPACE`.
        labels: at the server, or "all".
        options: of the command line: data and number of rounds.
    """
    given = "20" if labels == "all" else labels
    named = "shape" if space == NO_SPACE else space
    config = configs.load(f"digits_fedmt:{given},{named},{'fedtrans' if name in TRANSFER else 'known'}")
    if options.path:
        config.data.name, config.data.path, config.data.test_clients = "npz", options.path, 0
        config.partition.name, config.partition.num_clients = "iid", options.clients
    if options.rounds:
        config.rounds = options.rounds
        if name in TRANSFER:
            if options.rounds < 2:
                raise SystemExit(f"--rounds is {options.rounds}; {name} needs at least 2, one for each of its stages")
            config.method.coarse_rounds = config.optimizer.schedule_rounds = options.rounds // 2
    if name in WITH_COARSE:
        config.method.update(WITH_COARSE[name])
        return config
    config.supervision.server_labels = None
    config.supervision.correspondence = None
    config.method.name = "fedavg" if name == ALL_LABELS else ALONE[name]
    config.supervision.name = "all" if name == ALL_LABELS else "server"
    if name != ALL_LABELS:
        config.supervision.labels = int(labels)
    return config


def matrix_beside_truth(config: ml_collections.ConfigDict, state: ServerState) -> str:
    """The correspondence of all clients' examples by a trained network of seed 0, beside that of their classes."""
    experiment = load_experiment(config)
    federation = federate(experiment, jax.random.key(0))
    assert federation.weak is not None
    method = build_method(experiment, federation)
    coarse = federation.weak.labels.reshape(-1)
    probabilities = jnp.exp(method.predict(state, federation.inputs[federation.index.reshape(-1)]))
    threshold = experiment.config.method.threshold
    counts, totals = correspondence_counts(probabilities, coarse, federation.weak.matrix.shape[1], threshold)
    estimate, true = np.asarray(normalize_counts(counts, totals)), np.asarray(federation.weak.matrix[0])
    header = ["class", *(str(label) for label in range(true.shape[1]))]
    rows = [[f"estimated, coarse label {j}", *(f"{value:.2f}" for value in row)] for j, row in enumerate(estimate)]
    rows += [[f"true, coarse label {j}", *(f"{value:.0f}" for value in row)] for j, row in enumerate(true)]
    rows.append(["confident examples", *(f"{count:.0f}" for count in np.asarray(counts.sum(axis=0)))])
    return markdown(header, rows)


def table(cells: list[Cell]) -> str:
    """Accuracy on test examples and what the log says about pseudo-labels and estimates, in Markdown."""
    header = ["method", "coarse labels", "labels at the server", "test accuracy, %", "pseudo-labels right, %"]
    header += ["confident, %", "largest error of the estimate"]
    rows = []
    for cell in cells:
        shares = [spread(cell.metrics[name]) if name in cell.metrics else "-" for name in SHARES]
        error = f"{cell.metrics['correspondence_error'].mean():.2f}" if "correspondence_error" in cell.metrics else "-"
        rows.append([cell.name, cell.space, cell.labels, *shares, error])
    return markdown(header, rows)


SHARES = ("test_accuracy", "pseudo_label_accuracy", "pseudo_label_coverage")


def _rows(cells: list[Cell]) -> Iterator[list[Any]]:
    for cell in cells:
        for seed in range(len(cell.metrics["test_accuracy"])):
            values = [f"{cell.metrics[name][seed]:.6f}" if name in cell.metrics else "" for name in SHARES]
            yield [cell.name, cell.space, cell.labels, seed, *values]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, "fedmt_table", 5)
    parser.add_argument("--labels", type=positive, nargs="+", default=[20], help="class labels at the server")
    parser.add_argument("--spaces", nargs="+", default=["shape", "parity"], help="coarse labels: shape, parity, halves")
    rows = [ALL_LABELS, *ALONE, *WITH_COARSE]
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows, metavar="NAME", help="; ".join(rows))
    parser.add_argument("--path", help="an npz file with ten digits and test examples, such as mnist.npz")
    parser.add_argument("--clients", type=positive, default=20, help="number of clients, with --path")
    parser.add_argument("--rounds", type=positive, help="in place of the config's number of rounds, for a quick look")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
