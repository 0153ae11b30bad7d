"""Every notebook shows what its text speaks of: as it is stored, and executed in few rounds."""

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import nbformat
import pytest

import fedjax_ssl as fs
from notebooks.execute import MOST, NOTEBOOKS, execute, without_places

ROOT = Path(__file__).resolve().parents[2]


class Shown(NamedTuple):
    """What an executed notebook shows."""

    text: str  # standard output of all cells
    pictures: int
    folder: Path | None = None  # in which it worked

    def numbers(self, pattern: str) -> list[float]:
        """The numbers that the pattern's group finds in the text."""
        found = [float(number) for number in re.findall(pattern, self.text)]
        assert found, pattern
        return found


def check_quickstart(shown: Shown) -> None:
    assert shown.pictures == 4
    assert "1,797 pictures of 8 x 8 pixels by 14 writers" in shown.text
    assert "11 clients (11 with labels)" in shown.text
    results = re.findall(r"(labels only|XCLP) +(\S+) % on unseen writers", shown.text)
    assert [name for name, _ in results] == ["labels only", "XCLP"]
    (together,) = shown.numbers(r"one graph of all clients: +(\S+) %")
    (alone,) = shown.numbers(r"one graph for every client: +(\S+) %")
    assert together > alone + 20  # what the text says about one graph per client


def check_choose_a_method(shown: Shown) -> None:
    assert shown.pictures == 1
    # The labels are where each method looks for them.
    labels_of = dict(
        re.findall(
            r"digits:(\w+)\n +11 clients .*? training examples, ([^;]+; server \d+)", shown.text
        )
    )
    assert labels_of["xclp"] == "55 labelled; server 0"
    assert labels_of["semifl"] == "0 labelled; server 50"
    assert "with a coarse label" in labels_of["fedmt"] and "in sets" in labels_of["fedul"]
    assert "with a coarse label" in labels_of["mixed"] and "in sets" in labels_of["mixed"]
    assert "refused: method 'semifl' learns from class labels at the server" in shown.text
    compared = re.findall(r"^(\w+) +\S+ % \(", shown.text, re.MULTILINE)
    assert compared == ["fedavg", "network_pseudo_label", "mean_teacher", "fixmatch", "xclp"]
    assert re.search(r"fedavg +\+0\.0 points over fedavg$", shown.text, re.MULTILINE)
    assert re.search(r"xclp .* % of its guessed labels are right", shown.text)


def check_your_own_images(shown: Shown) -> None:
    assert shown.pictures == 2
    assert (
        "4 clients (4 with labels), 400 training examples" in shown.text
        and "test 100" in shown.text
    )
    assert not re.search(r"^\d harbour", shown.text, re.MULTILINE)  # left out
    assert all(
        10 < share <= 100
        for share in shown.numbers(r"(\S+) % right in the place that was left out")
    )
    (guessed,) = shown.numbers(r"% of (\d+) guessed labels are right")
    assert guessed == 400 - 32
    if shown.folder is not None:
        assert len(list(shown.folder.glob("images/*/*.png"))) == 500
        assert len((shown.folder / "guessed.csv").read_text().splitlines()) == guessed + 1
        assert (shown.folder / "runs" / "xclp" / "summary.json").exists()


def check_write_a_method(shown: Shown) -> None:
    assert shown.pictures == 1
    assert "threshold: 0.95" in shown.text
    assert "Did you mean 'method.threshold'?" in shown.text
    assert re.search(r"strength 0\.0: .* by seed: \+0\.0, \+0\.0, \+0\.0 points", shown.text)
    assert "scalar-output" in shown.text  # a loss of several numbers


def check_sweep_on_an_accelerator(shown: Shown) -> None:
    assert shown.pictures == 1
    assert "25 runs in one program" in shown.text
    assert shown.text.count("<- highest mean") == 1
    assert shown.numbers(r"(\d+) in one program, each run: in turn \S+ ms, at once \S+ ms") == [
        1,
        16,
    ]
    assert "refused: hyperparameter 'optimizer.batch_size' is no real-valued setting" in shown.text


