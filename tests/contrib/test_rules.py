"""What a contributed file may do: use what the core offers, and go without anybody noticing."""

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedjax_ssl import contrib, registry
from fedjax_ssl.registry import contributed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedjax_ssl"
CONTRIB = PACKAGE / "contrib"
CONTRIBUTED = sorted(path for path in CONTRIB.rglob("*.py") if path.name != "__init__.py")
# In a copy of the package without the folder.
WITHOUT = """
import json
from functools import partial
from fedjax_ssl import config, methods
from fedjax_ssl.federated.uploads import SUMS
from fedjax_ssl.methods.around import WRAPPERS
from fedjax_ssl.testing import promises
from tests.methods import cases
from tests.toy import weak_federation

config.resolve(config.default())
names = [*methods.available()]
for name in names:
    cases.build(name, weak_federation("labels"))
trial = promises.trial_of(partial(cases.build, "fedavg"), cases.special("fedavg"), weak_federation)
promises.state_keeps_its_types_and_rounds_compile_once(trial)
promises.every_round_reports_the_common_metrics_and_the_loss_falls(trial)
promises.predictions_are_normalized_log_probabilities(trial)
print(json.dumps([methods.__file__, names, [*methods.TERMS], [*WRAPPERS, *SUMS]]))
"""


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a file imports of this package, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def test_the_core_names_the_folder_in_one_line_and_never_imports_it() -> None:
    core = (path for path in PACKAGE.rglob("*.py") if CONTRIB not in path.parents)
    lines = [
        (path.name, line)
        for path in core
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"(fedjax_ssl|import)\b.*\bcontrib\b", line.replace("optax.contrib", ""))
    ]
    ((name, line),) = lines
    assert name == "registry.py"
    assert line.startswith(f'_CONTRIBUTED = "{registry._CONTRIBUTED}"')


def test_a_test_of_the_core_needs_no_contributed_file() -> None:
    tests = (path for path in (ROOT / "tests").rglob("*.py") if "contrib" not in path.parts)
    assert not [
        str(path)
        for path in tests
        for module, _ in imported(path)
        if re.match(r"(fedjax_ssl|tests)\.contrib", module)
    ]


def is_offered(module: str, name: str) -> bool:
    """Whether a contributed file may import this: what a room offers, a piece that methods share, a
    public name of a small module, or a piece that contributed files share.
    """
    *folders, last = module.split(".")[1:]
    if folders[:1] == ["contrib"]:
        return last.startswith("_")
    shared = folders == ["methods", "parts"]
    small = not folders and (PACKAGE / f"{last}.py").is_file()
    if shared or small:
        return not name.startswith("_")
    is_room = PACKAGE.joinpath(*folders, last).is_dir()
    return is_room and name in dir(importlib.import_module(module))


@pytest.mark.parametrize("path", CONTRIBUTED, ids=lambda path: path.stem)
def test_a_contributed_file_imports_what_the_core_offers(path: Path) -> None:
    own = [one for one in imported(path) if one[0].split(".")[0] == "fedjax_ssl"]
    assert not [one for one in own if not is_offered(*one)]


def test_every_contributed_file_is_in_the_table() -> None:
    listed = {file for files in contrib.FILES.values() for file in files}
    things = (path for path in CONTRIBUTED if not path.name.startswith("_"))
    assert listed == {str(path.relative_to(CONTRIB).with_suffix("")) for path in things}


def test_a_file_that_is_not_there_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(contrib.FILES, "method", {"methods/gone": ("gone",)})
    assert contributed("method") == {}


def test_without_contrib_and_protocols_the_core_lists_builds_and_keeps_promises(
    tmp_path: Path,
) -> None:
    copied = tmp_path / "fedjax_ssl"
    shutil.copytree(
        PACKAGE, copied, ignore=shutil.ignore_patterns("contrib", "secure", "__pycache__")
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    home, methods, terms, others = json.loads(done.stdout.splitlines()[-1])
    assert Path(home).is_relative_to(copied)
    assert {"fedavg", "xclp", "compose"} <= {*methods}
    ours = {name for kind in contrib.FILES for name in contributed(kind)}
    assert not ours & {*methods, *terms, *others}
