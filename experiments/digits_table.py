"""Every method on the embedded digits, with 1, 2, 5 and 10 labels per writer: a table and a plot.

    python experiments/digits_table.py                                # all methods, 5 seeds
    python experiments/digits_table.py --methods fedavg xclp --labels 5 --seeds 2 --rounds 6

Eleven writers train and three that were never seen are the test. Which ones, which digits keep
their label, and everything else follows from the seed: seed s of the table is `--config.seed=s` of
the command line. One method at one number of labels is one compiled program that runs all seeds at
once. `fedavg` with all labels is the upper bound.

Leaves digits_table.md (means and sample standard deviations over the seeds), digits_table.csv
(every single run) and digits_table.png in the output folder. Measured result: docs/results.md.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tables import MISSING, facts, leave, markdown, parser_of, positive, spread, train_seeds

from fedjax_ssl import config as configs
from fedjax_ssl import folder, methods
from fedjax_ssl.command_line import use_compilation_cache

BASELINE = "fedavg"
CSV = ("method", "labels_per_writer", "seed", "test_accuracy", "pseudo_label_accuracy")
# Okabe and Ito's palette: told apart by colour-blind readers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Cell(NamedTuple):
    """One method at one number of labels per writer; one entry per seed, shares in [0, 1]."""

    method: str
    labels: str  # a number, or "all"
    test_accuracy: np.ndarray  # after the last round
    pseudo_label_accuracy: np.ndarray  # mean of the last rounds; NaN where the method makes none


def main(arguments: list[str] | None = None) -> None:
    """Runs the experiments and writes the files.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    options = _parse(arguments)
    use_compilation_cache()
    jobs = [(method, str(labels)) for labels in options.labels for method in options.methods]
    jobs.append((BASELINE, "all"))
    seeds = list(range(options.seeds))
    begin = time.perf_counter()
    cells = []
    print(
        f"{len(jobs)} experiments of {len(seeds)} seeds each on {folder.device_description()}",
        flush=True,
    )
    for number, (method, labels) in enumerate(jobs, start=1):
        started = time.perf_counter()
        cell = run(method, labels, seeds, options.rounds)
        cells.append(cell)
        pseudo = spread(cell.pseudo_label_accuracy)
        print(
            f"[{number:2}/{len(jobs)}] {method}, labels per writer {labels}: accuracy "
            f"{spread(cell.test_accuracy)} %"
            f"{'' if pseudo == MISSING else f', pseudo-labels {pseudo} %'} "
            f"({time.perf_counter() - started:.0f} s)",
            flush=True,
        )
    notes = facts(time.perf_counter() - begin, options.seeds, options.rounds)
    print(leave(options, "digits_table", [table(cells)], notes, CSV, _rows(cells)))
    plot(cells, options.output / "digits_table.png")
    print(options.output / "digits_table.png")


