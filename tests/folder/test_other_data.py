"""A run goes on with the data that it began on, known by content."""

import json

import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.folder.folder_lock import FolderMended, RunFolderError
from fedjax_ssl.folder.stored_run import on_other_data
from fedjax_ssl.runs.loop import run


def write(file, flip=0, examples=120):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(120, 2)).astype(np.float32)
    number = np.arange(examples)
    np.savez(file, inputs=inputs[:examples], labels=number % 2 ^ flip, client=number // 2 % 2)


def start(folder, rounds):
    given = {
        "data.path": folder / "t.npz",
        "data.client_test_fraction": 0.2,
        "data.validation_fraction": 0.0,
        "rounds": rounds,
        "eval_every": 1,
    }
    given = {field: str(value) for field, value in given.items()}
    return run(configs.load("npz", given), folder / "run", quiet=True)


@pytest.mark.promise
@pytest.mark.thorough
def test_it_does_not_go_on_with_other_data_and_says_what_differs(tmp_path):
    write(tmp_path / "t.npz")
    first = start(tmp_path, 1)
    stored = (tmp_path / "run" / "model.json").read_bytes()
    write(tmp_path / "t.npz", flip=1)
    with pytest.raises(
        RunFolderError, match=r"on other data than these .*\. labels: changed\. Give it the data"
    ):
        start(tmp_path, 2)
    write(tmp_path / "t.npz", examples=80)
    with pytest.raises(
        RunFolderError, match="training examples: 120 -> 80; inputs: changed; labels: changed"
    ):
        start(tmp_path, 1)
    assert (tmp_path / "run" / "model.json").read_bytes() == stored
    write(tmp_path / "t.npz")  # the same bytes at another time
    assert start(tmp_path, 2)["data"] == first["data"] == json.loads(stored)["data"]


@pytest.mark.thorough
@pytest.mark.promise
def test_data_that_moved_with_their_run_are_known_by_content(tmp_path):
    write(tmp_path / "t.npz")
    start(tmp_path, 1)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("t.npz", "run"):
        (tmp_path / name).rename(moved / name)
    said = r"the data are the same in another place: data\.path: .*t\.npz. -> .*moved/t\.npz"
    with pytest.warns(FolderMended, match=said):
        assert start(moved, 2)["rounds"] == 2
    assert json.loads((moved / "run" / "config.json").read_text())["data"]["path"] == str(
        moved / "t.npz"
    )
    write(tmp_path / "t.npz", flip=1)
    (moved / "run").rename(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"on other data than these .*\. labels: changed\."):
        start(tmp_path, 2)


@pytest.mark.thorough
@pytest.mark.promise
def test_a_run_of_before_goes_on_with_a_note(tmp_path):
    write(tmp_path / "t.npz")
    start(tmp_path, 1)
    file = tmp_path / "run" / "model.json"
    stored = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in stored.items() if name != "data"}))
    with pytest.warns(FolderMended, match="does not say which data its run began on"):
        assert start(tmp_path, 2)["rounds"] == 2
    assert json.loads(file.read_text()) == stored


@pytest.mark.promise
@pytest.mark.thorough
def test_runs_on_other_data_are_found_where_their_settings_are_the_same():
    one = {"inputs": "a"}
    two = {"inputs": "b"}
    runs = [
        ("1", {"data": {"path": "x"}}, {"data": one}),
        ("2", {"data": {"path": "x"}}, {"data": one}),
    ]
    runs += [
        ("3", {"data": {"path": "x"}}, {"data": two}),
        ("4", {"data": {"path": "y"}}, {"data": two}),
    ]
    runs += [
        ("5", {"data": {"path": "x", "root": "/r"}}, {"data": one}),
        ("6", {"data": {"path": "x"}}, None),
    ]
    assert on_other_data([*runs, ("7", {"data": {"path": "x"}}, {})], ("data.root",)) == ["3"]
