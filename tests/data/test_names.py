"""Classes, clients and patients have one name, whatever file and type they come from."""

import numpy as np
import pandas
import pytest

from fedjax_ssl.data import BadData, load
from fedjax_ssl.data.reading.own import without_marks

PATIENT = 1234567890123456780  # of 19 digits: a double would make neighbours one
ROWS = [
    # label, client, patient, as two exports write them
    ("0", "7", PATIENT),
    ("1.0", "7.0", PATIENT + 1),
    ("0.0", " 7", PATIENT + 1),
    ("1", "8", None),
    ("NA", "8.0", PATIENT + 2),
]


def as_csv(folder):
    path = folder / "rows.csv"
    lines = [f"{i},{y},{c},{p or '?'}" for i, (y, c, p) in enumerate(ROWS)]
    path.write_text("\n".join(["a,label,client,group", *lines]))
    return "table", path


def as_parquet(folder):
    pytest.importorskip("pyarrow")
    path = folder / "rows.parquet"
    _, clients, patients = zip(*ROWS, strict=True)
    columns = {
        "a": np.arange(5.0),
        "label": [0.0, 1.0, 0.0, 1.0, None],
        "client": clients,
        "group": pandas.array(patients, dtype="Int64"),
    }
    pandas.DataFrame(columns).to_parquet(path)
    return "table", path


def as_npz(folder):
    path = folder / "rows.npz"
    _, clients, patients = zip(*ROWS, strict=True)
    arrays = {"labels": np.array([0, 1, 0, 1, -1]), "client": np.array(clients)}
    arrays |= {"group": np.array([-1 if one is None else one for one in patients])}
    np.savez(path, inputs=np.arange(5, dtype=np.float32)[:, None], **arrays)
    return "npz", path


@pytest.mark.parametrize("write", [as_csv, as_parquet, as_npz])
def test_a_name_is_one_whatever_its_type_and_whole_numbers_stay_exact(tmp_path, write):
    source, path = write(tmp_path)
    data = load(source, path=path, root=tmp_path / "root")
    assert (data.class_names, data.train.y.tolist()) == (("0", "1"), [0, 1, 0, 1, -1])
    assert (data.client_names, data.train.client.tolist()) == (("7", "8"), [0, 0, 0, 1, 1])
    assert data.train.group.tolist() == [0, 1, 1, -1, 2]


def table(folder, *lines):
    path = folder / "rows.csv"
    path.write_text("\n".join(lines))
    return path


def test_numbers_that_lost_digits_are_refused(tmp_path):
    lines = ["a,label,group", *(f"{i},{i % 2},1.2345678901234568e+18" for i in range(4))]
    with pytest.raises(BadData, match=r"a group is written 1\.2345.* save such numbers as text"):
        load("table", path=table(tmp_path, *lines), root=tmp_path)


def test_a_mark_is_none_in_every_role_unless_a_class_is_called_so(tmp_path):
    path = table(tmp_path, "a,label,client,coarse", "1,NA,p,x", "2,b,?,y", "3,c,q,null")
    with pytest.raises(BadData, match=r"1 example has no client \(rows.csv, line 3\)") as raised:
        load("table", path=path, root=tmp_path)
    assert "1 coarse label is null, taken as no coarse label" in raised.value.notes
    assert "1 client is ?, taken as no client" in raised.value.notes
    assert any("data.classes=NA,b,c" in note for note in raised.value.notes)
    path = table(tmp_path, "a,label", "1,NA", "2,b", "3,NA")
    data = load("table", path=path, root=tmp_path, classes=("NA", "b"))
    assert data.train.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("patients", "groups", "said"),
    [
        ("1 2 3 1 2 3", 3, "3 of 3 groups (patients), such as 1, are of several clients, and held"),
        ("1 2 3 3 4 5", 5, "1 of 5 groups (patients), such as 3, are of several clients, and held"),
        ("1 2 3 4 5 6", 6, None),
    ],
)
def test_patients_of_several_clients_are_said(tmp_path, patients, groups, said):
    names = patients.split()
    lines = [f"{i},{i % 2},{'pq'[i > 2]},{name}" for i, name in enumerate(names)]
    path = table(tmp_path, "a,label,client,group", *lines)
    arrays = {"labels": np.arange(6) % 2, "client": np.array(list("pppqqq"))}
    inputs = np.arange(6, dtype=np.float32)[:, None]
    np.savez(tmp_path / "a.npz", inputs=inputs, group=np.array(names), **arrays)
    for source, file in (("table", path), ("npz", tmp_path / "a.npz")):
        data = load(source, path=file, root=tmp_path)
        told = [note for note in data.extra["notes"] if "several clients" in note]
        assert len(np.unique(data.train.group)) == groups
        assert told[0].startswith(said) if said else not told


def test_several_labels_in_an_array_are_refused(tmp_path):
    for labels, said in (
        (np.eye(3, dtype=int), r"one-hot labels: give labels\.argmax\(axis=1\)"),
        (np.ones((3, 3), int), r"several labels per example: choose one column"),
    ):
        np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 2), np.float32), labels=labels)
        with pytest.raises(BadData, match=said):
            load("npz", path=tmp_path / "a.npz")


def test_a_mark_of_missing_cells_is_known_in_any_capitals_and_a_number_in_any_form() -> None:
    cells = pandas.Series(["nAN", "n/A", "NaN", "-99.0", "-9", "north"], dtype=object)
    found = without_marks(cells, ("NaN", "N/A", "-99"))
    assert found.tolist() == ["", "", "", "", "-9", "north"]
