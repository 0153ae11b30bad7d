"""What data are known by: everything that a run reads, and nothing else."""

import os
from dataclasses import replace

import numpy as np
import pytest

from fedjax_ssl.data import fingerprint as of
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.fingerprint import fingerprint, of_files
from fedjax_ssl.data.reading.cache import kept, load_converted
from fedjax_ssl.data.sources import load

RANDOM = np.random.default_rng(0)
SPLIT = Split(
    RANDOM.normal(size=(40, 6)), np.arange(40) % 2, np.arange(40) % 4, coarse=np.arange(40) % 3
)
DATASET = Dataset("toy", SPLIT, SPLIT, ("a", "b"), tuple("pqrs"), coarse_names=("x", "y", "z"))


def other(name, row=7):
    values = getattr(SPLIT, name).copy()
    values[row] = values[row - 1]
    return replace(DATASET, train=replace(SPLIT, **{name: values}))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (other("x"), {"inputs"}),
        (other("y"), {"labels"}),
        (other("client"), {"clients"}),
        (other("coarse"), {"other fields"}),
        (replace(DATASET, test=replace(SPLIT, y=1 - SPLIT.y)), {"labels"}),
        (replace(DATASET, client_names=("p", "q", "s", "r")), {"other fields"}),
        (replace(DATASET, class_names=("b", "a")), {"other fields"}),
        (
            replace(DATASET, test=None),
            {"test_examples", "inputs", "labels", "clients", "other fields"},
        ),
        (replace(DATASET, mean=(1.0,)), set()),
        (
            replace(DATASET, train=replace(SPLIT, names=np.array([f"{n}.png" for n in range(40)]))),
            set(),
        ),
    ],
)
def test_what_differs_is_told_apart(changed, what):
    before = fingerprint(DATASET)
    now = fingerprint(changed)
    assert {name for name in before if before[name] != now[name]} == what


def test_it_is_that_of_the_kept_form_and_of_large_arrays_reads_blocks(tmp_path, monkeypatch):
    whole = fingerprint(DATASET)
    kept(tmp_path / "kept", lambda: DATASET)
    assert fingerprint(load_converted(tmp_path / "kept")) == whole
    monkeypatch.setattr(of, "_LEAST", 24)
    some = of.of_arrays([SPLIT.x], most=240)
    assert some == of.of_arrays([SPLIT.x.copy()], most=240) != of.of_arrays([SPLIT.x])
    assert {of.of_arrays([other("x", row).train.x], most=240) == some for row in range(1, 40)} == {
        True,
        False,
    }
    assert some != of.of_arrays([other("x", 39).train.x], most=240)  # the last block is the end


def test_files_are_known_by_what_they_hold(tmp_path):
    file = tmp_path / "a.csv"
    empty = tmp_path / "b"
    file.write_text("one"), empty.touch()
    before = of_files([file, empty, tmp_path])
    time = file.stat().st_mtime_ns
    file.touch()
    assert of_files([file, empty, tmp_path]) == before
    file.write_text("two")
    os.utime(file, ns=(time, time))
    assert of_files([file, empty]) != before


def test_a_file_of_another_content_with_the_same_size_and_time_is_read_again(tmp_path):
    file = tmp_path / "t.csv"
    for flip in (0, 1):
        file.write_text(
            "a,b,label\n" + "".join(f"{n}.5,{n % 3},{n % 2 ^ flip}\n" for n in range(12))
        )
        os.utime(file, ns=(10**18, 10**18))
        assert load("table", root=tmp_path / "root", path=file).train.y[0] == flip
