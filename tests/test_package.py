"""What is shipped: the wheel and the sdist hold the package and nothing else; no code comes out
of a user's file.
"""

import pickle
import re
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedjax_ssl.data import DatasetUnavailable, load

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fedjax_ssl"
DATA = {
    "fedjax_ssl/citations.bib",
    "fedjax_ssl/data/sources/digits.npz",
    "fedjax_ssl/data/sources/glyph_strokes.txt",
    "fedjax_ssl/py.typed",
}


def sources(*folders: str) -> set[str]:
    """Python files of the checkout, by their path."""
    return {
        str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")
    }


@pytest.mark.thorough
def test_the_wheel_holds_the_package_and_its_configs_and_nothing_else(tmp_path: Path) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
    (path,) = wheel.build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as file:
        names = set(file.namelist())
    shipped = {f"fedjax_ssl/{name}" for name in sources("configs")} | sources("fedjax_ssl")
    known = r"fedjax_ssl(-[^/]+\.dist-info/|/report/assets/|/docs/)"
    more = {name for name in names - shipped if not re.match(known, name)}
    assert not shipped - names
    assert more == DATA, more ^ DATA


@pytest.mark.thorough
def test_the_sdist_holds_what_builds_and_tests_it(tmp_path: Path) -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist").SdistBuilder(str(ROOT))
    (path,) = sdist.build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert (
        not sources(
            "fedjax_ssl", "configs", "experiments/benchmarks", "experiments/papers", "tests"
        )
        - names
    )
    folders = {name.partition("/")[0] for name in names}
    top = {
        "PKG-INFO",
        "pyproject.toml",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "README.md",
    }
    parts = {"fedjax_ssl", "configs", "docs", "experiments", "notebooks", "tests"}
    assert folders <= top | parts, folders
    found = {name for name in names if name.endswith((".npz", ".pyc", ".ckpt", ".log"))}
    assert {name for name in found if not name.startswith("tests/parity/fixtures/")} <= DATA


def test_the_changelogs_newest_version_is_the_one_to_cite() -> None:
    (newest, *_) = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"\nversion: {newest}\n" in (ROOT / "CITATION.cff").read_text()


def test_no_module_loads_what_can_run_code() -> None:
    # NumPy loads no objects unless it is told to.
    forbidden = r"allow_pickle\s*=\s*True|^\s*(import|from) (pickle|shelve|dill|cloudpickle|joblib|marshal)\b|torch\.load\((?!.*weights_only=True)"
    found = [
        path
        for path in PACKAGE.rglob("*.py")
        if re.search(forbidden, path.read_text(), re.MULTILINE)
    ]
    # The one that knows arrays alone; that it refuses all else is in
    # tests/data/sources/test_mini_imagenet.py.
    (restricted,) = found
    assert restricted == PACKAGE / "data" / "sources" / "mini_imagenet.py"
    text = restricted.read_text()
    assert "def find_class" in text and not re.search(r"pickle\.loads?\(|[^_]Unpickler\(file", text)


class Opens:
    """Would make a file if somebody loaded it."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_file_with_code_in_it_is_refused_and_not_run(tmp_path: Path) -> None:
    proof = tmp_path / "it ran"
    objects = np.empty(2, object)
    objects[:] = [Opens(proof), Opens(proof)]
    np.savez(tmp_path / "objects.npz", inputs=objects, labels=objects)
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Opens(proof)))
    for name in ("objects.npz", "plain.npz"):
        with pytest.raises((ValueError, DatasetUnavailable)) as caught:
            load("npz", path=tmp_path / name)
        assert "\n" not in str(caught.value)
        assert not proof.exists()
