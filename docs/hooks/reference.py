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

_MANY = 12  # names; a room that offers more has a page for each of its modules


def on_config(config: Any, **_: Any) -> None:
    """Called by MkDocs first: rooms of several pages get a list of them in the navigation."""
    for section in config.nav:
        for entry in section.get("Reference", ()):
            ((title, path),) = entry.items()
            pages = _pages(Path(path).stem)
            if len(pages) > 1:
                entry[title] = [{Path(page).stem: page} for page in pages]


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Called by MkDocs with all files of the site."""
    for name in _MODULES:
        for page, text in _pages(name).items():
            files.append(File.generated(config, page, content=text))
    return files


def _pages(name: str) -> dict[str, str]:
    """Return the pages of a room by their path: one, or an overview and one for each module."""
    room = f"fedjax_ssl.{_MODULES[name]}"
    tree = _parsed(room)
    offered = _offered(tree, room)
    about = [f"# `{room}`", "", ast.get_docstring(tree) or "", ""]
    if len(offered) <= _MANY:
        return {f"reference/{name}.md": "\n".join([*about, *(f"::: {one}\n" for one in offered)])}
    modules: dict[str, list[str]] = {}
    for one in offered:
        modules.setdefault(one.rpartition(".")[0], []).append(one)
    found = {}
    for module, names in sorted(modules.items()):
        short = module.removeprefix(f"{room}.")
        text = ast.get_docstring(_parsed(module)) or ""
        about.append(f"- [`{short}`]({name}/{short}.md): {', '.join(map(_last, names))}")
        page = [f"# `{module}`", "", text, "", *(f"::: {one}\n" for one in names)]
        found[f"reference/{name}/{short}.md"] = "\n".join(page)
    return {f"reference/{name}.md": "\n".join(about), **found}


def _parsed(module: str) -> ast.Module:
    path = _PACKAGE.parent.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(source.read_text(encoding="utf-8"))


def _last(origin: str) -> str:
    return f"`{origin.rpartition('.')[2]}`"


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
