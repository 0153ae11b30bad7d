"""Report a federation: a text table and a picture of who has which classes and labels."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fedjax_ssl.data.federation.federated_data import FederatedData

_BARS = " ▁▂▃▄▅▆▇█"
# columns in words
_WEAK = {"coarse": "with a coarse label", "in sets": "in sets with known class shares"}
_DRAWN = 2000  # clients in a picture at most
_COLORS = {"examples": "lightsteelblue", "labelled": "darkorange"}
# Parts of a picture in a grey that is read on white and on black.
_GREY: Any = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


def class_counts(data: FederatedData) -> tuple[Int[np.ndarray, "C K"], Int[np.ndarray, "C K"]]:
    """Count examples per client and true class on the host.

    Args:
        data: one federation, not traced.

    Returns:
        All examples and the labelled ones; examples without a true label are in neither.
    """
    index = np.asarray(data.index)
    sizes = np.asarray(data.num_examples)
    true = np.where(np.arange(index.shape[1]) < sizes[:, None], np.asarray(data.labels)[index], -1)

    cells = np.arange(data.num_clients)[:, None] * data.num_classes + true

    def count(chosen: np.ndarray) -> np.ndarray:
        counted = np.bincount(
            cells[chosen & (true >= 0)], minlength=data.num_clients * data.num_classes
        )
        return counted.reshape(data.num_clients, data.num_classes)

    return count(true >= 0), count(np.asarray(data.observed_by_clients) >= 0)


def report(
    data: FederatedData,
    class_names: Sequence[str],
    client_names: Sequence[str] | None = None,
    max_rows: int = 20,
) -> str:
    """Return a table of clients with examples, labelled examples, classes and a small histogram
    over classes.

    Where clients have weak labels, also with the examples that have a coarse label, those in sets,
    and the sets.

    Args:
        data: one federation, not traced.
        class_names: K names, printed as the histogram's legend.
        client_names: one name per client, printed behind its number unless one is a number; None:
            numbers alone.
        max_rows: clients printed one by one; minimum, median and maximum always cover all clients.

    Returns:
        Text of several lines.

    Raises:
        ValueError: the number of names does not fit the data.
    """
    if len(class_names) != data.num_classes:
        raise ValueError(
            f"class_names has {len(class_names)} names, the data have {data.num_classes} classes"
        )
    if client_names is not None and len(client_names) != data.num_clients:
        raise ValueError(
            f"client_names has {len(client_names)} names, the data have {data.num_clients} clients"
        )
    counts, labelled_counts = class_counts(data)
    columns = {
        "examples": np.asarray(data.num_examples),
        "labelled": np.asarray(data.num_labelled),
        "classes": (counts > 0).sum(1),
        "of them labelled": (labelled_counts > 0).sum(1),
        **_weak_columns(data),
    }
    names = list(client_names or map(str, range(data.num_clients)))
    shown = min(max_rows, data.num_clients)
    by_name = any(name.isdecimal() for name in names)
    if not by_name:  # otherwise it is by its name alone that a client is named
        names = [f"{number} {name}" for number, name in enumerate(names[:shown])]
    header = ("client", *columns)
    values = np.stack(list(columns.values()), axis=1)
    rows = [
        (names[client], *map(str, values[client]), _histogram(counts[client]))
        for client in range(shown)
    ]
    aggregates = (("min", np.min), ("median", np.median), ("max", np.max))
    footer = [
        (name, *(f"{value:.10g}" for value in measure(values, axis=0)), "")
        for name, measure in aggregates
    ]
    widths = [
        max(len(row[column]) for row in [header, *rows, *footer]) for column in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        numbers = (
            cell.rjust(width)
            for cell, width in zip(cells[1 : len(header)], widths[1:], strict=True)
        )
        return "  ".join([cells[0].ljust(widths[0]), *numbers, *cells[len(header) :]]).rstrip()

    summary = data.summary()
    known = {words: columns[name].sum() for name, words in _WEAK.items() if name in columns}
    weak = "".join(f", {count} {words}" for words, count in known.items())
    text = (
        f"{summary['clients']} clients ({summary['labelled_clients']} with labels), "
        f"{summary['train_examples']} training examples, {summary['labelled_examples']} labelled"
        f"{weak}; server {summary['server_examples']}, validation "
        f"{summary['validation_examples']}, test {summary['test_examples']}"
    )
    if "labelled_test_examples" in summary:
        text += f" ({summary['labelled_test_examples']} with a label)"
    if summary["unused_examples"]:
        text += f"; {summary['unused_examples']} examples are in none of these"
    if "examples_dealt_twice" in summary:
        text += f"; {summary['examples_dealt_twice']} are dealt twice"
    if data.num_parts > 1:
        text += f"; unlabelled ones come in {data.num_parts} parts, one in a round"
    legend = f"histogram over {data.num_classes} classes: {_abbreviated(class_names)}"
    lines = [text, "", line((*header, legend)), *map(line, rows)]
    if shown < data.num_clients:
        lines.append(f"... {data.num_clients - shown} more clients")
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([*lines, rule, *map(line, footer)])


def _weak_columns(data: FederatedData) -> dict[str, Int[np.ndarray, " C"]]:
    """Numbers of the weak labels that there are, by column of the table."""
    if data.weak is None:
        return {}
    known = np.asarray(data.weak.num_examples)
    sets = np.asarray(data.weak.from_sets)
    columns = {"coarse": np.where(sets, 0, known), "in sets": np.where(sets, known, 0)}
    columns["sets"] = np.where(columns["in sets"] > 0, np.asarray(data.weak.num_observations), 0)
    return {name: column for name, column in columns.items() if column.any()}


def plot_partition(
    data: FederatedData,
    path: str | os.PathLike[str],
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
) -> None:
    """Draws client x class counts as circles, area ~ examples, with the labelled ones filled in,
    and saves the picture.

    Examples without a true label have a row of their own. The background is transparent.

    Args:
        data: one federation, not traced.
        path: where to save; the ending decides the format (.png, .pdf, .svg).
        class_names: K names for the axis; None: class numbers.
        client_names: C names for the other axis, where there is room for them; None: client
            numbers.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts, labelled = class_counts(data)
    names = list(class_names or map(str, range(data.num_classes)))
    if (unknown := np.asarray(data.num_examples) - counts.sum(1)).any():
        counts = np.column_stack([counts, unknown])
        names = [*names, "no label"]
    num_clients, num_classes = counts.shape
    # evenly spaced
    drawn = np.unique(np.linspace(0, num_clients - 1, min(num_clients, _DRAWN)).astype(int))
    # Beyond some 100 clients circles would be dots, so the figure stops growing and they shrink.
    figure = Figure(
        figsize=(min(4 + 0.3 * num_clients, 24), min(2 + 0.3 * num_classes, 18)),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    spacing = 72 * min(
        (figure.get_figwidth() - 2) / len(drawn), (figure.get_figheight() - 1.5) / num_classes, 0.35
    )
    largest = max(int(counts[drawn].max()), 1)
    title = f"largest circle: {largest:,}" + f"; {len(drawn):,} of {num_clients:,} clients" * (
        len(drawn) < num_clients
    )
    with rc_context(dict.fromkeys(_GREY, "#808080")):
        axes = figure.add_subplot()
        for (what, color), table in zip(_COLORS.items(), (counts, labelled), strict=True):
            clients, classes = np.nonzero(table[drawn])
            area = spacing**2 * table[drawn[clients], classes] / largest
            axes.scatter(drawn[clients], classes, s=area, color=color, linewidths=0)
            # Its own size: the scatter's would be as large as its first circle.
            axes.plot([], [], "o", color=color, label=f"{int(table.sum()):,} {what}")
        axes.set(
            xlabel="client", ylabel="class", xlim=(-1, num_clients), ylim=(num_classes - 0.2, -0.8)
        )
        if num_classes <= 100:
            axes.set_yticks(range(num_classes), names)
        if num_clients <= 60:
            axes.set_xticks(
                range(num_clients), client_names or [*map(str, range(num_clients))], rotation=90
            )
        figure.legend(loc="outside upper left", ncols=2, frameon=False, title=title)
        figure.savefig(path, dpi=120, transparent=True)


def _histogram(counts: Int[np.ndarray, " K"]) -> str:
    """One character per class: blank for none, higher for more; anything above zero is visible."""
    height = np.ceil(counts / max(counts.max(), 1) * (len(_BARS) - 1)).astype(int)
    return "|" + "".join(_BARS[level] for level in height) + "|"


def _abbreviated(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 10 else f"{names[0]}, {names[1]}, ..., {names[-1]}"
