"""Tables of features of a user's own, and of the class shares of sets."""

from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_ssl.data import BadData, DatasetUnavailable, check, federate, load, source_of
from fedjax_ssl.data.reading.proportions import read_proportions

ROWS = ["age,weight,label,client", "30,1.5,ill,north", "40,-2e1,well,south", "50,3,ill,south", "60,4,,north"]


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines, name="patients.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        return path

    return write_lines


def read(path, **options):
    return load("table", path=path, root=path.parent / "root", **options)


def test_columns_become_features_labels_and_clients_and_are_kept(write, monkeypatch):
    path = write(*ROWS)
    first = read(path)
    monkeypatch.setattr("fedjax_ssl.data.sources.table.read_table", None)
    for data in (first, read(path)):
        np.testing.assert_array_equal(data.train.x, np.float32([[30, 1.5], [40, -20], [50, 3], [60, 4]]))
        assert (data.train.y.tolist(), data.train.client.tolist()) == ([0, 1, 0, -1], [0, 1, 1, 0])
        assert (data.class_names, data.client_names) == (("ill", "well"), ("north", "south"))
        assert (data.extra["features"], data.input_max) == (["age", "weight"], 1.0)


def test_chosen_columns_other_names_and_a_split(write):
    path = write(
        "id;höhe;b;diagnosis;part;note",
        "x;1;2;b;train;.",
        "y;3;4;a;test;?",
        "z;5;6;b;;",
        "w;7;8;a;train;",
        encoding="utf-8-sig",
    )
    options = {"label_column": "diagnosis", "split_column": "part"}
    for chosen in ({"features": ("b", "höhe")}, {"ignore": ("id", "note")}):
        data = read(path, **options, **chosen)
        expected = np.float32([[1, 2], [5, 6], [7, 8]])
        np.testing.assert_array_equal(data.train.x, expected[:, ::-1] if "features" in chosen else expected)
        assert (data.train.y.tolist(), data.test.y.tolist(), data.train.client) == ([1, 1, 0], [0], None)
    assert read(path, **options, ignore=("id", "note"), classes=("b", "c", "a")).train.y.tolist() == [0, 0, 2]


def test_empty_cells_are_refused_or_their_rows_left_out(write):
    path = write(*ROWS, ",7,well,south", "70,inf,ill,north")
    with pytest.raises(
        BadData, match=r"2 of 6 rows have empty, NaN or infinite features .*line 6, .*line 7.* age, weight"
    ):
        read(path)
    data = read(path, missing="drop")
    assert len(data.train) == 4 and "they are left out" in data.extra["notes"][0]


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["a,lable", "1,x", "2,y"], {}, "no column 'label'. Did you mean 'lable'.*data.label_column"),
        (["a,label", "m,x", "2,y"], {}, "column 'a' holds 'm' in patients.csv, line 2, which is no number; .*ignore=a"),
        (["a;label", "1,5;x", "2;y"], {}, "write decimals with a point"),
        (["a,label", "1,x", "2,y"], {"features": ("a", "label")}, "'label' is a feature and the label at once"),
        (["a,label", "1,x", "2,y"], {"client_column": "site"}, "no column 'site', which data.client_column names"),
        (["a,a,label", "1,1,x", "2,2,y"], {}, "column 'a' is there 2 times"),
        (["a,label"], {}, "has no rows"),
        (["a,label", '1,"x', "2,y"], {}, "line 3 is no line of a table: unexpected end of data"),
        (["a,label,set", "1,x,0", "2,y,1"], {}, "there are sets but no clients"),
        (
            ["a,label,client,set", "1,x,n,0.5", "2,y,n,9"],
            {},
            "set is '0.5' in patients.csv, line 2, patients.csv, line 3",
        ),
        (["a,label,split", "1,x,test", "2,y,test"], {}, "all examples are test examples"),
        (["a,label", "1,x", "2,y"], {"classes": ("x", "x", "y")}, "at least two names, each once"),
    ],
)
def test_tables_that_cannot_be_right(write, lines, options, message):
    with pytest.raises(BadData, match=message):
        read(write(*lines), **options)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("a,label\n1,süd\n2,y\n".encode("latin-1"))
    with pytest.raises(BadData, match="line 2 is not UTF-8"):
        read(path)
    with pytest.raises(DatasetUnavailable, match=r"none.csv is not there"):
        read(tmp_path / "none.csv")


def test_parquet_is_the_same(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"age": [30, 40, 50], "w": [1.5, -2.0, 3.0], "label": [1.0, None, 0.0], "client": ["n", "s", "s"]}
    parquet.write_table(arrow.table({**columns, "__index_level_0__": [0, 1, 2]}), tmp_path / "p.parquet")
    data = read(tmp_path / "p.parquet")
    np.testing.assert_array_equal(data.train.x, np.float32([[30, 1.5], [40, -2], [50, 3]]))
    assert (data.train.y.tolist(), data.class_names, data.client_names) == ([1, -1, 0], ("0", "1"), ("n", "s"))
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadData, match="no readable Parquet file"):
        read(tmp_path / "bad.parquet")


