"""What nobody thought of: settings, arrays, tables, checkpoints and run folders by Hypothesis.

Every case ends in a typed error of one line, or in a result whose numbers are finite or marked.
`make thorough` tries the same few hundred cases every time; ten thousand from a seed of your own:

    FEDJAX_SSL_FUZZ=7 pytest -s -m thorough tests/test_fuzz.py
"""

import math
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import ConfigError, fields
from fedjax_ssl.data import BadData, DatasetUnavailable, load
from fedjax_ssl.folder.checkpoint import CheckpointError
from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.folder.stored_run import read_run
from fedjax_ssl.registry import Option
from fedjax_ssl.runs.loop import run
from tests.folder.test_full_disk import content_of, train
from tests.saved import state_of

pytestmark = pytest.mark.thorough
SEED = os.environ.get("FEDJAX_SSL_FUZZ")


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Files need not be on the disk when a case ends: waiting for it would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def cases(few: int, many: int) -> Callable[[Callable], Callable]:
    """Tries a test with so many cases: few that are always the same, or many from the seed that
    was given.
    """

    def decorate(test: Callable) -> Callable:
        configured = hypothesis.settings(
            max_examples=few if SEED is None else many,
            derandomize=SEED is None,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink),
            print_blob=True,
        )(test)
        if SEED is None:
            return configured
        print(f"{test.__name__}: {many} cases from seed {SEED}")
        return hypothesis.seed(int(SEED))(configured)

    return decorate


# --- settings

