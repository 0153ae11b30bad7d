"""A page of reference for every room: what its `__init__.py` offers, from the docstrings."""

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_PACKAGE = Path(__file__).resolve().parent.parent.parent / "fedjax_ssl"
# Page of the site -> module; `nav` in mkdocs.yml has the same pages.
_MODULES = {
    "training": "train",
    "runs": "runs",
    "folder": "folder",
    "prediction": "prediction",
    "config": "config",
    "presets": "presets",
    "data": "data",
    "models": "models",
    "methods": "methods",
    "federated": "federated",
    "objectives": "objectives",
    "graph": "graph",
    "secure": "secure",
    "report": "report",
    "trained": "trained",
}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Called by MkDocs with all files of the site."""
    for page, module in _MODULES.items():
        files.append(File.generated(config, f"reference/{page}.md", content=_page(module)))
    return files


def _page(module: str) -> str:
    path = _PACKAGE.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text(encoding="utf-8"))
    name = f"fedjax_ssl.{module}"
    lines = [f"# `{name}`", "", ast.get_docstring(tree) or "", ""]
    for origin in _offered(tree, name):
        lines += [f"::: {origin}", ""]
    return "\n".join(lines)


def _offered(tree: ast.Module, name: str) -> list[str]:
    """Where everything public is defined: here, or in a module of the room whose names its
    `__init__` imports.
    """
    found: list[str] = []
    # imported when first used
    lazy = [node for one in tree.body if isinstance(one, ast.If) for node in one.body]
    for node in [*tree.body, *lazy]:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{name}."):
            found += [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(f"{name}.{node.name}")
    own = [origin.rpartition(".")[2] for origin in found]
    # Tables and other constants have no docstring.
    return [
        origin
        for origin, last in zip(found, own, strict=True)
        if not last.startswith("_") and not last.isupper()
    ]
