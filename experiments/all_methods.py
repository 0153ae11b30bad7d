"""Every method that fits one federation: same clients, labels, network, seeds, and about as many
local steps.

    python experiments/all_methods.py  # digits by writer, labels at clients
    python experiments/all_methods.py --labels server  # ... at the server
    python experiments/all_methods.py --federation mnist --path mnist.npz  # also: cifar10, glyphs
    python experiments/all_methods.py --methods fedavg fixmatch --seeds 2 --steps 2000
    python experiments/all_methods.py --rounds 100  # as many rounds in place of steps

A method's own settings and its optimizer are those of its config `configs/digits_NAME.py`.
`--optimizer shared` gives plain SGD with one learning rate to all methods but those whose config
has another optimizer than SGD. `--set NAME.FIELD=VALUE` replaces a setting of a method, or any
field of its config, as `fedmatch.optimizer.learning_rate`. Everything else is the federation's. A
method takes as many rounds as use up the local steps of its clients and its server, at least two;
two stages have half of them each. Two rounds of one seed count the steps, then one compiled program
runs all seeds. With `--rounds` all take as many rounds, and methods that send the whole network
both ways send as much. "fedavg, all labels" knows every label. Methods that do not fit the
federation are listed with the reason.

Leaves all_methods.md, .csv (every single run), .png (accuracy against bytes) and
all_methods_curves.csv (accuracy at every evaluation) in the output
folder, rewritten after every method.
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
import pandas
from tables import MISSING, facts, leave, markdown, parser_of, positive, spread, train_seeds

from fedjax_ssl import config as configs
from fedjax_ssl import folder, methods, presets
from fedjax_ssl.command_line import use_compilation_cache
from fedjax_ssl.runs.advice import check_labels, check_weighting
from fedjax_ssl.runs.build import build, federate, load_experiment

BASELINE = "fedavg"
BOUND = "fedavg, all labels"
MEASURED = ("accuracy", "best", "pseudo", "down", "up", "steps")

LEGEND = (
    "accuracy: on the test set after the last round; best: of the evaluations; pseudo-labels: "
    "share of right ones in the last rounds; down, up: bytes of the run from and to the server, "
    "relative to fedavg; local steps: of all clients and the server; s: seconds of all seeds, "
    "compiling included"
)


class Row(NamedTuple):
    """One method; one entry per seed."""

    method: str
    rounds: int
    accuracy: np.ndarray  # on the test set after the last round
    best: np.ndarray  # highest of the evaluations
    pseudo: np.ndarray
    # ^ accuracy of pseudo-labels in the last rounds; NaN where the method makes none
    down: np.ndarray  # bytes from the server to clients, whole run
    up: np.ndarray
    steps: np.ndarray  # local steps, whole run
    curve: np.ndarray  # accuracy at every evaluation, [seeds, evaluations]
    evaluated: np.ndarray  # the rounds after which they were, [evaluations]
    seconds: float  # of all seeds, compiling included


class Unfit(Exception):
    """A method that cannot learn from this federation."""


def steps_of_a_round(config: ml_collections.ConfigDict) -> float:
    """Mean local steps of the first two rounds with seed 0: the first one may lack what clients
    upload in it.

    Raises:
        Unfit: the method cannot learn from this federation.
    """
    key = jax.random.key(0)
    try:
        experiment = load_experiment(config)
        federation = federate(experiment, key)
        method = build(experiment, federation).method
        check_labels(config.supervision.name, config.method.name, method, federation)
        check_weighting(config.federated.weighting, method, federation)
    except configs.ConfigError as error:
        raise Unfit(str(error)) from error
    one_round = jax.jit(method.round)
    state, first = one_round(key, jax.jit(method.init)(key, federation), federation)
    _, second = one_round(key, state, federation)
    return max(float(first["local_steps"]), float(second["local_steps"]))


def planned(
    config: ml_collections.ConfigDict,
    steps: int,
    labelled_steps: float,
    rounds: int | None = None,
    evaluations: int = 5,
) -> ml_collections.ConfigDict:
    """The config with as many rounds as use up a number of local steps.

    Args:
        config: of one method.
        steps: local steps of a run, over all clients and the server.
        labelled_steps: local steps of a round of `fedavg`, which is what the first of two stages
            does.
        rounds: of both stages together, in place of steps.
        evaluations: how many, about.

    Raises:
        Unfit: the method cannot learn from this federation, or nobody takes a step.
    """
    two_stages = bool(config.method.get("warmup_rounds"))
    if two_stages:
        config.method.warmup_rounds = 0
    config.rounds = 1000  # what the method plans for in the two rounds that are counted
    per_round = steps_of_a_round(config)
    if not per_round:
        raise Unfit("nobody takes a local step")
    share = steps / 2 if two_stages else steps
    config.rounds = rounds or max(round(share / per_round), 2)
    if two_stages and rounds:
        config.method.warmup_rounds = rounds // 2
    elif two_stages:
        config.method.warmup_rounds = max(round(share / labelled_steps), 1)
        config.rounds += config.method.warmup_rounds
    every = max(config.rounds // evaluations, 1)
    if two_stages:  # the model at the end of stage 1 is evaluated
        every = next(
            number for number in range(every, 0, -1) if config.method.warmup_rounds % number == 0
        )
    config.eval_every = every
    return config


def run(config: ml_collections.ConfigDict, label: str, seeds: list[int]) -> Row:
    """Trains one method with every seed, in one program."""
    begin = time.perf_counter()
    _, metrics = train_seeds(config, seeds)
    accuracy = metrics["test_accuracy"]
    return Row(
        label,
        config.rounds,
        accuracy[:, -1],
        np.max(accuracy, axis=1),
        metrics.get("pseudo_label_accuracy", np.full_like(accuracy, math.nan))[:, -1],
        metrics["bytes_down"].sum(axis=1),
        metrics["bytes_up"].sum(axis=1),
        metrics["local_steps"].sum(axis=1),
        accuracy,
        metrics["round"][0],
        time.perf_counter() - begin,
    )


def main(arguments: list[str] | None = None) -> None:
    """Runs the methods and writes the files.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    options = _parse(arguments)
    use_compilation_cache()
    begin = time.perf_counter()
    seeds = list(range(options.seeds))
    rows = []
    unfit = []
    shared = presets.federation(options.federation, options.labels, options.path, options.count)
    everything = presets.federation(options.federation, "all", options.path)
    jobs = [(name, name, shared) for name in options.methods] + [(BOUND, BASELINE, everything)]
    alike = options.optimizer == "shared"
    labelled_steps = math.nan
    if options.labels != "server":
        labelled_steps = steps_of_a_round(presets.of_method(BASELINE, shared, alike))
    print(
        f"{len(jobs)} methods, {len(seeds)} seeds each, on {folder.device_description()}",
        flush=True,
    )
    for number, (label, name, given) in enumerate(jobs, start=1):
        try:
            config = presets.of_method(name, given, alike)
            config.update_from_flattened_dict(options.set.get(name, {}))
            config = planned(
                config, options.steps, labelled_steps, options.rounds, options.evaluations
            )
            row = run(config, label, seeds)
        except Unfit as reason:
            unfit.append((label, str(reason)))
            print(f"[{number:2}/{len(jobs)}] {label}: does not fit", flush=True)
            continue
        rows.append(row)
        print(
            f"[{number:2}/{len(jobs)}] {label}: accuracy {spread(row.accuracy)} % after "
            f"{row.rounds} rounds ({row.seconds:.0f} s)",
            flush=True,
        )
        notes = facts(time.perf_counter() - begin, options.seeds)
        budget = f"about {options.steps:,} local steps each, in at least two rounds"
        notes[1] = (
            f"{options.seeds} seeds, "
            f"{f'{options.rounds} rounds each' if options.rounds else budget}"
        )
        notes = [LEGEND, *notes, *(f"not run: {name}: {reason}" for name, reason in unfit)]
        text = leave(
            options,
            "all_methods",
            [table(rows)],
            notes,
            ["method", "seed", "rounds", *MEASURED],
            _rows(rows),
        )
        plot(rows, options.output / "all_methods.png")
        curves = pandas.DataFrame(_curves(rows), columns=["method", "seed", "round", "accuracy"])
        folder.write_atomically(
            options.output / "all_methods_curves.csv", curves.to_csv(index=False)
        )
    print(text)