def run(method: str, labels: str, seeds: list[int], rounds: int | None = None) -> Cell:
    """Trains one method with every seed, in one program.

    Args:
        method: a method that has a config file for the digits.
        labels: labels per writer, or "all".
        seeds: one run each.
        rounds: in place of the config's number; the stage on labels alone then takes half of them,
            as it does there.
    """
    config = configs.load(f"digits_{method}:{labels}")
    if rounds is not None:
        config.rounds = rounds
        if "warmup_rounds" in config.method and config.method.warmup_rounds:
            config.method.warmup_rounds = max(rounds // 2, 1)
    _, metrics = train_seeds(config, seeds)
    last = {name: values[:, -1] for name, values in metrics.items()}
    missing = np.full(len(seeds), math.nan)
    return Cell(method, labels, last["test_accuracy"], last.get("pseudo_label_accuracy", missing))


def table(cells: list[Cell]) -> str:
    """Three tables in Markdown: test accuracy, its gain over labels only with the same seed,
    pseudo-label accuracy.
    """
    by_name = {(cell.method, cell.labels): cell for cell in cells}
    columns = list(dict.fromkeys(cell.labels for cell in cells if cell.labels != "all"))
    names = list(dict.fromkeys(cell.method for cell in cells))
    header = ["labels per writer", *columns]
    nothing = np.full(1, math.nan)

    def rows(
        shares: Callable[[str, str], np.ndarray], of: Iterable[str], sign: str = ""
    ) -> list[list[str]]:
        found = []
        for name in of:
            given = [
                shares(name, column) if (name, column) in by_name else nothing for column in columns
            ]
            found.append([name, *(spread(values, sign) for values in given)])
        return found

    def gain(name: str, column: str) -> np.ndarray:
        base = by_name.get((BASELINE, column))
        return nothing if base is None else by_name[name, column].test_accuracy - base.test_accuracy

    accuracy = rows(lambda *place: by_name[place].test_accuracy, names)
    accuracy.append(
        [
            f"{BASELINE}, all labels",
            *(spread(by_name[BASELINE, "all"].test_accuracy) for _ in columns),
        ]
    )
    gains = rows(gain, [name for name in names if name != BASELINE], sign="+")
    pseudo = rows(lambda *place: by_name[place].pseudo_label_accuracy, names)
    parts = [
        ("Test accuracy on unseen writers, %", accuracy),
        (
            "Gain over labels only with the same seed, percentage points",
            [row for row in gains if set(row[1:]) - {MISSING}],
        ),
        (
            "Accuracy of the pseudo-labels of unlabelled digits, %",
            [row for row in pseudo if set(row[1:]) - {MISSING}],
        ),
    ]
    return "\n\n".join(f"{title}\n\n{markdown(header, rows)}" for title, rows in parts if rows)


def plot(cells: list[Cell], path: Path) -> None:
    """Draws test accuracy against labels per writer, with error bars of one sample standard
    deviation.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = sorted({int(cell.labels) for cell in cells if cell.labels != "all"})
    names = list(dict.fromkeys(cell.method for cell in cells if cell.labels != "all"))
    figure = Figure(figsize=(7.0, 4.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, name in enumerate(names):
        drawn = {
            int(cell.labels): cell.test_accuracy
            for cell in cells
            if cell.method == name and cell.labels != "all"
        }
        # Methods stand beside each other at every number of labels, so that their bars do not hide
        # one another.
        places = [labels * 1.035 ** (number - (len(names) - 1) / 2) for labels in sorted(drawn)]
        axes.errorbar(
            places,
            [100 * drawn[labels].mean() for labels in sorted(drawn)],
            yerr=[_deviation(drawn[labels]) for labels in sorted(drawn)],
            color=COLORS[number % len(COLORS)],
            marker="o",
            markersize=4,
            capsize=3,
            label=name,
        )
    full = next(cell.test_accuracy for cell in cells if cell.labels == "all")
    axes.axhline(
        100 * full.mean(),
        color="0.35",
        linestyle="--",
        linewidth=1,
        label=f"{BASELINE}, all labels",
    )
    axes.axhspan(
        100 * full.mean() - _deviation(full),
        100 * full.mean() + _deviation(full),
        color="0.5",
        alpha=0.15,
        lw=0,
    )
    axes.set_xscale("log")
    axes.set_xticks(columns, [str(labels) for labels in columns])
    axes.minorticks_off()
    axes.set_xlabel("labels per writer")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(
        f"Digits by writer, {len(full)} seeds: mean and standard deviation", loc="left", fontsize=11
    )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path)


def _deviation(shares: np.ndarray) -> float:
    return 100 * float(shares.std(ddof=1)) if len(shares) > 1 else 0.0


def _rows(cells: list[Cell]) -> Iterator[list[Any]]:
    for cell in cells:
        for seed, (accuracy, pseudo) in enumerate(
            zip(cell.test_accuracy, cell.pseudo_label_accuracy, strict=True)
        ):
            yield [
                cell.method,
                cell.labels,
                seed,
                f"{accuracy:.6f}",
                "" if math.isnan(pseudo) else f"{pseudo:.6f}",
            ]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    known = [name for name in methods.available() if _takes_labels(f"digits_{name}")]
    parser = parser_of(__doc__, "digits_table", 5)
    parser.add_argument(
        "--labels", type=positive, nargs="+", default=[1, 2, 5, 10], help="labels per writer"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known)
    )
    parser.add_argument(
        "--rounds",
        type=positive,
        help="in place of the configs' number of rounds, for a quick look",
    )
    return parser.parse_args(arguments)


def _takes_labels(name: str) -> bool:
    """Whether there is such a config and its argument is the number of labels per writer."""
    try:
        section = configs.load(f"{name}:5").supervision
    except configs.ConfigError:
        return False
    return section.labels == 5 and section.name in ("per_client", "per_class")


if __name__ == "__main__":
    main()
