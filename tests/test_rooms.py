"""The rooms of the package and the arrows between them, as docs/architecture.md has them."""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedjax_ssl"
FILES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def rooms_in_order() -> list[str]:
    """Rooms, and modules beside them, by the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text[: text.index("## A run\n")], re.M)
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
    above = order[order.index("prediction") :]
    assert not [one for one in arrows(lazy=True) if one[0] in below and one[1] in above]


def test_no_room_imports_the_protocols_which_the_registry_finds() -> None:
    assert not [file for _, room, file in arrows(lazy=True) if room == "secure"]


def test_a_method_is_built_from_a_config_at_three_places() -> None:
    calls = [
        str(path)
        for path, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "build_method"
    ]
    assert 0 < len(calls) <= 3


def test_no_two_files_share_a_name() -> None:
    names = Counter(path.stem for path in FILES)
    assert {name for name, count in names.items() if count > 1} == {
        *("__init__", "__main__", "command")
    }


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def test_files_import_each_other_without_a_circle_even_for_types() -> None:
    files = {name_of(path): tree for path, tree in FILES.items() if path.name != "__init__.py"}
    graph = {}
    for name, tree in files.items():
        asked = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedjax_ssl"):
                module = node.module.removeprefix("fedjax_ssl").lstrip(".")
                asked |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        graph[name] = asked & files.keys()
    assert len(tuple(TopologicalSorter(graph).static_order())) == len(files)
    assert not [one for one in graph["federated.contract"] if one.startswith("federated.")]


# Types that the author of a method, a wrapper or an optimizer meets.
CONTRACT = ("contract", "recipe", "setup", "messages", "optimizers", "uploads/transform")
# Fields with fewer than two users in the core, and why they stay.
FEW_USERS = {
    "LocalStep.packing": "a wrapper that perturbs weights needs their tree: (FL)^2, Ditto, CBAFed",
    "LocalStep.unravel": "and one with a network of its own its statistics: Ditto, CBAFed",
    "LocalStep.gradient": "DP-SGD and (FL)^2 take another one",
    "Local.change": "all federated optimizers, which are in the file of the type",
    "Local.anchor": "FedProx, which is in the file of the type",
    "FederatedOptimizer.correct": "FedProx and SCAFFOLD, which are in the file of the type",
    "Numbers.down": "SCAFFOLD, which is in the file of the type",
    "LocalSettings.nesterov": "FedNova",
}


def test_a_field_of_the_contract_has_two_users_in_the_core() -> None:
    """A user is a file, other than the type's own, in which `.field` or `field=` stands."""
    used: dict[str, set[Path]] = defaultdict(set)
    for path, tree in FILES.items():
        if path.relative_to(PACKAGE).parts[0] in ("contrib", "secure"):
            continue
        for node in ast.walk(tree):
            name = getattr(node, "attr" if isinstance(node, ast.Attribute) else "arg", None)
            if isinstance(node, ast.Attribute | ast.keyword) and name:
                used[name].add(path)
    few = set()
    for file in CONTRACT:
        path = PACKAGE / "federated" / f"{file}.py"
        for kind in FILES[path].body:
            public = isinstance(kind, ast.ClassDef) and not kind.name.startswith("_")
            fields = kind.body if public else []
            few |= {
                f"{kind.name}.{field.target.id}"
                for field in fields
                if isinstance(field, ast.AnnAssign) and len(used[field.target.id] - {path}) < 2
            }
    assert few == FEW_USERS.keys()
