"""Rooms that load a name when it is first used, so that a recipe imports what it needs and no more."""

import ast
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Offer the names that a package imports `if TYPE_CHECKING`, each imported when it is first used.

    At the end of the package's `__init__.py`:

        if TYPE_CHECKING:
            from fedjax_ssl.graph.codes import lsh_codes

        __getattr__, __dir__ = attach(__name__)

    Readers and type checkers see plain imports. A name is offered even where a module of the package has the same one.

    Args:
        package: `__name__` of the package.

    Returns:
        The package's `__getattr__` and `__dir__`.
    """
    module = sys.modules[package]
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    homes = {
        alias.name: node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{package}.")
        for alias in node.names
    }

    class Room(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if not (name in homes and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    def load(name: str) -> Any:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            setattr(module, name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    module.__class__ = Room
    return load, lambda: sorted({*vars(module), *homes})
