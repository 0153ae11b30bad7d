"""Tables of features of a user's own, and of the class shares of sets."""

import datetime
import gzip
from pathlib import Path

import jax
import numpy as np
import pandas
import pytest

from fedjax_ssl.data import (
    BadData,
    Dataset,
    DatasetUnavailable,
    Split,
    check,
    federate,
    load,
    remarks,
    source_of,
    standardized,
)
from fedjax_ssl.data.reading.cache import reading_from_json
from fedjax_ssl.data.reading.columns import read_proportions

ROWS = [
    "age,weight,label,client",
    "30,1.5,ill,north",
    "40,-2e1,well,south",
    "50,3,ill,south",
    "60,4,,north",
]


@pytest.fixture
def write(tmp_path):
    def write_lines(*lines, name="patients.csv", encoding="utf-8"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding=encoding)
        return path

    return write_lines


def read(path, **options):
    return load("table", path=path, root=path.parent / "root", **options)


def test_a_column_that_is_left_out_has_no_role(write):
    path = write("a,group,label", "1,placebo,x", "2,drug,y", "3,drug,x")
    assert read(path).train.group is not None
    left = read(path, ignore=("group",))
    assert left.train.group is None and left.extra["features"] == ["a"]


def test_columns_become_features_labels_and_clients_and_are_kept(write, monkeypatch):
    path = write(*ROWS)
    first = read(path)
    monkeypatch.setattr("fedjax_ssl.data.sources.table.read_table", None)
    for data in (first, read(path)):
        np.testing.assert_array_equal(
            data.train.x, np.float32([[30, 1.5], [40, -20], [50, 3], [60, 4]])
        )
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
        np.testing.assert_array_equal(
            data.train.x, expected[:, ::-1] if "features" in chosen else expected
        )
        assert (data.train.y.tolist(), data.test.y.tolist(), data.train.client) == (
            [1, 1, 0],
            [0],
            None,
        )
    assert read(
        path, **options, ignore=("id", "note"), classes=("b", "c", "a")
    ).train.y.tolist() == [0, 0, 2]


def test_empty_cells_are_refused_or_their_rows_left_out(write):
    path = write(*ROWS, ",7,well,south", "70,NA,ill,north")
    with pytest.raises(
        BadData, match=r"2 of 6 rows .* cells, first .*line 6; by column: age 1, weight 1;"
    ):
        read(path)
    refused = check(path, root=path.parent / "root", missing="refuse")
    assert "fill them in" in refused.problems[0] and not refused.notes
    data = read(path, missing="drop")
    assert len(data.train) == 4 and "these rows are left out" in data.extra["notes"][0]
    assert data.train.names.tolist() == [f"patients.csv, line {line}" for line in (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            ["a,lable", "1,x", "2,y"],
            {},
            "no column 'label'. Did you mean 'lable'.*--data.label_column=COLUMN",
        ),
        (
            ["a,label", "m,x", "2,y"],
            {},
            "column 'a' holds 'm' in patients.csv, line 2, which is no number; .*ignore=a",
        ),
        (["a;label", "1,5;x", "2.5;y"], {}, "holds '1,5' in .* is no number; .*data.decimal="),
        (["a;label", "1,5;x", "2,5;y"], {}, "numbers with a decimal comma, such as '1,5'"),
        (["a;label", "1.234,5;x", "2,5;y"], {"decimal": ","}, "holds '1.234,5' in patients"),
        (["a,label", "-inf,x", "3,y"], {}, "holds '-inf' in patients.csv, line 2, which is no num"),
        (["a,label", "<5,x", "7,y"], {}, "holds '<5' in .* write one there.*data.missing_marks="),
        (
            ["a,label", "01/02/2020,x", "03.04.2020,y"],
            {"dates": ("a",), "date_format": "%d/%m/%Y"},
            "'03.04.2020' in patients.csv, line 3, which is no date of the form %d/%m/%Y",
        ),
        (["a,label", *(f"w{i // 2},{i % 2}" for i in range(102))], {}, "51 different words, .*"),
        (
            ["a,b,label,split", "1,?,x,", "2,3,y,test", "2,,y,"],
            {"missing": "median"},
            "'b' is missing in all training",
        ),
        (
            ["a,label", "1,x", "2,y"],
            {"features": ("a", "label")},
            "'label' is a feature and the label at once",
        ),
        (
            ["a,label", "1,x", "2,y"],
            {"client_column": "site"},
            "no column 'site', which data.client_column names",
        ),
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
        (
            ["a,label", "1,x", "2,y"],
            {"classes": ("x", "x", "y")},
            "data.classes=x,x,y; give at least two",
        ),
    ],
)
def test_tables_that_cannot_be_right(write, lines, options, message):
    with pytest.raises(BadData, match=message):
        read(write(*lines), **options)