NUMBERS = st.one_of(
    st.sampled_from(
        [
            0,
            1,
            -1,
            2,
            10**9,
            2**31,
            2**32,
            2**63,
            0.5,
            1e-300,
            1e30,
            1e39,
            math.nan,
            math.inf,
            -math.inf,
        ]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
)
PIECES = st.one_of(NUMBERS, st.none(), st.booleans(), st.text(max_size=6))
VALUES = st.one_of(
    PIECES,
    st.lists(st.one_of(PIECES, st.lists(PIECES, max_size=2).map(tuple)), max_size=3).map(tuple),
)
# Numbers that a range may well take, so that something is built of them.
TAKEN = st.sampled_from([0, 1, 2, 3, 7, 40, 0.0, 1e-30, 1e-3, 0.3, 0.99, 1.0, 30.0, 1e30])


@cache
def kinds_of(method: str) -> dict[str, Option]:
    return fields.options_of(fields.default(method))


@st.composite
def settings_of(
    draw: Any, values: st.SearchStrategy, choices: bool
) -> tuple[str, list[tuple[str, Any]]]:
    """A method, and one to three of its fields with values; names are mostly names that there
    are.
    """
    method = draw(st.sampled_from(sorted(methods.available())))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        numbers = [
            name for name, kind in kinds_of(method).items() if choices or kind.type in (int, float)
        ]
        name = draw(st.sampled_from(sorted(numbers)))
        section, _, option = name.rpartition(".")
        known = fields.CHOICES.get(section) if option == "name" else None
        found.append(
            (name, draw(st.one_of(st.sampled_from(sorted(known)), values) if known else values))
        )
    return method, found


def of_one_line(error: Exception, case: Any) -> None:
    assert "\n" not in str(error).strip() and str(error).strip(), (case, str(error))


def usable(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(usable, value))
    if isinstance(value, (int, float)):
        return math.isfinite(value) and abs(value) <= float(np.finfo(np.float32).max)
    return True


@cases(400, 6000)
@hypothesis.given(settings_of(VALUES, choices=True))
def test_settings_are_refused_in_one_line_or_usable(
    case: tuple[str, list[tuple[str, Any]]],
) -> None:
    method, given = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            resolved = configs.resolve(configs.with_settings(fields.default(method), given))
        except ConfigError as error:
            return of_one_line(error, case)
    for name, _ in given:
        if resolved.method.name == method or not name.startswith("method."):
            assert usable(fields.get(resolved, name)), (case, name)
    return None


def experiment_of(case: tuple[str, list[tuple[str, Any]]]) -> Any:
    """The case as an experiment on the digits, with labels where its method wants them; one
    round.
    """
    method, given = case
    given = [
        (name, value)
        for name, value in given
        if name not in ("rounds", "threads", "federated.devices")
    ]
    return configs.load(f"digits:{method}", [*given, ("rounds", 1), ("eval_every", 1)])


@cases(2, 20)
@hypothesis.given(settings_of(TAKEN, choices=False))
def test_a_round_of_what_is_taken_is_finite_or_marked(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[str, list[tuple[str, Any]]]
) -> None:
    folder = tmp_path_factory.mktemp("round") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = experiment_of(case)
            # what is tried is not patience
            config.optimizer.local_epochs = min(config.optimizer.local_epochs, 2)
            summary = run(config, folder)
        except ConfigError as error:
            return of_one_line(error, case)
    floats = [
        np.frombuffer(content, np.dtype(kind))
        for name, (kind, _, content) in state_of(folder).items()
        if name.startswith(".params") and np.dtype(kind).kind == "f"
    ]
    finite = all(np.isfinite(values).all() for values in floats)
    (row,) = read_run(folder).rows
    marked = "diverged" in summary or row["dropped_clients"] > 0
    assert finite or marked, case
    assert math.isfinite(row["loss"]) or marked or not row["local_steps"], (case, row)
    return None


# --- files of users


@st.composite
def archives(draw: Any) -> dict[str, np.ndarray]:
    """Arrays for an `.npz` file, of any type; mostly as many as there are inputs."""
    kinds = st.sampled_from(
        [
            "u1",
            "i1",
            "i8",
            "u8",
            "f2",
            "f4",
            "f8",
            "f8",
            "?",
            "c8",
            "U3",
            "S2",
            "M8[s]",
            "O",
            ">f4",
            ">i2",
        ]
    )
    number = draw(st.integers(0, 6))
    found = {}
    for name in (
        "inputs",
        "labels",
        *draw(st.lists(st.sampled_from(ARRAYS), unique=True, max_size=4)),
    ):
        rows = number if draw(st.integers(0, 9)) else draw(st.integers(0, 6))
        shape = (rows, *draw(st.lists(st.integers(0, 3), max_size=3 if name == "inputs" else 1)))
        kind = draw(kinds)
        value = draw(PIECES) if kind == "O" else None
        found[name] = (
            np.full(shape, value, object)
            if kind == "O"
            else draw(arrays.arrays(np.dtype(kind), shape))
        )
    return found


ARRAYS = (
    *(
        "client",
        "test_inputs",
        "test_labels",
        "test_client",
        "class_names",
        "coarse",
        "correspondence",
        "set",
    ),
    *("x_train", "nonsense", "../up"),
)


@st.composite
def damages(draw: Any) -> Callable[[bytes], bytes]:
    """What may happen to a file's bytes."""
    kind = draw(st.integers(0, 4))
    place = draw(st.floats(0, 1))
    other = draw(st.binary(max_size=40))

    def damaged(content: bytes) -> bytes:
        at = int(place * len(content))
        if kind == 0:
            return content
        if kind == 1:
            return content[:at]
        if kind == 2:
            return (
                content[:at]
                + bytes(byte ^ (1 << (at % 8)) for byte in content[at : at + 1])
                + content[at + 1 :]
            )
        return content[:at] + other + content[at + (len(other) if kind == 3 else 0) :]

    return damaged


@cases(200, 1500)
@hypothesis.given(archives(), damages())
def test_arrays_of_a_user_are_one_message_or_finite(
    tmp_path_factory: pytest.TempPathFactory,
    content: dict[str, np.ndarray],
    damaged: Callable[[bytes], bytes],
) -> None:
    path = tmp_path_factory.getbasetemp() / "mine.npz"
    np.savez(path, **content)
    path.write_bytes(damaged(path.read_bytes()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = load("npz", path=path)
        except BadData as error:  # all that is wrong, a line each
            assert str(error).strip()
            return None
        except (DatasetUnavailable, ValueError) as error:
            assert type(error) in (DatasetUnavailable, ValueError, ConfigError), repr(error)
            return of_one_line(error, content)
    assert np.isfinite(dataset.train.x).all() and len(dataset.train.x) == len(dataset.train.y)
    assert dataset.train.y.max(initial=-1) < len(dataset.class_names)
    return None


CELLS = st.one_of(
    st.sampled_from(
        [
            "",
            " ",
            "1",
            "2",
            "0.5",
            "1,5",
            "-2e1",
            "1e39",
            "1e400",
            "nan",
            "inf",
            "NULL",
            "18446744073709551615",
            "=1+1",
        ]
    ),
    st.sampled_from(["x" * 140_000, "0" * 5000, "a\nb", 'say "so"', "żółć", "\0", "\ufeff"]),
    st.floats().map(str),
    st.text(max_size=5),
)
HEADS = st.one_of(
    st.sampled_from(
        ["label", "client", "split", "set", "coarse", "age", "weight", "Label", "file"]
    ),
    st.text(max_size=4),
)
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp1252", "utf-32")


@st.composite
def tables(draw: Any) -> bytes:
    """A CSV file as people and spreadsheets write it."""
    head = draw(st.lists(HEADS, min_size=1, max_size=5))
    if draw(st.booleans()):
        head = ["age", "label", *head]
    wide = st.integers(0, 9).flatmap(lambda odd: st.just(len(head)) if odd else st.integers(0, 7))
    rows = [draw(st.lists(CELLS, min_size=n, max_size=n)) for n in draw(st.lists(wide, max_size=6))]
    comma = draw(st.sampled_from([",", ";", "\t", "|"]))
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    quoted = draw(st.booleans())

    def cell(text: str) -> str:
        return (
            '"' + text.replace('"', '""') + '"'
            if quoted and {comma, "\n", '"'} & set(text)
            else text
        )

    text = end.join(comma.join(map(cell, row)) for row in [head, *rows])
    return text.encode(draw(st.sampled_from(ENCODINGS)), errors="replace")


@cases(200, 1500)
@hypothesis.given(tables(), damages())
def test_tables_of_a_user_are_one_message_or_finite(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, damaged: Callable[[bytes], bytes]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = folder / "mine.csv"
    path.write_bytes(damaged(content))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = load("table", path=path, root=folder / "cache")
        except BadData as error:  # all that is wrong, a line each
            assert str(error).strip()
            return None
        except (DatasetUnavailable, ValueError) as error:
            assert type(error) in (DatasetUnavailable, ValueError, ConfigError), repr(error)
            return of_one_line(error, content)
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)
    assert np.isfinite(dataset.train.x).all() and len(dataset.train.x) == len(dataset.train.y)
    return None


# --- run folders


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


FILES = (
    *(
        "config.json",
        "metrics.jsonl",
        "metrics.csv",
        "summary.json",
        "model.json",
        "client_accuracy.csv",
    ),
    *("checkpoints/round_00000005.ckpt", "checkpoints/round_00000006.ckpt"),
)
HARMS = st.one_of(damages(), st.sampled_from([*FILES, "gone"]))


@cases(50, 400)
@hypothesis.given(st.lists(st.tuples(st.sampled_from(FILES), HARMS), min_size=1, max_size=3))
def test_a_folder_with_several_damaged_files_goes_on_to_the_same_bits_or_says_what_is_lost(
    tmp_path_factory: pytest.TempPathFactory, whole: Path, harm: list[tuple[str, Any]]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    expected = content_of(whole)
    for name, what in harm:
        path = folder / name
        if what == "gone":
            path.unlink(missing_ok=True)
        elif isinstance(what, str):
            path.write_bytes(expected[what])
        else:
            path.write_bytes(what(path.read_bytes() if path.exists() else b""))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            train(folder)
        # of several lines where fields of another config are listed
        except (RunFolderError, CheckpointError):
            return None
    assert state_of(folder) == state_of(whole), harm
    now = content_of(folder)
    rows = now.get("metrics.jsonl", b"")  # not there where no row is left, and none came
    assert rows == expected["metrics.jsonl"] or notes, (harm, rows)
    return None
