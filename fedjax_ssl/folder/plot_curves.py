"""curves.png: how a run went, in at most four panels."""

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fedjax_ssl.errors import counted
from fedjax_ssl.plotting import use_matplotlib


class _Panel(NamedTuple):
    title: str
    unit: str
    wants: Callable[[str], bool]


_PANELS = (
    _Panel(
        "Accuracy",
        "%",
        lambda name: name.endswith("accuracy") and not name.startswith("pseudo_label"),
    ),
    _Panel("Loss", "nats", lambda name: name.endswith("loss")),
    _Panel(
        "Pseudo-labels",
        "%",
        lambda name: name in ("pseudo_label_accuracy", "pseudo_label_coverage"),
    ),
    _Panel("Sent so far, all clients", "B", lambda name: name in ("bytes_up", "bytes_down")),
)
# Okabe and Ito's palette: told apart by colour-blind readers too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot_curves(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike | BinaryIO,
    *,
    title: str = "",
    stages: Sequence[int] = (),
    validation: int | None = None,
) -> None:
    """Draw the metric rows: accuracies, losses, pseudo-labels and bytes, each where the rows have
    them.

    Columns are found by name: "..._accuracy", "..._loss", "pseudo_label_accuracy",
    "pseudo_label_coverage", "bytes_up" and "bytes_down". Bytes are those since the row before and
    are drawn summed up. Elsewhere a value that is missing or not finite leaves a gap. Columns of
    equal values share a curve, and of curves that meet, each is thinner than those below it.

    Args:
        rows: metric rows with "round".
        path: the PNG file, or a file that is open.
        title: one line above the panels, for example method and data set.
        stages: rounds after which another stage of training begins; a dotted line each.
        validation: how many examples the validation scores rest on, for the legend.

    Raises:
        ValueError: there is nothing to draw.
    """
    import pandas  # not at the top, as matplotlib: folders are opened without them

    table = pandas.DataFrame(rows, dtype=object).apply(pandas.to_numeric, errors="coerce")
    table = table.replace([math.inf, -math.inf], math.nan).dropna(axis=1, how="all")
    drawn = [(panel, columns) for panel in _PANELS if (columns := list(filter(panel.wants, table)))]
    if not drawn:
        raise ValueError(
            f"{len(rows)} metric rows without a finite accuracy, loss or byte count: no curves to "
            "draw"
        )
    # Without pyplot there is no global state and no display: the figure is drawn by Agg and
    # forgotten.
    use_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, MaxNLocator

    across = min(2, len(drawn))
    down = math.ceil(len(drawn) / across)
    # Margins are given, in inches: to have them found would draw everything twice, in every run of
    # a sweep.
    width = 5.6 * across
    height = 3.4 * down + 0.4
    figure = Figure(figsize=(width, height), dpi=130)
    figure.subplots_adjust(
        **{
            "left": 0.75 / width,
            "right": 1 - 0.2 / width,
            "bottom": 0.5 / height,
            "top": 1 - 0.75 / height,
        },
        **{"wspace": 0.18, "hspace": 0.32},
    )
    canvas = FigureCanvasAgg(figure)
    for position, (panel, columns) in enumerate(drawn, start=1):
        axes = figure.add_subplot(down, across, position)
        scale = 100.0 if panel.unit == "%" else 1.0
        curves = _together(table[columns])
        widths = np.linspace(min(0.5 + 0.9 * len(curves), 4.4), 1.4, len(curves))
        for color, width, names in zip(itertools.cycle(_COLORS), widths, curves, strict=False):
            points = table[names[0]]
            values = points.fillna(0).cumsum() if panel.unit == "B" else scale * points
            axes.plot(
                table["round"],
                values,
                color=color,
                marker="o" if len(points) <= 25 else "",
                markersize=2 + width,
                linewidth=width,
                label=" = ".join(_label(name, validation) for name in names),
            )
        for number in stages:
            axes.axvline(number, color="grey", linewidth=1, linestyle=":", label="next stage")
        axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold")
        axes.set_xlabel("round")
        axes.set_xlim(0, 1.02 * table["round"].max())  # the same for all panels
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if panel.unit == "B":
            axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
            axes.set_ylim(bottom=0)
        else:
            axes.set_ylabel(panel.unit)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))  # each once
        axes.legend(handles.values(), handles.keys(), frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    canvas.print_png(path)


def _together(table: Any) -> list[list[str]]:
    """Group columns of equal values."""
    groups: list[list[str]] = []
    for name in table:
        same = next((group for group in groups if table[group[0]].equals(table[name])), None)
        if same is None:
            groups.append([name])
        else:
            same.append(name)
    return groups


def _label(name: str, validation: int | None) -> str:
    known = {"bytes_up": "clients to server", "bytes_down": "server to clients"}
    label = known.get(name, name.removeprefix("pseudo_label_").replace("_", " "))
    if validation is None or not name.startswith("validation_"):
        return label
    return f"{label} ({counted(validation, 'example')})"
