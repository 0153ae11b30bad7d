"""FedUL's benchmark (Table 1 of the paper): sets with known class shares against baselines, iid and non-iid.

    python experiments/fedul_table.py                                            # embedded digits, 3 seeds
    python experiments/fedul_table.py --dataset mnist                            # the paper's network: for a GPU
    python experiments/fedul_table.py --dataset mnist --path mnist.npz --network mlp --rounds 20 --learning-rate 1e-3

Runs configs/digits_fedul.py or configs/mnist_fedul.py for every split, number of sets per client and method; `fedavg`,
which has the labels of a tenth of the examples, once per split. Seed s of the table is `--config.seed=s` of the command
line. Where a config has validation data, the round with the best validation accuracy counts, else the last one.

Leaves fedul_table.md and fedul_table.csv (every single run) in the output folder: test error in %, mean and population
standard deviation over the seeds as in the paper, and seconds per local epoch of all clients, which include dealing the
data and evaluating but not compiling. For MNIST the test error is, as in the paper, the mean over the clients on test
images of their own, equally many of every class; for the digits it is the error on all test digits. For MNIST the
paper's numbers stand beside ours, below the table what differs.
Measured result: docs/methods/fedul.md.
"""

import argparse
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from tables import facts, leave, markdown, parser_of, positive

from fedjax_ssl import config as configs
from fedjax_ssl import models, runs
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.data.federation.weak_labels import PROTOCOLS
from fedjax_ssl.presets import FEDUL_METHODS
from fedjax_ssl.train import make_train, over_seeds

SUPERVISED = "fedavg"
# Test error in %, mean and standard deviation, for MNIST and 5 clients: Table 1 of arXiv 2204.03304.
PUBLISHED = {
    "iid": {
        "10": {"fedpl": "2.12 ± 0.10", "fedllp": "19.00 ± 15.90", "fedllp_vat": "20.53 ± 5.39", "fedul": "0.78 ± 0.06"},
        "20": {"fedpl": "2.98 ± 0.15", "fedllp": "4.38 ± 3.95", "fedllp_vat": "4.40 ± 5.11", "fedul": "1.12 ± 0.09"},
        "40": {"fedpl": "3.90 ± 0.22", "fedllp": "10.11 ± 15.74", "fedllp_vat": "11.96 ± 9.56", "fedul": "1.00 ± 0.29"},
        "labels": {SUPERVISED: "1.79 ± 0.09"},
    },
    "noniid": {
        "10": {
            "fedpl": "15.54 ± 3.48",
            "fedllp": "20.52 ± 15.00",
            "fedllp_vat": "23.39 ± 15.34",
            "fedul": "2.98 ± 1.72",
        },
        "20": {"fedpl": "7.54 ± 2.77", "fedllp": "6.63 ± 7.94", "fedllp_vat": "11.76 ± 6.60", "fedul": "1.77 ± 0.49"},
        "40": {"fedpl": "5.76 ± 0.90", "fedllp": "5.53 ± 2.51", "fedllp_vat": "7.82 ± 10.73", "fedul": "1.64 ± 0.18"},
        "labels": {SUPERVISED: "3.82 ± 1.56"},
    },
}


class Cell(NamedTuple):
    """One method at one split and number of sets."""

    split: str
    sets: str  # per client; "labels" where a tenth of the labels is given instead
    method: str
    errors: np.ndarray  # share of wrong test examples, one entry per seed
    epoch_seconds: float  # wall time over local epochs of all clients: dealing and evaluation included, compiling not


