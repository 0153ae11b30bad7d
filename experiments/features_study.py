"""Draws the study of docs/pretrained.md from its sweeps: accuracy by labels of a class, and a table.

    python experiments/features_study.py runs/lite0 runs/fedavg_zero --output features.png

A method with its rounds and local steps is a row, and so is each predictor of
`prediction.predictors`; a sweep has some of a row's numbers of labels, 0 where clients know class
shares alone. Two runs of one row, number of labels and seed are refused: they differ in what no row
tells, as in the learning rate. Cells are the mean over the seeds and half of its 95 % t interval;
local steps are those of all clients together; seconds are those of the fastest run, without
compiling for what is trained; bytes go up. `--against ROW` adds differences from a row, over the
seeds that both have.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas
from scipy import stats
from tables import markdown

LEVEL = 0.95
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666", "#000000")


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables and draws the picture.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="FOLDER", help="folders of sweeps")
    parser.add_argument("--output", type=Path, help="the picture; none by default")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="of the picture; eight at most")
    parser.add_argument("--against", metavar="ROW", help="differences from this row, in points")
    options = parser.parse_args(arguments)
    found = pandas.DataFrame([row for sweep in options.sweeps for row in rows_of(sweep)])
    refuse_twice(found)
    panels = list(found.groupby("partition", sort=False))
    for partition, part in panels:
        print(f"\n{partition}\n{table(part)}")
        if options.against:
            apart = differences(part, options.against)
            print(f"\n{partition}, points ahead of {options.against}\n{table(apart)}")
    if options.output is None:
        return
    rows = options.rows or list(found.row.unique())
    figure = Figure(figsize=(4.2 * len(panels) + 2.4, 3.6), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    shown = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (partition, part) in zip(shown, panels, strict=True):
        draw(axes, part, rows)
        axes.set_title(partition, fontsize=10)
    shown[0].set_ylabel("new examples that are labelled right, %")
    lines = {line.get_label(): line for axes in shown for line in axes.lines}
    figure.legend(
        lines.values(), lines.keys(), loc="outside right upper", frameon=False, fontsize=8
    )
    figure.savefig(options.output)


def rows_of(sweep: Path) -> Iterator[dict[str, Any]]:
    """Reads a row for each run, and for each predictor of it.

    Raises:
        SystemExit: no run of the sweep is complete.
    """
    files = sorted(sweep.glob("runs/*/summary.json"))
    if not files:
        raise SystemExit(f"{sweep} is no folder of a sweep with complete runs")
    for file in files:
        summary = json.loads(file.read_text())
        config = json.loads((file.parent / "config.json").read_text())
        optimizer = config["optimizer"]
        shared = {
            "run": str(file.parent),
            "partition": config["partition"]["name"],
            "labels": config["supervision"]["labels"] or 0,
            "seed": config["seed"],
        }
        work = f"{optimizer['local_steps']} steps"
        if optimizer["local_steps"] is None:
            work = f"{optimizer['local_epochs']} epochs"
        if config["model"].get("start") == "zero":
            work += " from zero"
        yield shared | {
            "row": f"{config['method']['name']}, {config['rounds']} x {work}",
            "steps": summary["local_steps"],
            "accuracy": summary["test_accuracy"],
            "seconds": summary["train_seconds"],
            "bytes": summary["bytes_up"],
        }
        for one in summary.get("predictions", ()):
            if one["predictor"] != "network":
                yield shared | {
                    "row": f"{one['predictor']}, one shot",
                    "steps": 0,
                    "accuracy": one["accuracy"],
                    "seconds": one["seconds"],
                    "bytes": one.get("protocol_bytes", 0),
                }


def refuse_twice(found: pandas.DataFrame) -> None:
    """Refuse two runs that would count as one seed of a row.

    Raises:
        SystemExit: there are such runs; the first two are named.
    """
    cell = ["partition", "row", "labels", "seed"]
    for _, runs in found[found.duplicated(cell, keep=False)].groupby(cell, sort=False):
        one = runs.iloc[0]
        raise SystemExit(
            f"{one.run} and {runs.iloc[1].run} are both {one.row!r} with {one.labels} labels and "
            f"seed {one.seed} ({one.partition}), which no row tells apart: leave one out"
        )


def summed_up(found: pandas.DataFrame) -> pandas.DataFrame:
    """Takes means over the seeds, in percent, with half of their interval."""
    grouped = (100 * found.set_index(["row", "labels"]).accuracy).groupby(level=[0, 1], sort=False)
    both = grouped.agg(["mean", "sem", "count"]).reset_index()
    return both.assign(half=both["sem"] * stats.t.ppf((1 + LEVEL) / 2, both["count"] - 1))


def differences(found: pandas.DataFrame, against: str) -> pandas.DataFrame:
    """Subtract a row's accuracy from that of all others, at the same number of labels and seed.

    Raises:
        SystemExit: there is no such row.
    """
    base = found[found.row == against].set_index(["labels", "seed"]).accuracy
    if base.empty:
        raise SystemExit(f"no row is {against!r}; there are {', '.join(found.row.unique())}")
    others = found[found.row != against].join(base.rename("base"), on=["labels", "seed"])
    return others.assign(accuracy=others.accuracy - others.base).dropna(subset="accuracy")


def table(found: pandas.DataFrame) -> str:
    """Writes the rows of one partition as a table."""
    cells = summed_up(found).set_index(["row", "labels"])
    counts = sorted(found.labels.unique())
    written = []
    for row, runs in found.groupby("row", sort=False):
        shown = [
            f"{cells.loc[(row, n), 'mean']:.1f} ± {cells.loc[(row, n), 'half']:.1f}"
            if (row, n) in cells.index
            else "-"
            for n in counts
        ]
        sent = runs.groupby("labels").bytes.mean() / 1e6
        seconds = f"{runs.seconds.min():.1f}"
        steps = f"{runs.steps.min():,} to {runs.steps.max():,}"
        written.append([row, *shown, steps, seconds, f"{sent.min():.1f} to {sent.max():.1f} MB"])
    return markdown(["", *map(str, counts), "local steps", "seconds", "sent up"], written)


def draw(axes: Any, found: pandas.DataFrame, rows: Sequence[str]) -> None:
    """Draws these rows of one partition, each in its color, those that are there."""
    both = summed_up(found).sort_values("labels", kind="stable").set_index("row")
    for color, row in zip(COLORS, rows, strict=False):
        line = both[both.index == row]
        if line.empty:
            continue
        ends = line["mean"] - line["half"], line["mean"] + line["half"]
        if not line.labels.any():  # no labels: the same wherever others have some
            axes.axhline(line["mean"].item(), color=color, linestyle=":", label=row)
            continue
        axes.plot(line.labels, line["mean"], color=color, marker="o", markersize=3, label=row)
        axes.fill_between(line.labels, *ends, color=color, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    counts = sorted(found.labels[found.labels > 0].unique())
    axes.set_xticks(counts, counts)
    axes.set_xlabel("labels of a class, in all")
    axes.grid(alpha=0.25)


if __name__ == "__main__":
    main()
