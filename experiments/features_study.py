"""Draws the study of docs/features.md from its sweeps: accuracy by labels of a class, and a table.

    python experiments/features_study.py runs/features/* --output docs/images/features.png

Every sweep has its own method or partition, and supervision.labels with several values. A run's
method is a row, and so is each predictor of `prediction.predictors`. Cells are the mean over the
seeds and half of its 95 % t interval; seconds are those of the fastest run, without compiling for
what is trained; bytes go up.
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
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="of the picture; all by default")
    options = parser.parse_args(arguments)
    found = pandas.DataFrame([row for sweep in options.sweeps for row in rows_of(sweep)])
    panels = list(found.groupby("partition", sort=False))
    for partition, part in panels:
        print(f"\n{partition}\n{table(part)}")
    if options.output is None:
        return
    if options.rows:
        panels = [(name, part[part.row.isin(options.rows)]) for name, part in panels]
    figure = Figure(figsize=(4.2 * len(panels), 3.6), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    shown = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (partition, part) in zip(shown, panels, strict=True):
        draw(axes, part)
        axes.set_title(partition, fontsize=10)
    shown[0].set_ylabel("new examples that are labelled right, %")
    shown[0].legend(frameon=False, fontsize=8)
    figure.savefig(options.output)


def rows_of(sweep: Path) -> Iterator[dict[str, Any]]:
    """Reads a row for each run, and for each predictor of it."""
    for file in sorted(sweep.glob("runs/*/summary.json")):
        summary = json.loads(file.read_text())
        config = json.loads((file.parent / "config.json").read_text())
        shared = {
            "partition": config["partition"]["name"],
            "labels": config["supervision"]["labels"],
            "seed": config["seed"],
        }
        yield shared | {
            "row": config["method"]["name"],
            "accuracy": summary["test_accuracy"],
            "seconds": summary["train_seconds"],
            "bytes": summary["bytes_up"],
        }
        for one in summary.get("predictions", ()):
            if one["predictor"] != "network":
                yield shared | {
                    "row": f"{one['predictor']}, one shot",
                    "accuracy": one["accuracy"],
                    "seconds": one["seconds"],
                    "bytes": one.get("protocol_bytes", 0),
                }


def summed_up(found: pandas.DataFrame) -> pandas.DataFrame:
    """Takes means over the seeds, in percent, with half of their interval."""
    grouped = (100 * found.set_index(["row", "labels"]).accuracy).groupby(level=[0, 1], sort=False)
    both = grouped.agg(["mean", "sem", "count"]).reset_index()
    return both.assign(half=both["sem"] * stats.t.ppf((1 + LEVEL) / 2, both["count"] - 1))


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
        written.append(
            [row, *shown, f"{runs.seconds.min():.1f}", f"{sent.min():.1f} to {sent.max():.1f} MB"]
        )
    return markdown(["", *map(str, counts), "seconds", "sent up"], written)


def draw(axes: Any, found: pandas.DataFrame) -> None:
    """Draws the rows of one partition."""
    both = summed_up(found).sort_values("labels", kind="stable")
    for color, (row, line) in zip(COLORS, both.groupby("row", sort=False), strict=False):
        ends = line["mean"] - line["half"], line["mean"] + line["half"]
        axes.plot(line.labels, line["mean"], color=color, marker="o", markersize=3, label=row)
        axes.fill_between(line.labels, *ends, color=color, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    counts = sorted(found.labels.unique())
    axes.set_xticks(counts, counts)
    axes.set_xlabel("labels of a class, in all")
    axes.grid(alpha=0.25)


if __name__ == "__main__":
    main()
