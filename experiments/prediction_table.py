"""One-shot prediction in numbers: XCLP, per-client LP and FedAvg against the share of labels, and
client by client.

    python experiments/prediction_table.py configs/digits_predict.py
    python experiments/prediction_table.py configs/femnist_predict.py --argument ,glyphs --variant code
    python experiments/prediction_table.py configs/npz_predict.py --argument ,iid --path mnist.npz

Runs a `_predict.py` config for every share of labels and seed, with each kind of features that
--features names (the variants of the config file: raw inputs, features of a FedAvg network), then
leaves one client out after the other (--left-out clients, 0 for none) where the data have natural
clients. Prints Markdown tables of the accuracy on new examples, mean and sample standard deviation
over seeds, and what became of the orderings that the paper states (its Tables 1, 2, 3 and 6);
prediction_table.md and .csv (every single run) lie in the output folder. Measured results:
docs/results.md.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import ml_collections
import numpy as np
from tables import facts, leave, markdown, parser_of, spread

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.command_line import USER_ERRORS, use_compilation_cache
from fedjax_ssl.prediction import one_shot
from fedjax_ssl.runs import prediction_files
from fedjax_ssl.runs.build import build, device_mesh, federate, load_experiment
from fedjax_ssl.runs.devices import choose_devices
from fedjax_ssl.runs.rounds import run_rounds


class Run(NamedTuple):
    """One way of predicting in one run."""

    features: str
    fraction: float  # of the training examples that are labelled
    seed: int
    left_out: int | None  # the client without training data
    name: str
    accuracy: float
    balanced_accuracy: float


def main(arguments: list[str] | None = None) -> int:
    """Runs everything and writes the files, also what there is when a run fails.

    Args:
        arguments: command line without the program's name; that of the process by default.

    Returns:
        0, or 2 for a mistake of the user.
    """
    options = _parse(arguments)
    use_compilation_cache()
    begin = time.perf_counter()
    shares: list[Run] = []
    left_out: list[Run] = []
    try:
        for features in options.features:
            shares += _by_share(options, features)
        for number in range(options.left_out):
            left_out += _left_out(options, number)
    except USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        if shares or left_out:
            sections = [share_table(shares)] * bool(shares) + [left_out_table(left_out)] * bool(
                left_out
            )
            sections.append("\n".join(f"- {line}" for line in orderings(shares, left_out)))
            notes = facts(time.perf_counter() - begin, options.seeds, None)
            print(
                leave(
                    options, "prediction_table", sections, notes, Run._fields, [*shares, *left_out]
                )
            )
    return 0


def _by_share(options: argparse.Namespace, features: str) -> Iterator[Run]:
    for fraction in options.fractions:
        for seed in range(options.seeds):
            config = _config(options, features)
            config.supervision.fraction = fraction
            yield from _run(options, config, features, fraction, seed)
        # every run compiles programs of its own, and a process cannot hold them all
        jax.clear_caches()


def _left_out(options: argparse.Namespace, client: int) -> Iterator[Run]:
    config = _config(options, "left_out")
    config.data.left_out_client = client
    yield from _run(options, config, "left_out", 1.0, 0)
    jax.clear_caches()


def _config(options: argparse.Namespace, variant: str) -> ml_collections.ConfigDict:
    config = configs.load(f"{options.config}:{variant}{options.argument}")
    config.prediction.variant = options.variant
    if options.path:
        config.data.path = options.path
    return config


def _run(
    options: argparse.Namespace,
    config: ml_collections.ConfigDict,
    features: str,
    fraction: float,
    seed: int,
) -> list[Run]:
    """Trains if the config says so, then predicts in every way."""
    started = time.perf_counter()
    config.seed = seed
    experiment = load_experiment(config)
    key = jax.random.key(seed)
    federation = federate(experiment, key)
    data.validate(federation)
    one_shot.check(experiment.config, federation)
    method = build(experiment, federation).method
    mesh = device_mesh(choose_devices(experiment.config, experiment.dataset))
    state = jax.jit(method.init)(key, federation)
    if config.rounds:
        rounds = experiment.config.rounds
        state, _ = jax.jit(lambda state, data: run_rounds(method, key, state, data, rounds))(
            state, federation
        )
    outcomes = prediction_files.summary_of(
        list(one_shot.predict(experiment.config, method, state, key, federation, mesh))
    )
    left_out = experiment.config.data.left_out_client
    what = (
        f"{features}, {fraction:.0%} labelled, seed {seed}"
        if left_out is None
        else f"without client {left_out}"
    )
    print(
        f"{what}: "
        + ", ".join(f"{row['name']} {row['accuracy']:.1%}" for row in outcomes)
        + f" ({time.perf_counter() - started:.0f} s)",
        flush=True,
    )
    return [
        Run(
            features,
            fraction,
            seed,
            left_out,
            row["name"],
            row["accuracy"],
            row["balanced_accuracy"],
        )
        for row in outcomes
    ]


def share_table(runs: list[Run]) -> str:
    """Accuracy on new examples against the share of labels, a line per kind of features and way
    of predicting.
    """
    fractions = sorted({run.fraction for run in runs})
    lines = [["features", "predicted by", *(f"{fraction:.0%}" for fraction in fractions)]]
    for features, name in dict.fromkeys((run.features, run.name) for run in runs):
        cells = [spread(_accuracies(runs, features, name, fraction)) for fraction in fractions]
        lines.append([features, name, *cells])
    return (
        "Accuracy on new examples, %, by share of labelled training "
        f"examples\n\n{markdown(lines[0], lines[1:])}"
    )


def left_out_table(runs: list[Run]) -> str:
    """Accuracy on all examples of a client that trains on nothing, a column per client."""
    clients = sorted({run.left_out for run in runs if run.left_out is not None})
    lines = [["predicted by", *map(str, clients), "mean"]]
    for name in dict.fromkeys(run.name for run in runs):
        values = np.array(
            [
                run.accuracy
                for client in clients
                for run in runs
                if (run.name, run.left_out) == (name, client)
            ]
        )
        lines.append(
            [name, *(f"{100 * value:.1f}" for value in values), f"{100 * values.mean():.1f}"]
        )
    return (
        "One client left out: accuracy on all of its examples, "
        f"%\n\n{markdown(lines[0], lines[1:])}"
    )


def orderings(shares: list[Run], left_out: list[Run]) -> Iterator[str]:
    """Where the paper's statements hold, by mean accuracy: T1 on labelled points alone, T2, T3
    and T6.
    """
    fractions = sorted({run.fraction for run in shares})
    for features in dict.fromkeys(run.features for run in shares):
        names = {run.name for run in shares if run.features == features}
        for labelled in sorted(
            name for name in names if name.startswith("xclp") and name.endswith("labelled")
        ):
            everything = labelled.removesuffix("_labelled")
            alone, alone_labelled = (
                f"per_client_lp{name.removeprefix('xclp')}" for name in (everything, labelled)
            )
            statements = [
                ("T1", labelled, alone_labelled),
                ("T1", labelled, "network"),
                ("T3", everything, labelled),
            ]
            for label, one, other in [*statements, ("T6", everything, alone)]:
                if other in names:
                    gains = [
                        _gain(shares, features, one, other, fraction).mean()
                        for fraction in fractions
                    ]
                    held = sum(gain > 0 for gain in gains)
                    points = ", ".join(
                        f"{100 * gain:+.1f} at {fraction:.0%}"
                        for gain, fraction in zip(gains, fractions, strict=True)
                    )
                    yield f"{label}, {features}: {one} above {other} for {held} of {len(fractions)} shares ({points})"
    for name in dict.fromkeys(run.name for run in left_out if run.name != "network"):
        by_client = {(run.name, run.left_out): run.accuracy for run in left_out}
        clients = sorted({client for _, client in by_client})
        better = sum(by_client[name, client] > by_client["network", client] for client in clients)
        equal = sum(by_client[name, client] == by_client["network", client] for client in clients)
        yield f"T2: {name} above FedAvg's network for {better} of {len(clients)} left-out clients, equal for {equal}"


def _accuracies(runs: list[Run], features: str, name: str, fraction: float) -> np.ndarray:
    return np.array(
        [
            run.accuracy
            for run in runs
            if (run.features, run.name, run.fraction) == (features, name, fraction)
        ]
    )


def _gain(runs: list[Run], features: str, one: str, other: str, fraction: float) -> np.ndarray:
    return _accuracies(runs, features, one, fraction) - _accuracies(runs, features, other, fraction)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, "prediction_table", 5)
    parser.add_argument("config", type=Path, help="a configs/..._predict.py")
    parser.add_argument(
        "--argument", default="", help='rest of the config\'s argument, for example ",glyphs"'
    )
    parser.add_argument("--path", help="data.path of the config")
    parser.add_argument(
        "--features", nargs="+", default=["inputs", "network"], help="variants of the config"
    )
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.5, 1.0])
    parser.add_argument("--variant", choices=("paper", "code", "both"), default="both")
    parser.add_argument(
        "--left-out", type=int, default=0, help="number of runs that leave out client 0, 1, ..."
    )
    options = parser.parse_args(arguments)
    if not options.config.is_file():
        parser.error(
            f"{options.config} is not a file; configs/digits_predict.py is one, for example"
        )
    if options.seeds < 1 or not all(0 < fraction <= 1 for fraction in options.fractions):
        parser.error("at least one seed, and shares above 0 and up to 1, are needed")
    return options


if __name__ == "__main__":
    sys.exit(main())