def check_mixed_supervision(shown: Shown) -> None:
    assert shown.pictures == 2
    assert "20 labelled" in shown.text and "with a coarse label" in shown.text
    compared = re.findall(r"^(\w+) +\S+ % on unseen writers", shown.text, re.MULTILINE)
    assert compared == ["labels", "labels_xclp", "channels", "mixed"]
    assert all(0 < share < 100 for share in shown.numbers(r"coarse label (\S+) %"))
    assert all(
        20 < share <= 100
        for share in shown.numbers(r"labels that travelled \(mixed\): (\S+) % right")
    )


def check_one_shot_prediction(shown: Shown) -> None:
    assert shown.pictures == 2
    (together,) = shown.numbers(r"xclp +(\S+) % of 360 new digits right")
    (alone,) = shown.numbers(r"per_client_lp +(\S+) % of 360 new digits right")
    assert together > alone + 20
    assert "split,row,client,label,xclp,xclp_confidence" in shown.text
    (left_out,) = shown.numbers(r"xclp +(\S+) % of \d+ digits of a new writer")
    assert left_out > 80  # without a label of its own
    surest, everything = (
        shown.numbers(rf"the surest +{part} %: (\S+) % right")[0] for part in (50, 100)
    )
    assert surest >= everything


def check_few_labels_on_features(shown: Shown) -> None:
    assert shown.pictures == 1
    assert "(as they are, 4 weak and 4 strong views of each)" in shown.text
    assert "ready: fedjax-ssl run features --data.path=new_features" in shown.text
    for row in ("pixels, FedAvg", "features, FedAvg head", "features, FixMatch head"):
        assert len(shown.numbers(rf"{row} +(\S+) %")) == 1
    (one_shot,) = shown.numbers(r"features, xclp in one shot +(\S+) %")
    (left_out,) = shown.numbers(r"xclp +(\S+) % of \d+ digits")
    assert min(one_shot, left_out) > 20  # chance


CHECKS: dict[str, Callable[[Shown], None]] = {
    name: globals()[f"check_{name}"] for name in NOTEBOOKS
}


def code_of(name: str) -> list[nbformat.NotebookNode]:
    cells = nbformat.read(NOTEBOOKS[name], as_version=4).cells
    return [cell for cell in cells if cell.cell_type == "code"]


