"""Report a federation: a text table and a picture of clients, classes and labels."""

import os
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int

from fedjax_ssl.data.federation.federated_data import FederatedData, real_rows
from fedjax_ssl.data.reading.own import some
from fedjax_ssl.errors import counted
from fedjax_ssl.plotting import use_matplotlib

_BARS = " ▁▂▃▄▅▆▇█"
# Column names in words.
_WEAK = {"coarse": "with a coarse label", "in sets": "in sets with known class shares"}
_DRAWN = 2000  # clients in a picture at most
_NAMED = 60  # clients in a picture with their names, at most
_COLORS = {
    "examples": "lightsteelblue",
    "coarse": "mediumorchid",
    "in sets": "mediumseagreen",
    "labelled": "darkorange",
    "held out": "darkgrey",
}
# Grey, for parts of a picture that must be readable on white and on black.
_GREY: Any = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


def counts_by_kind(data: FederatedData) -> dict[str, Int[np.ndarray, "C K1"]]:
    """Count examples by client and true class; the last column is for examples without a class.

    Args:
        data: one federation, not traced.

    Returns:
        "examples" (all), "labelled", and if there are any, "coarse" and "in sets".
    """
    index = np.asarray(data.index)
    width = data.num_classes + 1
    there = np.arange(index.shape[1]) < np.asarray(data.num_examples)[:, None]
    cells = np.arange(data.num_clients)[:, None] * width + np.asarray(data.labels)[index] % width
    chosen = {"examples": there}
    if data.weak is not None:
        weak = there & (np.asarray(data.weak.labels) >= 0)
        sets = np.asarray(data.weak.from_sets)[:, None]
        kinds = {"coarse": weak & ~sets, "in sets": weak & sets}
        chosen |= {what: mask for what, mask in kinds.items() if mask.any()}
    labelled = np.arange(index.shape[1]) < np.asarray(data.num_labelled)[:, None]
    chosen["labelled"] = there & labelled & (np.asarray(data.observed)[index] >= 0)
    return {
        what: np.bincount(cells[mask], minlength=data.num_clients * width).reshape(-1, width)
        for what, mask in chosen.items()
    }


def report(
    data: FederatedData,
    class_names: Sequence[str],
    client_names: Sequence[str] | None = None,
    max_rows: int = 20,
) -> str:
    """Return a table of clients with their examples by kind of label, classes, and a small
    histogram over classes.

    Args:
        data: one federation, not traced.
        class_names: K names, printed as the histogram's legend.
        client_names: one name per client, printed after its number unless a name is a number; None:
            numbers alone.
        max_rows: clients printed one by one; minimum, median and maximum always cover all clients.

    Returns:
        Text of several lines.
    """
    counts = counts_by_kind(data)
    by_class = counts["examples"][:, :-1]
    columns = {
        "examples": np.asarray(data.num_examples),
        "labelled": np.asarray(data.num_labelled),
        "classes": (by_class > 0).sum(1),
        "of them labelled": (counts["labelled"][:, :-1] > 0).sum(1),
        **{what: counts[what].sum(1) for what in _WEAK if what in counts},
    }
    if "in sets" in columns:
        sets = np.asarray(data.weak.num_observations)  # type: ignore[union-attr]
        columns["sets"] = np.where(columns["in sets"] > 0, sets, 0)
    names = list(client_names or map(str, range(data.num_clients)))
    # A client is shown by its name alone if names are numbers.
    if not any(name.isdecimal() for name in names):
        names = [f"{number} {name}" for number, name in enumerate(names)]
    values = np.stack(list(columns.values()), axis=1)
    shown = min(max_rows, data.num_clients)
    legend = ", ".join(class_names)
    if len(class_names) > 10:
        legend = f"{class_names[0]}, {class_names[1]}, ..., {class_names[-1]}"
    rows = [
        ("client", *columns, f"histogram over {data.num_classes} classes: {legend}"),
        *(
            (names[client], *map(str, values[client]), _histogram(by_class[client]))
            for client in range(shown)
        ),
        *(
            (name, *(f"{value:.10g}" for value in measure(values, axis=0)), "")
            for name, measure in (("min", np.min), ("median", np.median), ("max", np.max))
        ),
    ]
    widths = [max(map(len, cells)) for cells in list(zip(*rows, strict=True))[:-1]]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:]), row[-1]]
        ).rstrip()
        for row in rows
    ]
    if shown < data.num_clients:
        lines.insert(-3, f"... {data.num_clients - shown} more clients")
    lines.insert(-3, "-" * (sum(widths) + 2 * (len(widths) - 1)))
    return "\n".join([_summary(data, counts), "", *lines])


def _summary(data: FederatedData, counts: dict[str, Int[np.ndarray, "C K1"]]) -> str:
    """Return a line with the numbers of examples by place, and by kind of label."""
    summary = data.summary()
    weak = "".join(
        f", {counts[what].sum()} {words}" for what, words in _WEAK.items() if what in counts
    )
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
    return text


def _histogram(counts: Int[np.ndarray, " K"]) -> str:
    """Return one character per class: blank for none, higher for more; any number above zero is
    visible.
    """
    height = np.ceil(counts / max(counts.max(), 1) * (len(_BARS) - 1)).astype(int)
    return "|" + "".join(_BARS[level] for level in height) + "|"


