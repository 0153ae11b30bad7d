"""Every command of README, docs/ and the configs' docstrings: understood, and run on files as
described.
"""

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
import pytest

from experiments.benchmarks import command as bench
from experiments.papers import command as reproduce
from experiments.papers.table import find_table, load_tables
from fedjax_ssl import cli
from fedjax_ssl import config as configs
from fedjax_ssl.cli import data, run
from fedjax_ssl.command_line import USER_ERRORS
from fedjax_ssl.encoding.command import _parser as features_parser
from fedjax_ssl.report.command import _parser as report_parser
from fedjax_ssl.secure.__main__ import _parser as secure_parser
from fedjax_ssl.secure.__main__ import main as secure
from fedjax_ssl.sweep import command as sweep
from fedjax_ssl.trained.command import _parser as predict_parser
from fedjax_ssl.trained.plan_labels import _parser as plan_parser
from tests.docs.test_hospital import write_sites

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = r"fedjax-ssl|python -m fedjax_ssl\.\w+"
# Names that stand for what a reader writes there.
FORM = re.compile(r"\b(NAME|PATH|FILE|TABLE|RUN|METHOD|PARTS|VALUE|CONFIG|KIND)\b|=S\b|\.\.\.")
MISTAKES = {  # shown with their error
    "run digits_xclp --method.name=xlcp": "unknown method 'xlcp'. Did you mean 'xclp'",
    "run digits_fedul --method.l1=nan": "config.method.l1 is nan",
    "run digits_xclp --optimizer.learning_rat=0.1": "Did you mean 'optimizer.learning_rate'",
}
# Which commands are understood and not run, and why.
NOT_RUN = {
    r"--distributed\.auto|--workdir runs/digits$": "several machines: tests/runs/test_distributed.py",
    r"tfds:|hf:": "need a download and their libraries: tests/data/sources/test_libraries.py",
    r"^run (cifar10|mnist)": "needs a download",
    r"model\.weights": "needs weights of torchvision: tests/models/test_pretrained.py",
    r"lite0|timm:": "needs PyTorch and weights of timm: tests/encoding/test_encoders.py",
    r"runs/other|data\.path=writing": "needs Omniglot, and minutes",
    r"^bench": "minutes to hours, on a machine of its own: tests/benchmarks/test_bench.py",
    r"^reproduce .*--run(?!.*--scale smoke)": "hours, and a download",
    r"--workers 16|devices=8|gpus_per_node": "several GPUs, a cluster: tests/test_gpus.py",
    r"sklearn\.metrics|--tracking|--search": "needs scikit-learn, wandb or Optuna",
    r"runs/label_plan": "five seeds each: experiments/label_plan.py runs them",
    r"runs/hospital": "tests/docs/test_hospital.py trains them whole",
}
BEFORE = {  # what a page takes for done
    "docs/trained.md": ["run digits_xclp --rounds=5"],
    "docs/report.md": [
        "sweep digits:5 --set method.name=fedavg,xclp --rounds=1 --workdir runs/sweep"
    ],
}
# Modules of the pages' own code, and words by which their block is known.
OWN = {
    "my_methods": "def entropy_minimization",
    "my_parts": "def tired",
    "my_terms": "def calm",
    "my_things": "def partition",
    "my_uploads": "def clip(",
    "my_nets": "class Linen",
    "my_lora": "def adapted",
    "my_metrics": "def weighted_f1",
}


class Said(NamedTuple):
    """A command of a page."""

    page: str
    program: str
    words: tuple[str, ...]  # behind the program

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def why_not(self) -> str:
        """Why it is not run; "": it is."""
        found = (why for pattern, why in NOT_RUN.items() if re.search(pattern, str(self)))
        return next(found, "")