def outputs_of(cells: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    return [output for cell in cells for output in cell.outputs]


def shown_by(cells: list[nbformat.NotebookNode], folder: Path | None = None) -> Shown:
    outputs = outputs_of(cells)
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    text = "".join(output.text for output in outputs if output.get("name") == "stdout")
    return Shown(text, len(pictures), folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_what_it_speaks_of(name: str, tmp_path: Path) -> None:
    few = {
        # as a user has
        "XLA_FLAGS": re.sub(r"device_count=\d+", "device_count=1", os.environ["XLA_FLAGS"]),
        "FEDJAX_SSL_NOTEBOOK_ROUNDS": "4",
    }
    # The kernel works in an empty folder: the notebook needs nothing but the package.
    notebook = execute(NOTEBOOKS[name], tmp_path, few)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    CHECKS[name](shown_by(cells, tmp_path))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_what_a_notebook_shows_is_stored(name: str) -> None:
    nbformat.validate(nbformat.read(NOTEBOOKS[name], as_version=4))
    assert NOTEBOOKS[name].stat().st_size <= MOST
    cells = code_of(name)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = outputs_of(cells)
    assert "error" not in {output.output_type for output in outputs}
    said = "\n".join(output.get("text", "") for output in outputs)
    assert "Traceback" not in said
    assert re.findall(r"(?<![\w.~:/])/[\w.-]+/[^\s'\"]*", said) == []  # places of a machine
    CHECKS[name](shown_by(cells))


def test_what_is_stored_names_no_place_of_the_machine(tmp_path: Path) -> None:
    said = f"{tmp_path}/runs/x, {ROOT}/fedjax_ssl, /tmp/ipykernel_12/345.py:3: a note"
    assert without_places(said, tmp_path) == "./runs/x, ./fedjax_ssl, cell:3: a note"


def calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    """All calls of a function of `fs`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"fs.{name}":
            yield node


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_goes_through_the_front_door(name: str) -> None:
    tree = ast.parse("\n".join(cell.source for cell in code_of(name)))
    deep = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and f"{node.module}".startswith("fedjax_ssl")
        for alias in node.names
    }
    assert not deep & {*fs.__all__} and list(calls(tree, "load_config"))
    for call in calls(tree, "run"):
        assert "quiet" in {keyword.arg for keyword in call.keywords}, ast.unparse(call)


def first_cell(name: str = "quickstart") -> str:
    return code_of(name)[0].source


def test_all_notebooks_start_with_the_same_cell() -> None:
    assert {name for name in NOTEBOOKS if first_cell(name) != first_cell()} == set()


def test_all_notebooks_are_listed_in_the_docs() -> None:
    listed = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert [name for name in NOTEBOOKS if f"`{name}.ipynb`" not in listed] == []


def test_notebooks_have_badges_once_the_project_has_an_address() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    draw = runpy.run_path(str(ROOT / "docs" / "hooks" / "badges.py"))["on_page_markdown"]

    def drawn_for(address: str) -> str:
        return draw(page, config=SimpleNamespace(extra={"repository": address}))

    for address in ("", "https://example.org/who/what"):  # Colab opens what GitHub has
        assert drawn_for(address) == page
    drawn = drawn_for("https://github.com/who/what")
    place = "https://colab.research.google.com/github/who/what/blob/main/notebooks"
    assert re.findall(r'href="([^"]+)">Open in Colab', drawn) == [
        f"{place}/{name}.ipynb" for name in re.findall(r"^- `(\w+)\.ipynb`", page, re.MULTILINE)
    ]
    assert drawn.count("Open in Colab") == len(NOTEBOOKS)
    page = "| [uda](../configs/digits.py) | 81 |"
    assert drawn_for("") == "| uda | 81 |"
    source = "https://github.com/who/what/blob/main/configs/digits.py"
    assert drawn_for("https://github.com/who/what") == f"| [uda]({source}) | 81 |"


# Stands for pip: writes down what it was asked for, and installs a package unless $PIP_FAILS.
FAKE_PIP = """
import os, pathlib, sys

here = pathlib.Path(__file__).parent
(here / "asked").write_text(" ".join(sys.argv[1:]))
if "PIP_FAILS" in os.environ:
    sys.exit("ERROR: No matching distribution found for fedjax_ssl")
for name, text in {"fedjax_ssl/__init__.py": "__version__ = '9.9'", "ml_collections.py": ""}.items():
    file = here.parent / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
"""


class Bare:
    """A Python without any package but a pip of ours, and a folder that stands for a notebook's."""

    def __init__(self, path: Path):
        """`path`: an empty folder."""
        self.site = path / "site"
        self.folder = path / "notebooks"
        (self.site / "pip").mkdir(parents=True)
        self.folder.mkdir()
        # a whole package, so that it goes before the real pip
        (self.site / "pip" / "__init__.py").touch()
        (self.site / "pip" / "__main__.py").write_text(FAKE_PIP)

    def put(self, place: Path, *files: str) -> None:
        """Writes files; a package's says its version."""
        for name in files:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("__version__ = '1.0'\n")

    def run_first_cell(
        self, before: str = "", source: str = "", **environment: str
    ) -> subprocess.CompletedProcess:
        """Runs it as a kernel does, in the notebook's folder, without what is installed here."""
        environment = {"PATH": str(self.site), "PYTHONPATH": str(self.site), **environment}
        cell = first_cell().replace('SOURCE = ""', f"SOURCE = {source!r}")
        command = [sys.executable, "-S", "-c", f"{before}\n{cell}"]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True
        )

    @property
    def asked(self) -> str | None:
        """What pip was asked to install."""
        file = self.site / "pip" / "asked"
        if not file.exists():
            return None
        return file.read_text().partition("--disable-pip-version-check ")[2] or None


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    return Bare(tmp_path)


def test_the_first_cell_leaves_an_installed_package_alone(bare: Bare) -> None:
    bare.put(bare.site, "fedjax_ssl/__init__.py", "ml_collections.py")
    (bare.folder / "fedjax_ssl").mkdir()  # no package, whatever it holds
    done = bare.run_first_cell()
    assert (done.returncode, done.stdout, done.stderr) == (0, "fedjax_ssl 1.0\n", "")
    assert bare.asked is None


def notes(bare: Bare) -> str:
    """A folder of the package's name that is none: the package index has it."""
    bare.put(bare.folder, "fedjax_ssl/notes.txt")
    return "fedjax_ssl"


def wheels(bare: Bare) -> str:
    """Two wheels and a checkout beside the notebook: the newest wheel."""
    for age, version in enumerate(("0.3.0", "0.2.0")):
        wheel = bare.folder / f"fedjax_ssl-{version}-py3-none-any.whl"
        wheel.touch()
        os.utime(wheel, (1000 - age, 1000 - age))
    bare.put(bare.folder, "fedjax_ssl/pyproject.toml", "fedjax_ssl/fedjax_ssl/__init__.py")
    return str(bare.folder / "fedjax_ssl-0.3.0-py3-none-any.whl")


def beside(bare: Bare) -> str:
    bare.put(bare.folder / "fedjax_ssl", "pyproject.toml", "fedjax_ssl/__init__.py")
    return str(bare.folder / "fedjax_ssl")


def around(bare: Bare) -> str:
    bare.put(bare.folder.parent, "pyproject.toml", "fedjax_ssl/__init__.py")
    return str(bare.folder.parent)


def nvidia(bare: Bare) -> str:
    (bare.site / "nvidia-smi").touch(mode=0o755)
    return "fedjax_ssl[cuda12]"


@pytest.mark.parametrize("place", [notes, wheels, beside, around, nvidia])
def test_the_first_cell_installs_what_is_nearest(bare: Bare, place: Callable[[Bare], str]) -> None:
    expected = place(bare)
    done = bare.run_first_cell()
    assert done.returncode == 0, done.stderr
    assert bare.asked == expected and done.stdout.endswith("fedjax_ssl 9.9\n")


ARCHIVE = "https://example.org/who/what/archive/main.zip"


def test_the_first_cell_installs_what_source_names(bare: Bare) -> None:
    around(bare)  # a checkout, which it passes over
    assert bare.run_first_cell(source=ARCHIVE).returncode == 0
    assert bare.asked == f"fedjax_ssl @ {ARCHIVE}"
    failed = Bare(bare.folder / "other").run_first_cell(source=ARCHIVE, PIP_FAILS="1")
    assert f"could not be installed from {ARCHIVE}." in failed.stderr


def test_the_first_cell_asks_for_a_restart_where_an_older_version_was_loaded(bare: Bare) -> None:
    bare.put(bare.site, "numpy.py", "numpy-2.0.dist-info/METADATA")
    (bare.site / "numpy-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: numpy\nVersion: 2.0\n"
    )
    done = bare.run_first_cell(before="import numpy")
    assert "numpy: a newer version was installed. Restart the session" in done.stdout


def test_without_anything_to_install_the_first_cell_says_what_to_do(bare: Bare) -> None:
    done = bare.run_first_cell(PIP_FAILS="1")
    assert done.returncode == 1
    message = done.stderr.split("NotInstalled: ")[-1]
    assert message.startswith(
        "fedjax_ssl is not installed, and could not be installed from the package index"
    )
    for part in (
        "pip said: ERROR: No matching distribution found",
        "give SOURCE",
        "`make build`",
        "beside this notebook",
    ):
        assert part in message
