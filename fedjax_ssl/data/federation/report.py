"""Report a federation: a text table and a picture of who has which classes and labels."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fedjax_ssl.data.federation.federated_data import FederatedData, real_rows
from fedjax_ssl.data.reading.problems import some
from fedjax_ssl.errors import counted
from fedjax_ssl.pictures import use_matplotlib

_BARS = " ▁▂▃▄▅▆▇█"
# columns in words
_WEAK = {"coarse": "with a coarse label", "in sets": "in sets with known class shares"}
_DRAWN = 2000  # clients in a picture at most
_MOST_NEW = 20  # clients that are only tested, up to which each has a column
_COLORS = {
    "examples": "lightsteelblue",
    "coarse": "mediumorchid",
    "in sets": "mediumseagreen",
    "labelled": "darkorange",
    "held out": "darkgrey",
}
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
        cells_of = cells[chosen & (true >= 0)]
        numbers = np.bincount(cells_of, minlength=data.num_clients * data.num_classes)
        return numbers.reshape(data.num_clients, data.num_classes)

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


def untested(
    data: FederatedData, class_names: Sequence[str], client_names: Sequence[str]
) -> list[str]:
    """Find classes and clients without a test example, and classes without a validation example,
    where others have some, a sentence each.

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
    """Find what no test example has where others have some: a sentence, or none.

    Args:
        what: "class" or "client".
        names: of all of them.
        tested: that of each test example; -1, or a number without a name: it does not count.
        kind: "test" or "validation": of which examples.
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
    path: str | os.PathLike[str],
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
) -> None:
    """Draws client x class counts as circles, area ~ examples, and saves the picture.

    Examples with a weak label and those with a class label are filled in, each in a colour. Behind
    the clients stand the server, the validation examples, clients that are only tested, and all
    other test examples, with circles on a scale of their own. Examples without a true label have a
    row. The background is transparent.

    Args:
        data: one federation, not traced.
        path: where to save; the ending decides the format (.png, .pdf, .svg).
        class_names: K names for the axis; None: class numbers.
        client_names: names for the other axis, of all clients or of those that train, where there
            is room for them; None: client numbers.
    """
    use_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_clients = data.num_clients
    labels = np.asarray(data.labels)
    at_clients = _counts_by_kind(data)
    clients = list(client_names or [])
    clients += map(str, range(len(clients), num_clients + data.num_new_clients))
    beside = _beside_the_clients(data, clients[num_clients:])
    width = data.num_classes + 1
    elsewhere = [np.bincount(labels[rows] % width, minlength=width) for rows in beside.values()]
    names = [*(class_names or map(str, range(data.num_classes))), "no class"]
    if not any(one[..., -1].any() for one in [*at_clients.values(), *elsewhere]):
        names.pop()
    # evenly spaced
    drawn = np.unique(np.linspace(0, num_clients - 1, min(num_clients, _DRAWN)).astype(int))
    # where the columns are that follow the clients, behind a gap
    places = num_clients + 1 + np.arange(len(beside)) * max(1, num_clients // 40)
    columns = int(places[-1]) + 1 if len(beside) else num_clients
    # Beyond some 100 clients circles would be dots, so the figure stops growing and they shrink.
    figure = Figure(
        figsize=(min(4 + 0.3 * columns, 24), min(3 + 0.3 * len(names), 18)), layout="constrained"
    )
    FigureCanvasAgg(figure)
    room = (figure.get_figwidth() - 2, figure.get_figheight() - 3)
    spacing = 72 * min(room[0] / (len(drawn) + columns - num_clients), room[1] / len(names), 0.32)
    with rc_context(dict.fromkeys(_GREY, "#808080")):
        axes = figure.add_subplot()

        def circles(table: np.ndarray, at: np.ndarray, what: str, largest: int) -> None:
            column, row = np.nonzero(table)
            area = spacing**2 * table[column, row] / max(largest, 1)
            axes.scatter(at[column], row, s=area, color=_COLORS[what], linewidths=0)

        largest = int(at_clients["examples"][drawn].max())
        scale = f"largest circle: {largest:,} examples of a client"
        for what, table in at_clients.items():
            # a weak label's circle has room for the labelled ones, which are drawn on top
            filled = table + at_clients["labelled"] if what in _WEAK else table
            circles(filled[drawn], drawn, what, largest)
        most = int(max((one.max() for one in elsewhere), default=0))
        for name, counts, place in zip(beside, elsewhere, places, strict=True):
            circles(
                counts[None],
                np.array([place]),
                "labelled" if name == "server" else "held out",
                most,
            )
        if len(beside):
            scale += f", {most:,} beside the line"
            axes.axvline(num_clients, color="#808080", linewidth=0.8)
        if len(drawn) < num_clients:
            scale += f"; {len(drawn):,} of {num_clients:,} clients"
        axes.set(xlabel="client", ylabel="class", xlim=(-1, columns), ylim=(len(names) - 0.2, -0.8))
        if len(names) <= 100:
            axes.set_yticks(range(len(names)), names)
        shown = range(num_clients) if num_clients <= 60 else range(0)
        ticks = [*shown, *places.tolist()]
        axes.set_xticks(ticks, [*(clients[one] for one in shown), *beside], rotation=90)
        totals = _totals(at_clients, {name: len(rows) for name, rows in beside.items()})
        for what, words in totals.items():
            # Its own size: the scatter's would be as large as its first circle.
            axes.plot([], [], "o", color=_COLORS[what], label=words)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, title=scale)
        figure.savefig(path, dpi=120, transparent=True)


def _totals(
    at_clients: dict[str, Int[np.ndarray, "C K1"]], beside: dict[str, int]
) -> dict[str, str]:
    """Say what each colour of the picture stands for, and of how many examples."""
    found = {
        what: f"{int(one.sum()):,} {_WEAK.get(what, what)}" for what, one in at_clients.items()
    }
    at_server = beside.get("server", 0)
    if at_server:
        found["labelled"] += f", {at_server:,} at the server"
    held_out = sum(beside.values()) - at_server
    if held_out:
        found["held out"] = f"{held_out:,} to validate and test"
    return found


def _counts_by_kind(data: FederatedData) -> dict[str, Int[np.ndarray, "C K1"]]:
    """Count by client and true class, the last column for none: all examples, those with a weak
    label of either kind, and the labelled ones; without weak labels that nobody has.
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
    chosen["labelled"] = there & (np.asarray(data.observed_by_clients) >= 0)
    return {
        what: np.bincount(cells[mask], minlength=data.num_clients * width).reshape(-1, width)
        for what, mask in chosen.items()
    }


def _beside_the_clients(
    data: FederatedData, new_clients: Sequence[str]
) -> dict[str, Int[np.ndarray, " r"]]:
    """Rows of the examples that no training client has, by what they are for."""
    tested = real_rows(data.test_index, data.num_test)
    new = np.asarray(data.test_client)[: len(tested)] - data.num_clients
    found = {
        "server": real_rows(data.server_index, data.num_server),
        "validation": real_rows(data.valid_index, data.num_valid),
    }
    if len(new_clients) <= _MOST_NEW:
        found |= {f"{name} (test)": tested[new == at] for at, name in enumerate(new_clients)}
    else:
        found[f"{len(new_clients):,} test clients"] = tested[new >= 0]
    found["test"] = tested[new < 0]
    return {name: rows for name, rows in found.items() if len(rows)}


def _histogram(counts: Int[np.ndarray, " K"]) -> str:
    """One character per class: blank for none, higher for more; anything above zero is visible."""
    height = np.ceil(counts / max(counts.max(), 1) * (len(_BARS) - 1)).astype(int)
    return "|" + "".join(_BARS[level] for level in height) + "|"


def _abbreviated(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 10 else f"{names[0]}, {names[1]}, ..., {names[-1]}"
