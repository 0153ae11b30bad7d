"""`fedjax-ssl list`: what a config can name, a line each."""

import ast
import shutil
import textwrap
from collections.abc import Callable, Mapping

from fedjax_ssl.cli import one_of, parser
from fedjax_ssl.shipped import shipped_configs


def main(arguments: list[str]) -> int:
    """Prints one list, or all.

    Returns:
        0.
    """
    own = parser("list", "What a config can name, a line each.")
    own.add_argument("kind", nargs="?", type=one_of("list", KINDS), metavar="KIND", help=f"{', '.join(KINDS)}; or all")
    kind = own.parse_args(arguments).kind
    for number, name in enumerate(KINDS if kind is None else [kind]):
        print("\n" * (number > 0), end="")
        print_list(name)
    return 0


def print_list(kind: str) -> None:
    """Prints one of `KINDS`."""
    field, lines = KINDS[kind]
    print(f"{kind} ({field})")
    print(_columns(lines()))


def configs() -> dict[str, str]:
    """Names of the shipped configs, with the first line of their docstrings."""
    found = {}
    for name, path in shipped_configs().items():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[name] = text.partition("\n")[0]
    return found


def _registry(place: str) -> Callable[[], Mapping[str, str]]:
    """Lines of a registry, which is imported when they are asked for."""

    def lines() -> Mapping[str, str]:
        from fedjax_ssl.config import CHOICES
        from fedjax_ssl.methods import METHODS

        return (METHODS if place == "method" else CHOICES[place]).available()

    return lines


def _optimizers() -> Mapping[str, str]:
    from fedjax_ssl.federated import FEDERATED_OPTIMIZERS, OPTIMIZERS

    local = {name: f"of the clients' local training (optimizer.name): {line}" for name, line in OPTIMIZERS.items()}
    return {**FEDERATED_OPTIMIZERS.available(), **local}


KINDS: dict[str, tuple[str, Callable[[], Mapping[str, str]]]] = {
    "methods": ("method.name", _registry("method")),
    "models": ("model.name", _registry("model")),
    "datasets": ("data.name", _registry("data")),
    "partitions": ("partition.name", _registry("partition")),
    "supervision": ("supervision.name", _registry("supervision")),
    "augmentations": ("augment.name, strong_augment.name", _registry("augment")),
    "cohorts": ("cohort.name", _registry("cohort")),
    "optimizers": ("federated.name, optimizer.name", _optimizers),
    "configs": ("fedjax-ssl run NAME", configs),
}


def _columns(lines: Mapping[str, str]) -> str:
    width = max(map(len, lines)) + 4
    rest = max(shutil.get_terminal_size().columns, 60) - width
    return "\n".join(
        textwrap.fill(line, rest + width, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
        for name, line in lines.items()
    )
