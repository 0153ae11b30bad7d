"""Draws test accuracy over the rounds beside that of labels only, from what all_methods.py leaves.

    python experiments/all_methods.py --methods fedavg protofssl fedmatch --evaluations 20 --output runs/digits
    python experiments/labels_only.py runs/digits="digits, 5 labels at each writer" runs/mnist=MNIST

A panel per folder; of every method a line, the mean over the seeds, and a band of one sample
standard deviation. The dashed line is fedavg after its last round. Several folders, after a comma,
share a panel: FOLDER,FOLDER=TITLE; lines of the second one and later are named after their folder
too.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas

BASELINE = "fedavg"
COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def main(arguments: list[str] | None = None) -> None:
    """Draws the picture.

    Args:
        arguments: command line without the program's name; that of the process by default.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "panels", nargs="+", metavar="FOLDER=TITLE", help="output folders of all_methods.py"
    )
    parser.add_argument("--output", type=Path, default=Path("labels_only.png"), help="the picture")
    options = parser.parse_args(arguments)
    figure = Figure(figsize=(4.2 * len(options.panels), 3.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(
        figure.subplots(1, len(options.panels), squeeze=False)[0], options.panels, strict=True
    ):
        folders, _, title = panel.partition("=")
        draw(axes, curves([Path(folder) for folder in folders.split(",")]))
        axes.set_title(title, fontsize=10)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output)
    print(options.output)


def curves(folders: list[Path]) -> pandas.DataFrame:
    """Reads mean and sample standard deviation over the seeds in percent; columns method, round,
    mean, std.
    """
    parts = []
    for number, folder in enumerate(folders):
        part = pandas.read_csv(folder / "all_methods_curves.csv")
        part = part[~part.method.str.contains(",")]  # without the bound, which knows every label
        if number:
            part = part[part.method != BASELINE].assign(method=part.method + f" ({folder.name})")
        parts.append(part)
    grouped = (100 * pandas.concat(parts).set_index(["method", "round"]).accuracy).groupby(
        level=[0, 1], sort=False
    )
    return grouped.agg(["mean", "std"]).reset_index()


def draw(axes: Any, found: pandas.DataFrame) -> None:
    """Draws one panel."""
    for color, (method, line) in zip(COLORS, found.groupby("method", sort=False), strict=False):
        axes.plot(line["round"], line["mean"], color=color, label=method, linewidth=1.5)
        axes.fill_between(
            line["round"],
            line["mean"] - line["std"],
            line["mean"] + line["std"],
            color=color,
            alpha=0.15,
        )
        if method == BASELINE:
            axes.axhline(line["mean"].iloc[-1], color=color, linestyle="--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("rounds")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
