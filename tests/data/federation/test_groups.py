"""Groups (patients, copies) are on one side of every split, and test examples are the same
wherever labels are.
"""

import jax
import numpy as np
import pytest
from PIL import Image

from fedjax_ssl import data
from fedjax_ssl.data.dataset import Dataset, Split, with_pooled_splits
from fedjax_ssl.data.federation.dealing import draw_within
from fedjax_ssl.data.federation.federate import federate
from fedjax_ssl.data.federation.held_out import stratified
from fedjax_ssl.data.reading import copies
from fedjax_ssl.data.reading.copies import keep_copies_together

RNG = np.random.default_rng(0)
GROUP = np.repeat(np.arange(60), RNG.integers(1, 9, 60)).astype(np.int32)
GROUP[RNG.random(len(GROUP)) < 0.1] = -1
N = len(GROUP)
CLIENT = np.where(GROUP < 0, RNG.integers(0, 3, N), GROUP % 3).astype(np.int32)
LABELS = RNG.integers(-1, 3, N).astype(np.int32)
PATIENTS = Dataset(
    "toy",
    Split(np.arange(N, dtype=np.float32)[:, None], LABELS, CLIENT, group=GROUP),
    None,
    tuple("abc"),
)


def sides(data):
    """Rows that are trained on, validated on and tested on."""
    index = np.asarray(data.index)
    trained = [index[client, : int(count)] for client, count in enumerate(data.num_examples)]
    tables = ((data.valid_index, data.num_valid), (data.test_index, data.num_test))
    return [np.concatenate(trained), *(np.asarray(table)[: int(count)] for table, count in tables)]


def assert_apart(data, group=GROUP):
    found = [set(group[rows][group[rows] >= 0].tolist()) for rows in sides(data)]
    assert not (found[0] & found[1] or found[0] & found[2] or found[1] & found[2])


@pytest.mark.parametrize(
    ("share", "partition"), [("client_test_fraction", "natural"), ("test_fraction", "iid")]
)
def test_a_group_is_on_one_side_of_every_split(share, partition):
    for seed in range(2):
        options = {share: 0.3, "validation_fraction": 0.2, "partition": partition, "num_clients": 3}
        data = federate(jax.random.key(seed), PATIENTS, supervision="all", **options)
        assert_apart(data)
        asked = 0.3 * ((LABELS >= 0).sum() if share == "test_fraction" else N)
        assert abs(int(data.num_test) - asked) <= 3 * GROUP_SIZE / 2 + 2 and int(data.num_valid)


GROUP_SIZE = int(np.bincount(GROUP[GROUP >= 0]).max())


def test_a_patient_of_two_clients_does_not_train_where_one_of_them_is_left_out():
    both = GROUP.copy()
    both[CLIENT == 1] = 0  # one patient, who has rows at client 0 too
    split = Split(PATIENTS.train.x, LABELS, CLIENT, group=both)
    data = federate(
        jax.random.key(0),
        Dataset("toy", split, None, tuple("abc")),
        supervision="all",
        left_out_client=1,
    )
    assert_apart(data, both)
    # the others are unused
    assert set(sides(data)[2].tolist()) == set(np.flatnonzero(CLIENT == 1).tolist())
    assert data.summary()["unused_examples"] == ((CLIENT == 0) & (both == 0)).sum()


def test_groups_of_one_are_drawn_in_the_numbers_of_single_examples():
    cell = RNG.integers(-1, 4, 100).astype(np.int32)
    quota = np.array([3, 0, 5, 7], np.int32)
    drawn = np.asarray(draw_within(jax.random.key(1), cell, quota, np.arange(100, dtype=np.int32)))
    np.testing.assert_array_equal(np.bincount(cell[drawn], minlength=4), quota)
    assert (cell[drawn] >= 0).all()


def test_pools_refuse_groups():
    with pytest.raises(ValueError, match="would part groups"):
        federate(jax.random.key(0), PATIENTS, partition="iid", num_clients=2, pools=(5, 1, 1))


@pytest.mark.parametrize(
    ("held", "partition", "grouped"),
    [
        ({"client_test_fraction": 0.2}, "natural", True),
        pytest.param({"test_fraction": 0.2}, "iid", False, marks=pytest.mark.thorough),
        *(
            pytest.param(held, partition, grouped, marks=pytest.mark.thorough)
            for held in ({"test_clients": 1}, {"left_out_client": 2})
            for partition, grouped in (("natural", True), ("iid", False))
        ),
    ],
)
def test_test_examples_are_the_same_wherever_labels_are(held, partition, grouped):
    split = Split(PATIENTS.train.x, LABELS % 3, CLIENT, group=GROUP if grouped else None)
    dataset = Dataset("toy", split, None, tuple("abc"))
    places = (
        {"supervision": "all"},
        {"supervision": "server", "supervision_options": {"labels": 30}},
        {
            "supervision": "per_client",
            "supervision_options": {"labels": 4},
            "validation_fraction": 0.3,
        },
    )
    clients = {"partition": partition, "num_clients": 2}
    tested = [
        sides(federate(jax.random.key(7), dataset, **held, **clients, **place))[2]
        for place in places
    ]
    assert len(tested[0]) and all(np.array_equal(tested[0], rows) for rows in tested)


def test_validation_is_the_share_of_what_the_test_leaves():
    client = np.repeat(np.arange(4), (400, 100, 60, 40)).astype(np.int32)
    dataset = Dataset(
        "toy", Split(np.arange(600.0)[:, None], np.arange(600) % 3, client), None, tuple("abc")
    )
    data = federate(
        jax.random.key(0),
        dataset,
        supervision="all",
        client_test_fraction=0.25,
        validation_fraction=0.2,
    )
    np.testing.assert_array_equal(np.bincount(client[sides(data)[2]]), [100, 25, 15, 10])
    assert int(data.num_valid) == 90 and len(sides(data)[0]) == 360