def main(arguments: list[str] | None = None) -> None:
    """Runs the experiments and writes the files, after every cell anew.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    options = _parse(arguments)
    use_compilation_cache()
    jobs: list[tuple[str, str, str]] = []
    for split in options.splits:
        weak = [method for method in options.methods if method != SUPERVISED]
        jobs += [(split, str(sets), method) for sets in options.sets for method in weak]
        jobs += [(split, "labels", SUPERVISED)] * (SUPERVISED in options.methods)
    begin, cells, text = time.perf_counter(), [], ""
    print(f"{len(jobs)} experiments of {options.seeds} seeds each on {runs.device_description()}", flush=True)
    for number, job in enumerate(jobs, start=1):
        cell = run(*job, options)
        cells.append(cell)
        print(f"[{number:2}/{len(jobs)}] {', '.join(job)}: error {spread(cell.errors)} %", flush=True)
        notes = [*differences(options), *facts(time.perf_counter() - begin, options.seeds, options.rounds)]
        rows = (
            [*cell[:3], seed, f"{error:.6f}", f"{cell.epoch_seconds:.6f}"]
            for cell in cells
            for seed, error in enumerate(cell.errors)
        )
        header = ["split", "sets", "method", "seed", "test_error", "epoch_seconds"]
        text = leave(options, "fedul_table", [table(cells, options.dataset == "mnist")], notes, header, rows)
        jax.clear_caches()  # every cell compiles a program of its own, and a process cannot hold them all
    print(text)


def run(split: str, sets: str, method: str, options: argparse.Namespace) -> Cell:
    """Trains one method with every seed, in one program.

    Args:
        split: "iid" or "noniid".
        sets: number of sets per client, or "labels".
        method: a method of the configs.
        options: the command line.
    """
    config = make_config(split, sets, method, options)
    keys = jax.vmap(jax.random.key)(jnp.arange(options.seeds, dtype=jnp.uint32))
    program = jax.jit(over_seeds(make_train(config))).lower(keys).compile()
    begin = time.perf_counter()
    _, metrics = jax.block_until_ready(program(keys))
    seconds = time.perf_counter() - begin
    accuracy = np.asarray(metrics["test_accuracy"], np.float64)
    chosen = np.full(options.seeds, accuracy.shape[1] - 1)
    if "validation_accuracy" in metrics:
        chosen = np.asarray(metrics["validation_accuracy"]).argmax(axis=1)
    epochs = options.seeds * config.rounds * config.optimizer.local_epochs
    return Cell(split, sets, method, 1.0 - accuracy[np.arange(options.seeds), chosen], seconds / epochs)


def make_config(split: str, sets: str, method: str, options: argparse.Namespace) -> ml_collections.ConfigDict:
    """The config of one cell with what the command line changes."""
    config = configs.load(f"{options.dataset}_fedul:{10 if sets == 'labels' else sets},{split},{method}")
    if options.path:
        config.data.name, config.data.path = "npz", options.path
    if options.network:
        config.model = type(config.model)({"name": options.network})
    if options.protocol and sets != "labels":
        config.supervision.protocol = options.protocol
    if options.learning_rate:
        config.optimizer.learning_rate = options.learning_rate
    if options.rounds:
        config.rounds = options.rounds
        config.eval_every = min(config.eval_every, options.rounds)
        if "warmup_rounds" in config.method:
            config.method.warmup_rounds = min(config.method.warmup_rounds, max(options.rounds // 2, 1))
    return config


def spread(errors: np.ndarray) -> str:
    """Mean and population standard deviation in percent, as the paper has them; only the mean of a single run."""
    mean = f"{100 * errors.mean():.2f}"
    return mean if len(errors) < 2 else f"{mean} ± {100 * errors.std():.2f}"


def table(cells: list[Cell], published: bool) -> str:
    """A Markdown table with a row per split and number of sets; `published`: with the paper's numbers beside ours."""
    by_name = {cell[:3]: cell for cell in cells}
    names = list(dict.fromkeys(cell.method for cell in cells))
    header, rows = ["test error, %", "sets"], []
    for name in names:
        header += [name, *(["paper"] if published else []), "s/epoch"]
    for split, sets in dict.fromkeys(cell[:2] for cell in cells):
        row = [split, "a tenth of the labels" if sets == "labels" else sets]
        for name in names:
            cell = by_name.get((split, sets, name))
            paper = PUBLISHED[split].get(sets, {}).get(name, "") if cell else ""
            row += [spread(cell.errors) if cell else "", *([paper] if published else [])]
            row.append(f"{cell.epoch_seconds:.3g}" if cell else "")
        rows.append(row)
    return markdown(header, rows)


def differences(options: argparse.Namespace) -> list[str]:
    """What differs from the paper's experiment, a sentence each."""
    if options.dataset == "digits":
        protocol = [f"protocol of the sets {options.protocol}"] if options.protocol else []
        protocol.append("test error: of all test digits, the same for every client")
        return ["not an experiment of the paper: its networks, data and numbers of rounds are others", *protocol]
    lines = [
        "test error: mean over the clients, each with as many test images of every class, as in the paper",
        "validation images are a fifth of the training images, drawn by class and the same for all clients; in the "
        "paper each client draws its own from the last fifth of the file",
        "inputs are standardized" + (" by the training images" if options.path else " as in the paper"),
        f"{SUPERVISED} has no L1 term",
        "loss, mixing and ramp-up as in the paper's text; its published code has others (docs/methods/fedul.md)",
    ]
    if options.network not in (None, "mnist_cnn"):
        lines.append(f"network {options.network}; in the paper a convolutional one (here mnist_cnn)")
    if options.protocol not in (None, "reference"):
        lines.append(f"protocol of the sets {options.protocol}; in the paper's code reference")
    if options.rounds not in (None, 100):
        lines.append(f"{options.rounds} rounds; in the paper 100")
    if options.learning_rate not in (None, 1e-4):
        lines.append(f"learning rate {options.learning_rate:g}; in the paper 1e-4")
    return lines


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, "fedul_table", 3)
    parser.add_argument("--dataset", choices=("digits", "mnist"), default="digits", help="whose config is run")
    parser.add_argument("--path", help="an npz file in place of the dataset, for example Keras' mnist.npz")
    parser.add_argument("--network", choices=sorted(models.available()), help="in place of the config's")
    parser.add_argument("--rounds", type=positive, help="in place of the config's number of rounds")
    parser.add_argument("--learning-rate", type=float, help="in place of the config's, for fewer rounds")
    parser.add_argument("--sets", type=positive, nargs="+", default=[10, 20, 40], help="sets per client")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="how sets are filled, in place of the config's")
    parser.add_argument("--splits", nargs="+", choices=tuple(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--methods", nargs="+", choices=FEDUL_METHODS, default=list(FEDUL_METHODS))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
