"""What a plain install brings is what the package imports, and starting stays light."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

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
    heavy = ["orbax", "tensorstore", "tensorflow_datasets", "pyarrow", "chex", "sklearn", "matplotlib"]
    code = f"import sys, fedjax_ssl.train; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_folders_are_reported_without_jax():
    code = "import sys, fedjax_ssl.report.command; print('jax' in sys.modules or 'flax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"