def test_bytes_that_are_packed_not_utf8_or_cut_short(tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes("a,label\n1,süd\n2,y\n".encode("latin-1"))
    with pytest.raises(BadData, match=r"line 2 is not UTF-8.*read_csv\('latin.csv', encoding='cp"):
        read(path)
    path.write_bytes("a,label\n1,süd\n2,y\n".encode("utf-16"))
    with pytest.raises(BadData, match=r"line 1 is not UTF-8.* utf-16: pandas\.read_csv"):
        read(path)
    path.write_text("a,label\n1,süd\n2,y\n")
    (packed := tmp_path / "rows.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert source_of(packed) == "table" and read(packed).class_names == ("süd", "y")
    packed.write_bytes(gzip.compress(path.read_bytes())[:20])
    with pytest.raises(BadData, match="cut short"):
        read(packed)
    with pytest.raises(DatasetUnavailable, match=r"none.csv is not there"):
        read(tmp_path / "none.csv")


HEART = [
    "age,chest,chol,seen,diagnosis,hospital",
    "63,typical,233,2020-01-05,0,north",
    "?,none,NA,2020-01-06,2,north",
    "41,none,null,2020-02-05,0,south",
    "56,typical,236,,1,south",
    "57,other,354,2021-01-05,1,west",
]
COLUMNS = {"label_column": "diagnosis", "client_column": "hospital", "dates": ("seen",)}


def test_marks_words_and_dates(write):
    data = read(write(*HEART), **COLUMNS, missing="median")
    known = {name: data.train.x[:, place] for place, name in enumerate(data.extra["features"])}
    assert list(known) == [
        "age",
        "chest=none",
        "chest=other",
        "chest=typical",
        "chol",
        "seen",
    ]
    assert known["age"].tolist() == [63, 56.5, 41, 56, 57] and known["chol"].tolist() == [
        233,
        236,
        236,
        236,
        354,
    ]
    assert known["chest=none"].tolist() == [0, 1, 1, 0, 0]
    days = np.array(
        ["2020-01-05", "2020-01-06", "2020-02-05", "1970-01-01", "2021-01-05"], "M8[D]"
    ).astype(int)
    np.testing.assert_array_equal(
        known["seen"], np.where(days, days, np.median(days[days > 0])).astype(np.float32)
    )
    notes = " ".join(data.extra["notes"])
    for said in (
        "chest (3)",
        "seen (ISO8601)",
        "by column: age 1, chol 2, seen 1",
    ):
        assert said in notes
    # model.json of earlier versions has fields that are no longer there
    old = data.reading.as_json() | {"max_levels": 50, "fills": {}}
    old["features"] = [feature | {"center": 0.0} for feature in old["features"]]
    assert reading_from_json(old) == data.reading


def test_medians_of_all_do_not_go_with_means_of_each_client(write):
    rows = [f"{v},{i % 2},{'pq'[v < 9]},train" for i, v in enumerate(range(18))]
    rows += [",,p,train", ",1,q,Test", "99,0,q,Test"]
    path = write("chol,label,site,split", *rows)
    data = read(path, missing="median", client_column="site")
    with pytest.raises(ValueError, match="or fill them in by client") as refused:
        standardized(data, "client")
    table = pandas.read_csv(path)
    exec(str(refused.value).partition("by client: ")[2])
    assert table["chol"].tolist()[18:] == [13, 4, 99] and table["label"].isna().sum() == 1
    standardized(read(path, missing="drop", client_column="site"), "client")


def test_differences_that_single_precision_loses_are_refused(write):
    path = write("stamp,label", *(f"{1600000001 + i},{i % 2}" for i in range(4)))
    with pytest.raises(BadData, match=r"so far from 0 .*table\['stamp'\] -= 1600000001"):
        read(path)


def test_text_for_several_names_is_cut_at_its_commas(write):
    path = write("a,b,label", "1,?,x", "NA,2,y", "3,4,x")
    data = read(path, missing="drop", missing_marks="?, NA")
    assert data.train.x.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize(
    ("name", "other", "alike"),
    [
        (">50K", ">50K.", True),
        (">50K", "<=50K", False),
        ("low income", "low income\u200b", True),
        ("yes", "\ufeffYES", True),
        ("pre-term", "pre\u2013term", True),
        ("yes", "'yes'", True),
        ("HER2+", "HER2", False),
    ],
)
def test_classes_that_differ_by_a_dot_or_by_what_nobody_sees_are_said(name, other, alike):
    x = np.zeros((40, 1), np.float32)
    train = Split(x, np.arange(40) % 2)
    found = remarks(Dataset("toy", train, None, (name, other)))
    assert any("is spelt almost like" in one for one in found) == alike


def test_a_client_that_is_left_out_teaches_nothing(write):
    left_out = read(write(*HEART), **COLUMNS, missing="median", left_out_client="west")
    assert left_out.extra["features"][1:3] == ["chest=none", "chest=typical"]
    assert left_out.train.x[:, 3].tolist() == [233, 234.5, 234.5, 236, 354]
    assert left_out.train.x[4, 1:3].tolist() == [0, 0]
    said = (
        "column 'chest' holds 'other' in patients.csv, line 6, which is no word that training "
        "knew; its inputs are 0"
    )
    assert any(said in note for note in left_out.extra["notes"])


def test_columns_are_what_the_training_rows_hold(write):
    north = [f"{i},{i % 2},north" for i in range(1, 4)]
    path = write("dose,label,client", *north, *(f"low,{i % 2},south" for i in range(5)))
    with pytest.raises(BadData, match=r"holds 'low' in patients\.csv, line 5.*no number"):
        read(path, left_out_client="south")


def test_a_word_of_its_own_in_every_cell_is_refused_although_some_are_empty(write):
    path = write("name,a,label", *(f"{f'n{i}' if i else ''},{i},{i % 2}" for i in range(40)))
    with pytest.raises(
        BadData, match="holds 39 different words, such as 'n1', each of them once, too many"
    ):
        read(path, missing="median")


def test_codes_are_words_where_they_are_named_and_signs_are_words(write):
    data = read(write("cp,rh,label", "1.0,+,a", "10,-,b", "2,-,a"), codes=("cp",))
    assert data.extra["features"] == ["cp=1", "cp=2", "cp=10", "rh=+", "rh=-"]
    own = read(
        write("a,label", "1,a", "-9,b", "3,a", name="own.csv"),
        missing="median",
        missing_marks=(-9,),
    )
    assert own.train.x.ravel().tolist() == [1, 2, 3]


def test_names_of_columns_that_are_numbers_are_said(write):
    path = write("5.1,3.5,setosa", "4.9,3,setosa", "6.3,2.9,virginica")
    (said, *_) = read(path, label_column="setosa").extra["notes"]
    assert said.startswith("names of columns are numbers (5.1, 3.5); if the first line is an exam")


def test_ranges_are_words(write):
    assert read(write("age,label", "<40,x", "40-60,y", ">60,x")).extra["features"] == [
        "age=40-60",
        "age=<40",
        "age=>60",
    ]


def test_decimal_commas_and_lines_of_rows_with_breaks(write):
    data = read(write("a;label", '0,5;"x', 'y"', "1,234;z"), decimal=",")
    assert data.train.x.ravel().tolist() == pytest.approx([0.5, 1.234])
    assert data.train.names.tolist() == ["patients.csv, line 2", "patients.csv, line 4"]


def test_parquet_is_the_same(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "age": [30, 40, 50],
        "w": [1.5, -2.0, 3.0],
        "label": [1.0, None, 0.0],
        "client": ["n", "s", "s"],
    }
    parquet.write_table(
        arrow.table({**columns, "__index_level_0__": [0, 1, 2]}), tmp_path / "p.parquet"
    )
    data = read(tmp_path / "p.parquet")
    np.testing.assert_array_equal(data.train.x, np.float32([[30, 1.5], [40, -2], [50, 3]]))
    assert (data.train.y.tolist(), data.class_names, data.client_names) == (
        [1, -1, 0],
        ("0", "1"),
        ("n", "s"),
    )
    columns = {
        "w": ["x", None, "y"],
        "on": [True, False, None],
        "day": [datetime.date(2020, 1, 2)] * 3,
    }
    parquet.write_table(
        arrow.table({**columns, "label": [True, False, True]}), tmp_path / "w.parquet"
    )
    data = read(tmp_path / "w.parquet", missing="median", dates=("day",))
    assert data.extra["features"] == ["w=x", "w=y", "on", "day"] and data.class_names == ("0", "1")
    assert data.train.x[1].tolist() == [1, 0, 0, 18263]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadData, match="no readable Parquet file"):
        read(tmp_path / "bad.parquet")


def test_check_knows_the_source_by_the_file(write, tmp_path):
    assert source_of(write(*ROWS)) == "table" and source_of(tmp_path) == "folder"
    assert source_of(write("file,label", "a.png,x", name="about.tsv")) == "folder"
    np.savez(tmp_path / "a.npz", inputs=np.zeros((6, 2), np.float32), labels=np.arange(6) % 2)
    found = check(tmp_path / "a.npz")
    assert (
        found.source == "npz"
        and "2 features are the same for all: number 0, number 1" in found.notes
    )
    with pytest.raises(BadData, match="is none of"):
        source_of(write("x", name="a.docx"))
    bad = check(write("a,label", "x,y", "1,z"), root=tmp_path / "root")
    assert bad.dataset is None and len(bad.problems) == 1


def test_check_sees_test_examples_among_the_training_examples_and_labels_that_are_no_classes(
    write, tmp_path
):
    path = write("a,b,label,split", "1,2,x,", "2,3,y,", "1,2,x,test", "4,4,nan,test")
    notes = check(path, root=tmp_path / "root").notes
    assert "1 of 2 test examples are training examples too, to the bit" in notes
    assert any("1 label is nan, taken as no label" in note for note in notes)
    assert (
        "1 label is -1, taken as no label; if it is a class, name all classes: data.classes=-1,0,1"
    ) in check(write("a,label", "1,-1", "2,0", "3,1"), root=tmp_path / "root").notes
    named = read(tmp_path / "patients.csv", classes=(-1, 0, 1))
    assert (named.class_names, named.train.y.tolist()) == (("-1", "0", "1"), [0, 1, 2])
    many = write("a,label", *(f"{i},{i / 7}" for i in range(50)), name="many.csv")
    assert any("are these classes?" in note for note in check(many, root=tmp_path / "root").notes)


def test_columns_that_may_be_misspelt_are_said(write):
    found = check(
        write("age,label,Client,sett", "1,x,0,1", "2,y,1,2"),
        root=write("x", name="y").parent / "root",
    )
    assert found.dataset.extra["features"] == ["age", "Client", "sett"]
    assert [note for note in found.notes if "taken for" in note] == [
        "column 'Client' is not taken for 'client', which is not there; did you mean 'client'?"
    ]


# Class shares of sets.


CLASSES = ("healthy", "ill")
CLIENTS = ("north", "south", "unused")
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
        (
            ("ill,healthy\n", "ill,\n"),
            "has the columns client, set, ill; needed are client, set, healthy, ill",
        ),
        (("north,1", "nord,1"), "line 3: client 'nord', set 1 has no .* Did you mean 'north'"),
        (("north,1", "north,one"), "line 3: client 'north', set one has no training example"),
        (("north,1", "north,0"), "line 3: client 'north', set 0 has a line already"),
        (("south,2", "south,1"), "client 'south', set 1 has no training example"),
        (("0.65,0.35", "0.65,0.45"), r"line 3: .* class shares .* which sum to 1\.1"),
        (("0.65,0.35", "-0.5,1.5"), r"line 3: .* class shares .*-0\.5.* numbers of at least 0"),
        (("0.65,0.35", "a,0.35"), r"line 3: .* class shares .*nan.* must be numbers"),
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
    np.testing.assert_allclose(
        data.weak.prior, [(0.8 + 0.35 + 2 * 0.5 + 0.9) / 5, (0.2 + 0.65 + 2 * 0.5 + 0.1) / 5]
    )
    np.savez(
        tmp_path / "scans.npz", **{name: values for name, values in arrays.items() if name != "set"}
    )
    with pytest.raises(ValueError, match="not the columns or arrays set and client"):
        load("npz", path=tmp_path / "scans.npz", proportions=tmp_path / "shares.csv")


def test_check_lists_what_could_be_the_label_and_all_else_that_is_wrong(tmp_path):
    path = tmp_path / "rows.csv"
    rows = [f"{7 * i},P{i},{i % 5 or '.'},{i % 3},{i * 1.5 % 7},n{i % 4}" for i in range(60)]
    path.write_text("\n".join(["nr,patient,dose,outcome,age,site", *rows]))
    found = check(path, root=tmp_path)
    assert found.dataset is None and len(found.problems) == 2
    assert (
        "few values, and how many these are: dose (5), outcome (3), age (14)" in found.problems[0]
    )
    assert "'patient' holds 60 different words" in found.problems[1]
    one = check(path, root=tmp_path, label_column="outcome", ignore=("patient", "dose", "age"))
    (said,) = (note for note in one.notes if note.startswith("no column names the clients"))
    assert said.endswith(
        "--data.client_column=COLUMN; columns of few values, and how many these are: site (4)"
    )
    columns = {"label_column": "outcome", "client_column": "site", "group_column": "patient"}
    found = check(path, root=tmp_path, **columns)
    assert len(found.problems) == 1 and "'dose' holds '.' in rows.csv, line 2" in found.problems[0]
    assert not any("names the clients" in note for note in found.notes)
    read_by = {"missing_marks": (".",), "missing": "median"}
    found = check(path, root=tmp_path, **columns, **read_by)
    assert found.dataset.extra["features"] == ["nr", "dose", "age"] and not found.problems
    assert any("'nr' differs in every example" in note for note in found.notes)
