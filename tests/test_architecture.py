"""What the docs say of the rooms, and of clients without a labelled example, is so."""

import ast
import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from tests import toy
from tests.methods import cases

ROOT = Path(__file__).resolve().parents[1]
PAGE = "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("architecture.md", "choose.md")
)
# Arrows down the table, inside a function: what is imported when somebody asks for it.
WHEN_ASKED = {("data", "cli")}
CLIENT = toy.LABELLED.index(0)


def table(title: str) -> Iterator[list[str]]:
    """The cells of the first table below a title, without its head."""
    below = PAGE.partition(f"## {title}\n")[2].splitlines()
    lines = itertools.dropwhile(lambda line: not line.startswith("|"), below)
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines))
    return (row.strip("| ").split(" | ") for row in rows[2:])


def ticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def imported(path: Path) -> Iterator[str]:
    """The rooms and small modules that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedjax_ssl":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from re.findall(r"^fedjax_ssl\.(\w+)", node.module or "")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from re.findall(r"^fedjax_ssl\.(\w+)", alias.name)


def test_a_room_imports_from_rooms_above_it() -> None:
    rooms = [
        [name.rstrip("/").removesuffix(".py") for name in ticked(cell)]
        for cell, _ in table("The rooms")
    ]
    place = {name: number for number, names in enumerate(rooms) for name in names}
    package = ROOT / "fedjax_ssl"
    there = {path.stem for path in package.iterdir() if path.suffix in ("", ".py")}
    assert place.keys() == there - {"__init__", "__pycache__"}
    down = set()
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        if room != "__init__":
            others = [other for other in imported(path) if other in place]
            down |= {(room, other) for other in others if place[other] > place[room]}
    assert down == WHEN_ASKED


def without_weak_labels(data: FederatedData) -> FederatedData:
    """The federation in which one client has no weak label either."""
    if data.weak is None:
        return data
    nothing = {"labels": -1, "num_examples": 0, "num_observations": 0, "from_sets": False}
    nothing |= {"matrix": 0, "share": 0}
    weak: Any = {
        name: getattr(data.weak, name).at[CLIENT].set(value) for name, value in nothing.items()
    }
    return dataclasses.replace(data, weak=dataclasses.replace(data.weak, **weak))


ROWS = [
    (name, *cells)
    for names, *cells in table("A client without a labelled example")
    for name in ticked(names)
]


@pytest.mark.parametrize(("name", "drawn", "steps", "weight", "keeps"), ROWS)
def test_a_client_without_a_labelled_example(
    name: str, drawn: str, steps: str, weight: str, keeps: str
) -> None:
    settings = cases.of(name).settings
    usual = methods.recipe(name, cases.setup(name, toy.federation()), **settings)
    data = without_weak_labels(toy.weak_federation(usual.needs.kinds[0]))
    recipe = methods.recipe(name, cases.setup(name, data), **settings)
    stages = [stage for stage in recipe.stages if stage.clients]
    assert ticked(drawn) == list(dict.fromkeys(stage.labelled_quota for stage in stages))
    trains = federated.who_trains(federated.build(recipe).recipe.stages, data)
    assert (steps != "-") == bool(np.asarray(trains)[CLIENT])
    assert (weight != "-") == (steps != "-")
    if steps != "-":
        assert (weight == "the run's") == (stages[-1].clients.weigh is None)
    remembered = any(term.client.remember for stage in stages for term in stage.client_terms)
    if recipe.groups.private or remembered:
        assert keeps != "-"


def test_every_method_is_in_the_table() -> None:
    assert sorted(name for name, *_ in ROWS) == sorted(methods.available())


def test_every_field_that_a_method_or_an_optimizer_sets_is_described() -> None:
    """Behind the field, or below it after `# ^`; the reference shows these comments."""
    for name in ("contract", "recipe", "optimizers", "setup", "messages"):
        text = (ROOT / "fedjax_ssl" / "federated" / f"{name}.py").read_text(encoding="utf-8")
        lines = [*text.splitlines(), ""]
        for node in ast.parse(text).body:
            fields = node.body if isinstance(node, ast.ClassDef) else []
            for field in fields:
                if not isinstance(field, ast.AnnAssign) or node.name.startswith("_"):
                    continue
                last, below = lines[field.end_lineno - 1], lines[field.end_lineno].strip()
                assert "  # " in last or below.startswith("# ^"), (name, node.name, field.lineno)