def test_check_knows_the_source_by_the_file(write, tmp_path):
    assert source_of(write(*ROWS)) == "table" and source_of(tmp_path) == "folder"
    assert source_of(write("file,label", "a.png,x", name="about.tsv")) == "folder"
    np.savez(tmp_path / "a.npz", inputs=np.zeros((6, 2), np.float32), labels=np.arange(6) % 2)
    found = check(tmp_path / "a.npz")
    assert found.source == "npz" and "2 features are the same for all: number 0, number 1" in found.notes
    with pytest.raises(BadData, match="is none of"):
        source_of(write("x", name="a.docx"))
    bad = check(write("a,label", "x,y", "1,z"), root=tmp_path / "root")
    assert bad.dataset is None and len(bad.problems) == 1


def test_check_sees_test_examples_among_the_training_examples_and_labels_that_are_no_classes(write, tmp_path):
    path = write("a,b,label,split", "1,2,x,", "2,3,y,", "1,2,x,test", "4,4,nan,test")
    notes = check(path, root=tmp_path / "root").notes
    assert "1 of 2 test examples are training examples too, to the bit" in notes
    assert any("nan counts as a class" in note for note in notes)
    many = write("a,label", *(f"{i},{i / 7}" for i in range(50)), name="many.csv")
    assert any("are these classes?" in note for note in check(many, root=tmp_path / "root").notes)


def test_columns_that_may_be_misspelt_are_said(write):
    found = check(write("age,label,Client,sett", "1,x,0,1", "2,y,1,2"), root=write("x", name="y").parent / "root")
    assert found.dataset.extra["features"] == ["age", "Client", "sett"]
    assert [note for note in found.notes if "taken for" in note] == [
        "column 'Client' is not taken for 'client', which is not there; did you mean 'client'?"
    ]


# Class shares of sets.


CLASSES, CLIENTS = ("healthy", "ill"), ("north", "south", "unused")
CLIENT = np.array([0, 0, 0, 1, 1, 1])
SETS = np.array([0, 1, -1, 0, 0, 2])
GOOD = """client,set,ill,healthy
north,0,0.2,0.8
north,1,0.65,0.35

south,0,0.5,0.5
south,2,0.1,0.9
"""


def shares_of(folder: Path, text: str) -> np.ndarray:
    path = folder / "shares.csv"
    path.write_text(text)
    return read_proportions(path, CLASSES, CLIENTS, CLIENT, SETS)


def test_lines_go_to_their_client_set_and_class(tmp_path: Path) -> None:
    expected = np.zeros((2, 3, 2))
    expected[0, :2] = [[0.8, 0.2], [0.35, 0.65]]
    expected[1, 0], expected[1, 2] = [0.5, 0.5], [0.9, 0.1]
    np.testing.assert_allclose(shares_of(tmp_path, GOOD), expected)
    np.testing.assert_allclose(
        shares_of(tmp_path, "\ufeff" + GOOD.replace("0.2,0.8", "0.2003,0.8")).sum(axis=2)[0, 0], 1.0
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ill,healthy\n", "ill,\n"), "column 'healthy' is missing"),
        (("ill,healthy\n", "ill,helthy\n"), "unknown column 'helthy'. Did you mean 'healthy'"),
        (("north,1", "nord,1"), "line 3: unknown client 'nord'. Did you mean 'north'"),
        (("north,1", "north,one"), "line 3: set is 'one'"),
        (("north,1", "north,0"), "line 3: client 'north', set 0 has a line already"),
        (("south,2", "south,1"), "client 'south' has no training example in set 1"),
        (("0.65,0.35", "0.65,0.45"), r"line 3: class shares sum to 1\.1"),
        (("0.65,0.35", "-0.5,1.5"), "all must be finite and at least 0"),
        (("0.65,0.35", "a,0.35"), "all must be numbers"),
        (("0.65,0.35", "0.65"), "the first line has 4 cells, but line 3 has 3"),
        (("south,2,0.1,0.9\n", ""), "no line for client 'south', set 2"),
        ((GOOD, ""), "has no rows"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        shares_of(tmp_path, GOOD.replace(*change))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailable, match=r"shares\.csv is not there"):
        read_proportions(tmp_path / "shares.csv", CLASSES, CLIENTS, CLIENT, SETS)


def test_an_npz_file_with_sets_becomes_a_federation(tmp_path: Path) -> None:
    arrays = {
        "inputs": np.arange(12, dtype=np.float32).reshape(6, 2),
        "labels": np.full(6, -1),
        "client": np.array(CLIENTS)[CLIENT],
        "set": SETS,
        "class_names": np.array(CLASSES),
        "test_inputs": np.zeros((2, 2), np.float32),
        "test_labels": np.array([0, 1]),
    }
    np.savez(tmp_path / "scans.npz", **arrays)
    (tmp_path / "shares.csv").write_text(GOOD)
    dataset = load("npz", path=tmp_path / "scans.npz", proportions=tmp_path / "shares.csv")
    data = federate(jax.random.key(0), dataset, supervision="given")
    assert data.kinds() == ("sets",)
    np.testing.assert_allclose(data.weak.matrix[0, 1], [0.35, 0.65])
    np.testing.assert_allclose(data.weak.prior, [(0.8 + 0.35 + 2 * 0.5 + 0.9) / 5, (0.2 + 0.65 + 2 * 0.5 + 0.1) / 5])
    np.savez(tmp_path / "scans.npz", **{name: values for name, values in arrays.items() if name != "set"})
    with pytest.raises(ValueError, match="not the arrays `set` and `client`"):
        load("npz", path=tmp_path / "scans.npz", proportions=tmp_path / "shares.csv")
