"""`fedjax-ssl list`: the names that a config can use, one per line."""

import ast
import shutil
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

from fedjax_ssl.cli import one_of, parser
from fedjax_ssl.shipped import shipped_configs


def main(arguments: list[str]) -> int:
    """Print one list, or all.

    Returns:
        0.
    """
    own = parser("list", "Lists the names that a config can use, a line each.")
    own.add_argument(
        "kind",
        nargs="?",
        type=_kind,
        metavar="KIND",
        help=f"{', '.join(KINDS)} (default: all of them)",
    )
    kind = own.parse_args(arguments).kind
    for number, name in enumerate(KINDS if kind is None else [kind]):
        print("\n" * (number > 0), end="")
        print_list(name)
    return 0


def _kind(text: str) -> str:
    """Return the kind of this name, or that of this section of a config."""
    sections = {
        field.removesuffix(".name"): kind
        for kind, (fields, _) in KINDS.items()
        for field in fields.split(", ")
    }
    return one_of("list", KINDS)(sections.get(text, text))


def print_list(kind: str) -> None:
    """Print one of `KINDS`."""
    field, lines = KINDS[kind]
    print(f"{kind} ({field})")
    found = lines()
    column = max(map(len, found)) + 4
    width = max(shutil.get_terminal_size().columns, 60)
    for name, line in found.items():
        print(paragraph(name, line, column, width))


def names() -> str:
    """Write the names of all lists."""
    width = max(min(shutil.get_terminal_size().columns, 120), 60)
    column = max(map(len, KINDS)) + 4
    written = ["A config can name (`fedjax-ssl list KIND` explains them):"]
    for kind, (_, lines) in KINDS.items():
        written.append(paragraph(kind, ", ".join(lines()), column, width))
    return "\n".join(written)


def configs() -> dict[str, str]:
    """Return the names of the shipped configs, with the first line of their docstrings."""
    return {name: docstring(path).partition("\n")[0] for name, path in shipped_configs().items()}


def docstring(path: Path) -> str:
    """Read the docstring of a Python file without running it."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _registry(place: str) -> Callable[[], Mapping[str, str]]:
    """Return a function that reads the lines of a registry, which is imported on the call."""

    def lines() -> Mapping[str, str]:
        from fedjax_ssl.config import CHOICES
        from fedjax_ssl.methods import METHODS

        return (METHODS if place == "method" else CHOICES[place]).available()

    return lines


def _terms() -> Mapping[str, str]:
    """Return a line per term: its meaning, the labels that it learns from, and the clients' uploads
    for it.
    """
    from fedjax_ssl.federated.recipe import Needs, in_words
    from fedjax_ssl.methods import TERMS
    from fedjax_ssl.methods.compose import part_of
    from fedjax_ssl.testing import toy

    setup = toy.setup(toy.federation())
    found = {}
    for name, line in TERMS.available().items():
        part = part_of(name, setup, {})
        needs = in_words(Needs(part.labels)) if part.labels else "none of its own"
        sent = part.term.sends or " and ".join(part.sends)
        beside = f"the model, and {sent}" if sent else "the model alone"
        found[name] = f"{line}\nneeds: {needs}\nsends: {beside}"
    return found


def _uploads() -> Mapping[str, str]:
    from fedjax_ssl.federated.uploads import UPLOADS

    return UPLOADS.available() or {"module:function": "your own; the package has none"}


def _optimizers() -> Mapping[str, str]:
    from fedjax_ssl.federated import FEDERATED_OPTIMIZERS, OPTIMIZERS

    local = {
        name: f"of the clients' local training (optimizer.name): {line}"
        for name, line in OPTIMIZERS.available().items()
    }
    return {**FEDERATED_OPTIMIZERS.available(), **local}


KINDS: dict[str, tuple[str, Callable[[], Mapping[str, str]]]] = {
    "methods": ("method.name", _registry("method")),
    "terms": ("method.parts of method.name=compose", _terms),
    "models": ("model.name", _registry("model")),
    "datasets": ("data.name", _registry("data")),
    "partitions": ("partition.name", _registry("partition")),
    "supervision": ("supervision.name", _registry("supervision")),
    "augmentations": ("augment.name, strong_augment.name", _registry("augment")),
    "cohorts": ("cohort.name", _registry("cohort")),
    "wrappers": ("personalize.name, around", _registry("personalize")),
    "uploads": ("uploads", _uploads),
    "sums": ("sum.name", _registry("sum")),
    "optimizers": ("federated.name, optimizer.name", _optimizers),
    "configs": ("fedjax-ssl run NAME", configs),
}


def paragraph(head: str, text: str, column: int, width: int) -> str:
    """Write a word and its text in two columns, each line of the text separately; a word that is
    too long is above the text.
    """
    indent = " " * column
    above, first = (
        ("", f"  {head}".ljust(column)) if len(head) + 4 <= column else (f"  {head}\n", indent)
    )
    filled = [
        textwrap.fill(
            line, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
        )
        for line, start in zip(text.split("\n"), (first, *[indent] * text.count("\n")), strict=True)
    ]
    return above + "\n".join(filled)
