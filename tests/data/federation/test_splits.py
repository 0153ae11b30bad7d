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


def by_file(path, dataset, arrays):
    """The federation of a file with these arrays."""
    np.savez(path, **arrays)
    return data.federate_by_file(path, dataset)


def shuffled(dataset, arrays):
    """The same examples in another order under other names, and the same split of them."""
    order = np.random.default_rng(1).permutation(TRAIN)
    train = Split(dataset.train.x[order], dataset.train.y[order], 3 - dataset.train.client[order])
    place = np.append(np.argsort(order), np.arange(TRAIN, TRAIN + TEST))
    names = ("rows", "labelled", "server", "validation", "test")
    moved = {name: place[arrays[name]] for name in names}
    clients = np.split(moved["rows"], arrays["starts"][1:-1])[::-1]
    moved |= {
        "rows": np.concatenate(clients),
        "starts": np.cumsum([0, *map(len, clients)]),
        "test_client": 3 - arrays["test_client"],
        "examples": arrays["examples"],
    }
    test = dataclasses.replace(dataset.test, client=3 - dataset.test.client)
    named = dataclasses.replace(dataset, train=train, test=test, client_names=tuple("wxyz"))
    return named, moved


def test_a_file_gives_the_federation_back(written, federation):
    path, arrays = written
    again = data.federate_by_file(path, DATASET)
    for field in dataclasses.fields(federation):
        ours, theirs = getattr(federation, field.name), getattr(again, field.name)
        np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
    assert str(arrays["split"]) == data.split_hash(DATASET, again)
    assert data.holds_validation(path) and not data.holds_validation(path.parent / "none.npz")


def test_the_hash_is_of_contents_and_not_of_names_or_orders(written, tmp_path):
    _, arrays = written
    other, moved = shuffled(DATASET, arrays)
    again = by_file(tmp_path / "other.npz", other, moved)
    assert data.split_hash(other, again) == str(arrays["split"])
    assert data.client_names(other, again) == ["w", "x", "y", "z"]


@pytest.mark.parametrize("what", ["label", "client", "test", "owner", "server"])
def test_the_hash_tells_splits_apart(written, federation, tmp_path, what):
    _, arrays = written
    if what == "label":
        seen = set(arrays["labelled"].tolist())
        hidden = [row for row in arrays["rows"][:8].tolist() if row not in seen]
        arrays["labelled"] = np.append(arrays["labelled"][1:], hidden[0])
    elif what == "client":
        arrays["rows"][[-1, 0]] = arrays["rows"][[0, -1]]
    elif what == "test":
        arrays["validation"], arrays["test"] = arrays["test"][:2], arrays["validation"]
        arrays["test_client"] = np.full(len(arrays["test"]), -1)
    elif what == "server":
        arrays["server"], arrays["validation"] = arrays["validation"], []
    else:
        arrays["test_client"] = arrays["test_client"][::-1]
    del arrays["split"]
    other = by_file(tmp_path / "other.npz", DATASET, arrays)
    assert data.split_hash(DATASET, other) != data.split_hash(DATASET, federation)


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


def test_a_file_of_another_project_needs_little(tmp_path):
    given = {"rows": np.arange(30), "starts": [0, 10, 20, 30], "examples": [TRAIN, TEST]}
    found = by_file(tmp_path / "s.npz", DATASET, given)
    assert found.summary()["test_examples"] == TEST and not found.owned_test
    assert np.asarray(found.num_labelled).tolist() == [10, 10, 10]
    assert data.client_names(DATASET, found) == ["north", "east", "south"]
    given["starts"] = [0, 15, 30]
    mixed = by_file(tmp_path / "s.npz", DATASET, given)
    assert data.client_names(DATASET, mixed) == ["0", "1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"examples": [60, 8]}, r"a split of toy with 60 \+ 8 examples; 'toy' has 40 \+ 8"),
        ({"content": "00ff"}, r"other content, or in another order, than 'toy' has here .*00ff"),
        ({"test": [0, 99]}, r"row 99 for testing is outside; rows are 0 to 47"),
        (
            {"test": [40, 3]},
            r"row 3 is at client 1 and again for testing; an example has one place",
        ),
        ({"rows": [0, 1, 2, 3, 0, 5]}, r"row 0 is at client 0 and again at client 1"),
        ({"labelled": [0, 47]}, r"row 47 is labelled, but at no client"),
        ({"labelled": [4]}, r"row 4 is labelled, but 'toy' has no label for it"),
        ({"starts": [0, 5]}, r"starts must begin with 0 and end with the number of rows, 6"),
        ({"starts": [0, 5, 3, 6]}, r"starts falls behind client 1"),
        ({"test_client": [0, 1, 2]}, r"test_client has 3 clients for 2 test examples"),
        ({"rows": [0.5, 1, 2, 3, 4, 5]}, r"rows is float64 \(6,\); give a list of whole numbers"),
        ({"format": 2}, r"a split file of format 2; this version reads 1"),
        ({"rows": None}, r"has no rows, which a split file needs"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(tmp_path, change, message):
    y = np.where(np.arange(TRAIN) == 4, -1, LABELS)
    dataset = dataclasses.replace(DATASET, train=dataclasses.replace(DATASET.train, y=y))
    given = {"rows": np.arange(6), "starts": [0, 3, 6], "examples": [TRAIN, TEST]}
    given |= {"test": [40, 41], "labelled": [0, 3], "dataset": "toy", **change}
    with pytest.raises(ValueError, match=message):
        by_file(
            tmp_path / "s.npz",
            dataset,
            {name: values for name, values in given.items() if values is not None},
        )


def test_files_that_are_no_split_files_and_splits_that_no_file_holds(tmp_path, with_sets):
    with pytest.raises(ValueError, match=r"there is no file .*s\.npz; fedjax-ssl data split"):
        read_split(tmp_path / "s.npz", DATASET)
    (tmp_path / "s.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"s\.npz is cut short, damaged or in another format"):
        read_split(tmp_path / "s.npz", DATASET)
    with pytest.raises(ValueError, match="have coarse labels or sets, which a split file does not"):
        data.write_split(tmp_path / "s.npz", DATASET, with_sets)
