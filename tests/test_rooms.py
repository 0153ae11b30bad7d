"""The rooms of the package and the arrows between them, as docs/architecture.md has them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedjax_ssl"
FILES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def rooms_in_order() -> list[str]:
    """Rooms, and modules beside them, by the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text[: text.index("## A config")], re.M)
    return [name.rstrip("/") for row in rows for name in re.findall(r"`(\w+(?:/|\.py))`", row)]


def imports(tree: ast.AST, lazy: bool) -> Iterator[str]:
    """Modules of this package that are imported, also in functions if `lazy`; not those that type
    checkers alone see.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.FunctionDef) and not lazy) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            yield from imports(node, lazy)


def arrows(lazy: bool) -> set[tuple[str, str, str]]:
    """(room, room that it imports, file); commands may call what is above them."""
    found = set()
    for path, tree in FILES.items():
        inside = path.relative_to(PACKAGE)
        if path.name in ("__main__.py", "__init__.py") and len(inside.parts) < 2:
            continue
        for name in imports(tree, lazy):
            parts = name.split(".")
            if path.name != "__main__.py" and parts[0] == "fedjax_ssl" and len(parts) > 1:
                room = parts[1] if (PACKAGE / parts[1]).is_dir() else f"{parts[1]}.py"
                if (PACKAGE / room).exists():
                    found.add((inside.parts[0], room, str(inside)))
    return {(one, other, file) for one, other, file in found if one != other}


def test_a_room_imports_from_rooms_above_it_so_that_there_is_no_circle() -> None:
    order = {room: place for place, room in enumerate(rooms_in_order())}
    small = order["backend.py"]  # the small modules, which share a row
    up = [arrow for arrow in arrows(lazy=False) if order[arrow[1]] > max(order[arrow[0]], small)]
    assert not up


def test_nothing_up_to_config_knows_of_runs_not_even_later() -> None:
    order = rooms_in_order()
    below = order[: order.index("presets") + 1]
    # protocols are asked for by name, when they are used
    above = [room for room in order[order.index("prediction") :] if room != "secure"]
    assert not [one for one in arrows(lazy=True) if one[0] in below and one[1] in above]


def test_protocols_are_loaded_by_the_exchange_of_the_graph_alone() -> None:
    assert {file for _, room, file in arrows(lazy=True) if room == "secure"} == {
        "graph/exchange.py"
    }


def test_a_method_is_built_from_a_config_at_three_places() -> None:
    calls = [
        str(path)
        for path, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "build_method"
    ]
    assert 0 < len(calls) <= 3