def test_copies_are_said_and_stay_together():
    x = np.repeat(np.arange(40.0)[:, None], 5, axis=0)
    labels = np.arange(200) % 2
    found = keep_copies_together(
        Dataset("toy", Split(x, labels), Split(x[:3], labels[:3]), ("a", "b"))
    )
    assert found.extra["notes"] == [
        "160 of 200 rows are copies of others, first example 1 (of example 0), and 80 of them "
        "have another label; they stay together",
        "3 of 3 test examples are training examples too, to the bit",
    ]
    data = federate(
        jax.random.key(0),
        with_pooled_splits(found),
        partition="iid",
        num_clients=2,
        test_fraction=0.2,
        supervision="all",
    )
    trained, _, tested = sides(data)
    assert not set(np.asarray(data.inputs)[trained, 0]) & set(np.asarray(data.inputs)[tested, 0])


@pytest.mark.parametrize("times", [1, 2, 8])
def test_copies_are_those_of_equal_bytes(times):
    train, test = (
        np.random.default_rng(0)
        .integers(0, 3, (2, 60, 1, 1, 3), dtype=np.uint8)
        .repeat(times, axis=-1)
    )
    labels = np.arange(60) % 2
    found = keep_copies_together(
        Dataset("toy", Split(train, labels), Split(test, labels), ("a", "b"))
    )
    seen: dict[bytes, int] = {}
    expected = [seen.setdefault(row.tobytes(), len(seen)) for row in (*train, *test)]
    assert len(seen) < 120
    np.testing.assert_array_equal([*found.train.group, *found.test.group], expected)


def test_nobody_looks_for_copies_in_too_many_bytes(monkeypatch):
    monkeypatch.setattr(copies, "MOST", 100)
    x = np.zeros((40, 2), np.float32)
    labels = np.arange(40) % 2
    found = keep_copies_together(Dataset("toy", Split(x, labels), None, ("a", "b")))
    assert found.train.group is None
    assert found.extra["notes"] == [
        "inputs of 0.0 GB: above 0.0 GB nobody looks for copies of examples"
    ]


def test_given_groups_are_kept_where_copies_differ_in_them():
    x = np.zeros((4, 2), np.float32)
    group = np.array([0, 0, 1, -1])
    found = keep_copies_together(
        Dataset("toy", Split(x, np.zeros(4, int), group=group), None, ("a", "b"))
    )
    np.testing.assert_array_equal(found.train.group, group)
    assert (
        found.extra["notes"][0]
        == "3 training examples are in 2 groups, each on one side of every split"
    )
    assert "2 are in another group, so that splits may part them" in found.extra["notes"][1]


def test_data_without_copies_and_groups_are_left_as_they_are():
    dataset = Dataset("toy", Split(np.arange(4.0)[:, None], np.arange(4) % 2), None, ("a", "b"))
    found = keep_copies_together(dataset)
    assert found.train.group is None and not found.extra["notes"]


def test_a_class_keeps_one_group_for_training():
    labels = np.repeat([0, 1], (4, 12))
    group = np.repeat([0, 1, 2, 3], 4)
    drawn = stratified(jax.random.key(0), labels, np.ones(16, bool), 2, 0.7, group.astype(np.int32))
    assert not np.asarray(drawn)[:4].any() and 4 <= np.asarray(drawn).sum() <= 8


def test_groups_are_read_from_tables_folders_and_arrays(tmp_path):
    patients = ["p2", "", "p1", "p2", "p10", ""]
    cells = [f"{row},{patient},{'ab'[row % 2]}" for row, patient in enumerate(patients)]
    (tmp_path / "t.csv").write_text("\n".join(["size,patient,label", *cells]))
    table = data.load(
        "table", root=tmp_path / "data", path=tmp_path / "t.csv", group_column="patient"
    )
    # as kept
    again = data.load(
        "table", root=tmp_path / "data", path=tmp_path / "t.csv", group_column="patient"
    )
    (tmp_path / "scans").mkdir()
    for row in range(6):
        Image.new("L", (4, 4), 10 * row).save(tmp_path / "scans" / f"{row}.png")
    cells = [f"{row}.png,{patient},{'ab'[row % 2]}" for row, patient in enumerate(patients)]
    (tmp_path / "scans" / "t.csv").write_text("\n".join(["file,group,label", *cells]))
    folder = data.load("folder", root=tmp_path / "data", path=tmp_path / "scans")
    np.savez(
        tmp_path / "a.npz", inputs=np.eye(6), labels=np.arange(6) % 2, group=np.array(patients)
    )
    arrays = data.load("npz", path=tmp_path / "a.npz")
    for dataset in (table, again, folder, arrays):
        group = dataset.train.group
        assert (
            group[0] == group[3]
            and len({group[0], group[2], group[4]}) == 3
            and group[1] == group[5] == -1
        )
        assert (
            "4 training examples are in 3 groups, each on one side of every split"
            in dataset.extra["notes"]
        )
    with pytest.raises(ValueError, match="no column 'patients'"):
        data.load("table", root=tmp_path / "data", path=tmp_path / "t.csv", group_column="patients")


def test_a_copy_without_a_label_has_no_other_label() -> None:
    labels = np.array([-1, 0, -1, 1, 0, -1])
    found = keep_copies_together(Dataset("toy", Split(np.zeros((6, 1)), labels), None, ("a", "b")))
    (said,) = found.extra["notes"]
    assert said.startswith("5 of 6 rows are copies of others")
    assert "and 1 of them have another label" in said