def table(rows: list[Row]) -> str:
    """The methods in Markdown, the best first; bytes relative to those of `fedavg`."""
    base = next((row for row in rows if row.method == BASELINE), None)
    header = [
        "method",
        "accuracy, %",
        "best, %",
        "pseudo-labels, %",
        "down",
        "up",
        "rounds",
        "local steps",
        "s",
    ]
    lines = [
        [
            row.method,
            spread(row.accuracy),
            spread(row.best),
            spread(row.pseudo),
            _relative(row.down, None if base is None else base.down),
            _relative(row.up, None if base is None else base.up),
            str(row.rounds),
            f"{row.steps.mean():,.0f}",
            f"{row.seconds:.0f}",
        ]
        for row in sorted(rows, key=lambda row: -row.accuracy.mean())
    ]
    return markdown(header, lines)


def plot(rows: list[Row], path: Path) -> None:
    """Draws test accuracy against the bytes of a run in both directions, with a bar of one
    standard deviation.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    sending = [row for row in rows if (row.down + row.up).mean() > 0]
    places = [((row.down + row.up).mean() / 1e6, 100 * row.accuracy.mean()) for row in sending]
    colors = ["#D55E00" if row.method in (BASELINE, BOUND) else "#0072B2" for row in sending]
    for row, (megabytes, accuracy), color in zip(sending, places, colors, strict=True):
        bar = 100 * row.accuracy.std(ddof=1) if len(row.accuracy) > 1 else 0.0
        axes.errorbar(megabytes, accuracy, yerr=bar, fmt="o", color=color, markersize=4, capsize=2)
    axes.set_xscale("log")
    axes.set_xlabel("megabytes sent in a run, both ways")
    axes.set_ylabel("test accuracy, %")
    axes.margins(x=0.15)
    axes.grid(alpha=0.25)
    _name(axes, [row.method for row in sending], places, colors)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _name(
    axes: Any, names: list[str], places: list[tuple[float, float]], colors: list[str]
) -> None:
    """Writes a name beside every point, from the top down, each below those in its way."""
    axes.figure.draw_without_rendering()  # decides where points are
    points = axes.transData.transform(places) * 72 / axes.figure.dpi
    written: list[tuple[float, float, float]] = []  # left, right, height, in points of print
    for place in sorted(range(len(names)), key=lambda place: -points[place][1]):
        left, height = points[place] + (5, 3)
        right = left + 4.6 * len(names[place])
        while any(left < r and right > le and abs(height - h) < 9 for le, r, h in written):
            height -= 1
        written.append((left, right, height))
        offset = (5, height - points[place][1])
        axes.annotate(
            names[place],
            places[place],
            xytext=offset,
            textcoords="offset points",
            fontsize=8,
            color=colors[place],
        )


def _rows(rows: list[Row]) -> Iterator[list[Any]]:
    for row in rows:
        for seed in range(len(row.accuracy)):
            values = [float(getattr(row, field)[seed]) for field in MEASURED]
            yield [
                row.method,
                seed,
                row.rounds,
                *("" if math.isnan(value) else value for value in values),
            ]


def _curves(rows: list[Row]) -> Iterator[list[Any]]:
    for row in rows:
        for (seed, place), accuracy in np.ndenumerate(row.curve):
            yield [row.method, seed, int(row.evaluated[place]), float(accuracy)]


def _relative(values: np.ndarray, base: np.ndarray | None) -> str:
    return MISSING if base is None or not base.mean() else f"{values.mean() / base.mean():.2f}"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    known = [name for name in methods.available() if name != "compose"]  # which needs parts
    parser = parser_of(__doc__, "all_methods", 5)
    parser.add_argument(
        "--federation", choices=("digits", "glyphs", "mnist", "cifar10"), default="digits"
    )
    parser.add_argument(
        "--labels",
        choices=("per_client", "per_class", "server"),
        default="per_client",
        help="who has labels",
    )
    parser.add_argument(
        "--count",
        type=positive,
        help="labels of each client, of each class there, or of the server",
    )
    parser.add_argument("--path", help="an .npz file of mnist or cifar10, in place of the download")
    parser.add_argument(
        "--steps", type=positive, default=5000, help="local steps of a run, over all clients"
    )
    parser.add_argument(
        "--rounds", type=positive, help="rounds of a run, in place of a number of local steps"
    )
    parser.add_argument(
        "--evaluations", type=positive, default=5, help="on the test set in a run, about"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known)
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME.FIELD=VALUE",
        help="settings of single methods",
    )
    parser.add_argument(
        "--optimizer",
        choices=("own", "shared"),
        default="own",
        help="of the methods' configs, or one",
    )
    options = parser.parse_args(arguments)
    changes: dict[str, dict[str, Any]] = {}
    for text in options.set:
        place, sign, value = text.partition("=")
        name, dot, field = place.partition(".")
        if not (sign and dot) or name not in known:
            parser.error(f"--set {text!r}: write METHOD.FIELD=VALUE")
        path = field if "." in field else f"method.{field}"
        try:
            read = configs.with_settings(configs.default(name), {path: value})
        except configs.ConfigError as error:
            parser.error(f"--set {text!r}: {error}")
        section, _, last = path.rpartition(".")
        changes.setdefault(name, {})[path] = read[section][last]
    options.set = changes
    return options


if __name__ == "__main__":
    main()