def commands() -> list[Said]:
    """All commands in blocks and in lines, in the order of pages, without forms of commands."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    pages += sorted(ROOT.glob("configs/*.py"))
    # In a block, perhaps behind another program; in a line, not the name of the command alone.
    block = rf"^ {{4}}(?:[^\n`]*?[\s\"=])??({PROGRAMS})(?![\w`])([^\n]*)$"
    line = rf"`({PROGRAMS}) (list|[^`\s]+\s(?:[^`\n]|\n(?!\n))+)`"
    found: dict[Said, None] = {}
    for page in pages:
        text = re.sub(r"\\+\n", " ", page.read_text(encoding="utf-8"))
        places = [*re.finditer(block, text, re.MULTILINE), *re.finditer(line, text)]
        for place in sorted(places, key=lambda one: one.start()):
            program, rest = place.groups()
            rest = re.sub(r" +# .*", "", rest.replace("\n", " ")).strip()
            if rest.count('"') % 2:  # the end of a longer command
                rest = rest.removesuffix('"')
            if FORM.search(rest):
                continue
            words = shlex.split(rest)
            if program.endswith(".main"):  # the same as run
                words.insert(0, "run")
            found[Said(str(page.relative_to(ROOT)), program, tuple(words))] = None
    return list(found)


COMMANDS = commands()
PAGES = list(
    dict.fromkeys(one.page for one in COMMANDS if one.page.endswith(".md") and not one.why_not)
)


def write_files(folder: Path) -> None:
    """Write the files of which the pages speak: small, with few labels."""
    random = np.random.default_rng(0)
    write_sites(folder, 12, side=16)
    rows = 240
    site = np.array(["north", "south"])[np.arange(rows) % 2]
    kind = random.integers(0, 2, rows)
    few = np.where(np.arange(rows) % 3 == 0, kind, -1)
    images = random.integers(0, 200, (rows, 8, 8)).astype(np.uint8)
    given = {"labels": few, "client": site, "class_names": ["healthy", "pneumonia"]}
    np.savez(folder / "scans.npz", inputs=images, **given)
    digits = random.integers(0, 17, (9, 8, 8, 1)).astype(np.uint8)
    for name in ("new", "images"):
        np.savez(folder / f"{name}.npz", inputs=digits)
    points = random.normal(size=(rows, 4)).astype(np.float32)
    tests = {"test_inputs": points[:40], "test_labels": kind[:40], "test_client": site[:40]}
    np.savez(folder / "features.npz", inputs=points, **given, **tests)
    for name, (label, client) in {
        "patients": ("diagnosis", "hospital"),
        "wine": ("cultivar", "site"),
    }.items():
        words = np.array(["red", "white"])[kind]
        table = {"age": random.integers(20, 90, rows), "pressure": points[:, 0]}
        pandas.DataFrame({**table, label: words, client: site}).to_csv(
            folder / f"{name}.csv", index=False
        )


def write_sets(folder: Path) -> None:
    """Write scans.npz with sets, and their class shares as docs/your_data.md shows them."""
    (shares,) = re.findall(
        r"```text\n(client,set,.*?)```", (ROOT / "docs/your_data.md").read_text(), re.DOTALL
    )
    (folder / "shares.csv").write_text(shares)
    arrays = dict(np.load(folder / "scans.npz"))
    arrays["set"] = np.arange(len(arrays["labels"])) // 2 % 2
    tests = {"test_inputs": arrays["inputs"][:9], "test_labels": np.arange(9) % 2}
    np.savez(folder / "scans.npz", **arrays, **tests)


def write_code(folder: Path) -> None:
    """Write the modules of the pages' own code."""
    text = "".join(page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md"))
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for module, words in OWN.items():
        (own,) = (block for block in blocks if words in block)
        if module == "my_uploads":
            own += next(block for block in blocks if "def clip2" in block)
        (folder / f"{module}.py").write_text(own, encoding="utf-8")
    (wine,) = (block for block in blocks if '"wine.npz"' in block)
    # what scikit-learn gives, by its shape
    wine = wine.replace("from sklearn.datasets import load_wine", "")
    given = "def load_wine(return_X_y):\n    return np.random.normal(size=(178, 13)), np.arange(178) % 3\n"
    exec(
        compile(
            wine.replace("inputs, labels =", f"{given}inputs, labels =", 1), "your_data.md", "exec"
        ),
        {},
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder where a reader starts, with the files of which the pages speak."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    write_files(tmp_path)
    write_code(tmp_path)
    yield tmp_path
    for module in (*OWN, "my_study_method"):
        sys.modules.pop(module, None)


def understand(said: Said) -> None:
    """Do all of a command that needs neither data nor time; errors are raised."""
    if said.program.endswith(".secure"):
        secure_parser().parse_args(said.words)
        return
    name, *rest = said.words
    parsers = {"report": report_parser, "predict": predict_parser}
    if "--help" in rest:
        with contextlib.suppress(SystemExit):
            cli.main([name, *rest])
    elif name in ("run", "choose"):
        asked = run.parse(rest)
        configs.resolve(configs.load(asked.name, asked.settings))
    elif name == "sweep":
        given = sweep.parser().parse_args(list(sweep._with_fields(rest)))
        given.seeds = None  # all seeds have one program
        assert given.search or sweep._plan(given).runs
    elif name in parsers:
        parsers[name]().parse_args(rest)
    elif name == "plan-labels":
        _, settings = plan_parser().parse_known_args(rest)
        run.parse(settings)
    elif name == "features":
        given, settings = features_parser().parse_known_args(rest)
        configs.resolve(configs.load(given.config, run.parse(settings).settings))
    elif name == "data" and rest[0] != "split":  # which reads its own, and runs with its page
        data._parse(rest)
    elif name == "bench":
        bench.options(rest)
    elif name == "reproduce":
        given = reproduce.parser().parse_args(rest)
        if given.table:
            table = find_table(given.table, load_tables())
            assert table.make_cells(given.scale, given.rows, given.columns)
    elif name != "data":
        assert cli.main(list(said.words)) == 0


@pytest.mark.thorough
@pytest.mark.promise
def test_every_command_is_understood(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["new", "my_study"])
    wrong = []
    for said in {str(said): said for said in COMMANDS}.values():
        if str(said) in MISTAKES:
            with pytest.raises(USER_ERRORS, match=MISTAKES[str(said)]):
                understand(said)
        elif said.words[:1] != ("new",):
            try:
                understand(said)
            except (AssertionError, SystemExit, *USER_ERRORS) as error:
                wrong.append(f"{said.page}: {said}\n    {error} {capsys.readouterr().err}")
    assert not wrong, "\n".join(wrong)
    assert len(COMMANDS) > 250
    unused = [one for one in NOT_RUN if not any(re.search(one, str(said)) for said in COMMANDS)]
    assert not unused


def shortened(words: list[str]) -> list[str]:
    """A command with one round and one seed, and more than before where a run becomes longer."""
    name, *rest = words
    if name not in ("run", "sweep") or "--help" in rest:
        return words
    # of a run that becomes longer, and where a rate rises for five rounds
    longer = "--rounds=160" in rest or "--optimizer.schedule_warmup=5" in rest
    rounds = f"rounds={10 if longer else 1}"
    kept = [re.sub(r"^((?:--)?)rounds=.*", rf"\1{rounds}", word) for word in rest]
    if "--seeds" in kept:
        kept[kept.index("--seeds") + 1] = "1"
    given = any(word.endswith(rounds) for word in kept)
    return [name, *kept] if given else [name, *kept, f"--{rounds}"]


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, here: Path) -> None:
    if page == "docs/your_data.md":
        write_sets(here)
    for line in BEFORE.get(page, ()):
        assert cli.main(line.split()) == 0
    for said in (one for one in COMMANDS if one.page == page and not one.why_not):
        try:
            if said.program.endswith(".secure"):
                code = secure(["secure", *said.words])
            else:
                code = cli.main(shortened(list(said.words)))
        except SystemExit as end:  # of argparse
            code = end.code
        assert code == (2 if str(said) in MISTAKES else 0), said
