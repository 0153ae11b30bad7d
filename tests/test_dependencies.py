"""What a plain install brings is what the package imports, and starting stays light."""

import ast
import re
import subprocess
import symtable
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def spelled(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_dependencies_are_what_the_package_imports():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {spelled(re.match(r"[\w.-]+", line)[0]) for line in project["dependencies"]}
    modules = set()
    for file in (ROOT / "fedjax_ssl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module.partition(".")[0])
    distributions = packages_distributions()
    others = modules - set(sys.stdlib_module_names) - {"fedjax_ssl"}
    imported = {spelled(distributions[module][0]) for module in others}
    assert imported == declared


def test_a_start_imports_nothing_that_it_does_not_need():
    heavy = {
        "orbax",
        "tensorstore",
        "tensorflow_datasets",
        "pyarrow",
        "chex",
        "sklearn",
        "matplotlib",
        "wandb",
        "dp_accounting",
    }
    code = (
        f"import sys, fedjax_ssl.train, fedjax_ssl.folder.run_folder; print([*{heavy} & "
        f"{{*sys.modules}}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.thorough
@pytest.mark.promise
def test_folders_are_reported_without_jax():
    code = (
        "import sys, fedjax_ssl.report.command; print('jax' in sys.modules or 'flax' in "
        "sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "False"


def shadowed(table: symtable.SymbolTable) -> list[str]:
    """Names from outside that a comprehension of a function shadows, while a function in it uses
    them.
    """
    found = [name for child in table.get_children() for name in shadowed(child)]
    comprehensions = [
        one for one in table.get_children() if one.get_name() in ("listcomp", "dictcomp", "setcomp")
    ]
    free = {one.get_name() for one in table.get_symbols() if one.is_free()}
    own = {
        one.get_name() for inner in comprehensions for one in inner.get_symbols() if one.is_local()
    }
    return found + [
        f"{table.get_name()}, line {table.get_lineno()}: {name}" for name in sorted(free & own)
    ]


def test_no_comprehension_shadows_a_name_from_outside():
    # Python 3.12 and 3.13 compute such a comprehension in its function, whose inner functions then
    # lose the name.
    files = [
        file
        for room in ("fedjax_ssl", "experiments", "configs")
        for file in (ROOT / room).rglob("*.py")
    ]
    found = {
        str(file): shadowed(symtable.symtable(file.read_text("utf-8"), file.name, "exec"))
        for file in files
    }
    assert not {file: names for file, names in found.items() if names}
