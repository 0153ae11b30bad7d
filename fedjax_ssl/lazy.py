"""Packages that import a name on first use, so that a recipe imports only what it needs."""

import ast
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Offer the names that a package imports `if TYPE_CHECKING`, each imported on first use.

    At the end of the package's `__init__.py`:

        if TYPE_CHECKING:
            from fedjax_ssl.graph.codes import lsh_codes

        __getattr__, __dir__ = attach(__name__)

    Readers and type checkers see plain imports. A name is offered even if a module of the package
    has the same name. The rooms of the package are offered too, as in documentation:
    `fedjax_ssl.data`.

    Args:
        package: `__name__` of the package.

    Returns:
        The package's `__getattr__` and `__dir__`.
    """
    module = sys.modules[package]
    assert module.__file__ is not None
    source = Path(module.__file__).read_text(encoding="utf-8")
    homes = {
        alias.asname or alias.name: (f"{node.module}", alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        and f"{node.module}".startswith(f"{package}.")
        and node.module != __name__
        for alias in node.names
    }

    class Room(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if not (name in homes and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

    def load(name: str) -> Any:
        if name in homes:
            home, there = homes[name]
            value = getattr(importlib.import_module(home), there)
            setattr(module, name, value)
            return value
        if not name.startswith("_") and importlib.util.find_spec(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        offered = ", ".join(
            name for name in vars(module).get("__all__", homes) if not name.startswith("_")
        )
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it offers: {offered}")

    def names() -> list[str]:
        rooms = (one.name for one in pkgutil.iter_modules(module.__path__) if one.ispkg)
        return sorted({*vars(module).get("__all__", vars(module)), *homes, *rooms})

    module.__class__ = Room
    return load, names
