"""Split files, and the hash of a split: what it depends on, and what it does not."""

import dataclasses
import hashlib

import jax
import numpy as np
import pytest

from fedjax_ssl import data
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.federation.splits import read_split

RANDOM = np.random.default_rng(0)
TRAIN, TEST = 40, 8
LABELS = np.arange(TRAIN) % 2
CLIENTS = np.arange(TRAIN) // 10
DATASET = Dataset(
    "toy",
    Split(RANDOM.integers(0, 256, (TRAIN, 5), np.uint8), LABELS, CLIENTS),
    Split(RANDOM.integers(0, 256, (TEST, 5), np.uint8), LABELS[:TEST], CLIENTS[::5]),
    ("a", "b"),
    ("north", "east", "south", "west"),
)
KEY = jax.random.key(0)


def federate(dataset=DATASET, key=KEY, **given):
    options = {"supervision_options": {"labels": 3}, "validation_fraction": 0.1, **given}
    return data.federate(key, dataset, **options)


@pytest.fixture(scope="module")
def federation():
    return federate()


@pytest.fixture(scope="module")
def with_sets():
    return federate(supervision="sets", supervision_options={"sets": 2})


@pytest.fixture
def written(tmp_path, federation):
    """A split file and its arrays."""
    path = tmp_path / "toy-0.npz"
    data.write_split(path, DATASET, federation)
    with np.load(path) as content:
        return path, dict(content)


def by_file(path, arrays):
    """The federation of a file with these arrays."""
    np.savez(path, **arrays)
    return data.federate_by_file(path, DATASET)


def test_a_file_gives_the_federation_back(written, federation):
    path, arrays = written
    again = data.federate_by_file(path, DATASET)
    for field in dataclasses.fields(federation):
        ours, theirs = getattr(federation, field.name), getattr(again, field.name)
        np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
    assert str(arrays["split"]) == data.split_hash(DATASET, again)
    assert data.holds_validation(path) and not data.holds_validation(path.parent / "none.npz")


def test_the_hash_is_of_contents_and_not_of_names_or_orders(federation):
    """The same examples in another order, and clients too, have the hash of before."""
    order = np.random.default_rng(1).permutation(TRAIN)
    place = np.append(np.argsort(order), np.arange(TRAIN, TRAIN + TEST))
    train = Split(DATASET.train.x[order], DATASET.train.y[order], 3 - DATASET.train.client[order])
    other = dataclasses.replace(DATASET, train=train, client_names=tuple("wxyz"))
    tables = ("index", "test_index", "valid_index", "server_index")
    moved = {name: place[np.asarray(getattr(federation, name))] for name in tables}
    moved["index"] = moved["index"][::-1]
    for name in ("num_examples", "num_labelled"):
        moved[name] = np.asarray(getattr(federation, name))[::-1]
    owner = np.asarray(federation.test_client)
    moved["test_client"] = np.where(owner < 0, owner, 3 - owner)
    again = dataclasses.replace(federation, **moved)
    assert data.split_hash(other, again) == data.split_hash(DATASET, federation)


@pytest.mark.parametrize("what", ["label", "client", "test", "owner", "server", "outside"])
def test_a_changed_file_is_refused_because_the_hash_tells_splits_apart(written, tmp_path, what):
    _, arrays = written
    if what == "label":
        seen = set(arrays["labelled"].tolist())
        hidden = [row for row in arrays["rows"][:8].tolist() if row not in seen]
        arrays["labelled"] = np.append(arrays["labelled"][1:], hidden[0])
    elif what == "client":
        arrays["rows"][[-1, 0]] = arrays["rows"][[0, -1]]
    elif what == "test":
        arrays["validation"][0], arrays["test"][0] = arrays["test"][0], arrays["validation"][0]
    elif what == "server":
        arrays["server"], arrays["widths"] = arrays["validation"], arrays["widths"] + 4
    elif what == "outside":
        arrays["rows"][3] = TRAIN + TEST
    else:
        arrays["test_client"] = arrays["test_client"][::-1]
    with pytest.raises(ValueError, match=r"other\.npz was changed since it was written; write it"):
        by_file(tmp_path / "other.npz", arrays)


def test_the_hash_knows_sets_by_their_members(federation, with_sets):
    found = [data.split_hash(DATASET, with_sets), data.split_hash(DATASET, federation)]
    weak = with_sets.weak
    for labels in (1 - weak.labels, weak.labels[:, ::-1]):  # renumbered, and moved
        there = np.asarray(weak.labels) >= 0
        other = dataclasses.replace(weak, labels=np.where(there, np.abs(labels), -1))
        found.append(data.split_hash(DATASET, dataclasses.replace(with_sets, weak=other)))
    assert found[0] == found[2] and len(set(found)) == 3


def test_an_example_is_known_by_blake2b_and_by_its_middle_where_inputs_are_large(monkeypatch):
    row = DATASET.test.x[2]
    number = DATASET.example_ids[TRAIN + 2]
    digest = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
    assert number.astype("<u8").tobytes() == digest
    monkeypatch.setattr("fedjax_ssl.data.dataset.KNOWN_WHOLE", 10)
    monkeypatch.setattr("fedjax_ssl.data.dataset.KNOWN_BLOCK", 3)
    digest = hashlib.blake2b(row[1:4].tobytes(), digest_size=8).digest()
    large = dataclasses.replace(DATASET).example_ids
    assert large[TRAIN + 2].astype("<u8").tobytes() == digest


def test_files_that_are_no_split_files_and_splits_that_no_file_holds(
    tmp_path, federation, with_sets
):
    with pytest.raises(ValueError, match=r"there is no file .*s\.npz; fedjax-ssl data split"):
        read_split(tmp_path / "s.npz", DATASET)
    (tmp_path / "s.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"s\.npz is cut short, damaged or in another format"):
        read_split(tmp_path / "s.npz", DATASET)
    np.savez(tmp_path / "s.npz", rows=np.arange(3))
    with pytest.raises(ValueError, match=r"s\.npz is no split file of format 1"):
        read_split(tmp_path / "s.npz", DATASET)
    data.write_split(tmp_path / "s.npz", DATASET, federation)
    other = dataclasses.replace(DATASET, train=dataclasses.replace(DATASET.train, y=1 - LABELS))
    with pytest.raises(ValueError, match="a split of toy with other content, or in another order"):
        read_split(tmp_path / "s.npz", other)
    with pytest.raises(ValueError, match="have coarse labels or sets, which a split file does not"):
        data.write_split(tmp_path / "s.npz", DATASET, with_sets)