def untested(
    data: FederatedData, class_names: Sequence[str], client_names: Sequence[str]
) -> list[str]:
    """Find classes and clients without a test example, and classes without a validation example, if
    others have some, a sentence each.

    Args:
        data: one federation, not traced.
        class_names: K names.
        client_names: C names.
    """
    rows = real_rows(data.test_index, data.num_test)
    found = lacking("class", class_names, np.asarray(data.labels)[rows])
    if data.owned_test:
        clients = list(client_names)[: data.num_clients]
        found += lacking("client", clients, real_rows(data.test_client, data.num_test))
    chosen = np.asarray(data.labels)[real_rows(data.valid_index, data.num_valid)]
    return found + lacking("class", class_names, chosen, "validation")


_LEFT_OUT = {
    ("class", "test"): ("classes", "not tested: what is said of the test leaves it out"),
    ("client", "test"): ("clients", "means over clients leave it out"),
    ("class", "validation"): ("classes", "the choice of a round leaves it out"),
}


def lacking(
    what: str, names: Sequence[str], tested: Int[np.ndarray, " t"], kind: str = "test"
) -> list[str]:
    """Return a sentence about classes or clients without a test example, if others have some;
    otherwise "".

    Args:
        what: "class" or "client".
        names: names of all classes or clients.
        tested: class or client of each test example; -1 and numbers without a name do not count.
        kind: "test" or "validation".
    """
    counts = np.bincount(tested[(tested >= 0) & (tested < len(names))], minlength=len(names))
    without = np.flatnonzero(counts == 0)
    if not 0 < len(without) < len(names):
        return []
    several, so = _LEFT_OUT[what, kind]
    told = f"{counted(len(without), what, several)} without a {kind} example"
    return [f"{told} ({some(without, names)}): {so}"]


def plot_partition(
    data: FederatedData,
    path: str | os.PathLike[str] | BinaryIO,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
) -> None:
    """Draw client x class counts as circles, area ~ examples, and save the picture.

    Examples with a weak label or a class label are filled in, each in a colour. After the clients
    come the server and held-out examples, on a separate scale. Examples without a true label have a
    row of their own. The background is transparent.

    Args:
        data: one federation, not traced.
        path: where to save; the ending decides the format (.png, .pdf, .svg). A file that is open
            gets a PNG.
        class_names: K names for the axis; None: class numbers.
        client_names: names for the other axis, if there is room; None: client numbers.
    """
    use_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = counts_by_kind(data)
    labels = np.asarray(data.labels)
    width = data.num_classes + 1
    held_out = [
        real_rows(data.valid_index, data.num_valid),
        real_rows(data.test_index, data.num_test),
    ]
    beside = {
        "labelled": ("server", real_rows(data.server_index, data.num_server)),
        "held out": ("held out", np.concatenate(held_out)),
    }
    # Clients at even distances.
    number = min(data.num_clients, _DRAWN)
    drawn = np.unique(np.linspace(0, data.num_clients - 1, number).astype(int))
    classes = [*(class_names or map(str, range(data.num_classes))), "no class"]
    # Beyond some 100 clients, circles would be dots, so the figure stops growing.
    size = min(5 + 0.3 * len(drawn), 24), min(3 + 0.3 * len(classes), 18)
    spacing = 72 * min((size[0] - 2) / (len(drawn) + 3), (size[1] - 3) / len(classes), 0.32)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    with rc_context(dict.fromkeys(_GREY, "#808080")):
        axes = figure.add_subplot()

        def circles(table: np.ndarray, first: int, what: str, largest: int, words: str) -> None:
            column, row = np.nonzero(table)
            area = spacing**2 * table[column, row] / max(largest, 1)
            axes.scatter(first + column, row, s=area, color=_COLORS[what], linewidths=0)
            # A fixed size: the scatter's legend would be as large as its first circle.
            axes.plot([], [], "o", color=_COLORS[what], label=words)

        most = int(counts["examples"].max())
        for what, table in counts.items():
            # A weak label's circle also covers the labelled ones, which are drawn on top.
            filled = table + counts["labelled"] if what in _WEAK else table
            words = f"{table.sum():,} {_WEAK.get(what, what)}"
            circles(filled[drawn], 0, what, most, words)
        ticks = dict(enumerate(client_names or map(str, drawn))) if number <= _NAMED else {}
        ticks = {place: name for place, name in ticks.items() if place < number}
        place = number
        for what, (name, rows) in beside.items():
            if len(rows):
                place += 1
                ticks[place] = name
                table = np.bincount(labels[rows] % width, minlength=width)[None]
                circles(table, place, what, int(table.max()), f"{len(rows):,} {name}")
        axes.set(xlabel="client", ylabel="class", xlim=(-1, place + 1))
        axes.set_ylim(len(classes) - 0.2, -0.8)
        if len(classes) <= 100:
            axes.set_yticks(range(len(classes)), classes)
        axes.set_xticks([*ticks], [*ticks.values()], rotation=90)
        title = f"largest circle: {most:,} examples of a client"
        if number < data.num_clients:
            title += f"; {number:,} of {data.num_clients:,} clients"
        figure.legend(loc="outside upper left", ncols=3, frameon=False, title=title)
        figure.savefig(path, dpi=120, transparent=True)
