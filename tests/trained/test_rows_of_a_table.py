"""A table of four hospitals with missing cells, words and dates: trained, left out in turn, and
predicted alike.
"""

import csv
import io

import numpy as np
import pandas
import pytest

from fedjax_ssl import cli, load_dataset, load_run
from fedjax_ssl.errors import ConfigNote

HOSPITALS = ("north", "south", "west", "east")
OPTIONS = {
    "label_column": "num",
    "client_column": "hospital",
    "missing": "median",
    "dates": ("seen",),
}


def write(path, rows, seed=0, hospitals=HOSPITALS):
    random = np.random.default_rng(seed)
    table = pandas.DataFrame(
        {"age": random.integers(30, 80, rows), "chest": random.choice(["a", "b", "c"], rows)}
    )
    table["chol"] = np.where(
        random.random(rows) < 0.2, "?", random.integers(150, 300, rows).astype(str)
    )
    table["seen"] = pandas.Timestamp("2020-01-01") + pandas.to_timedelta(
        random.integers(0, 900, rows), "D"
    )
    table["num"] = ((table["age"] > 55) & (table["chest"] != "b")).astype(int)
    table["hospital"] = np.resize(hospitals, rows)
    table.to_csv(path, index=False)
    return table


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    table = write(folder / "heart.csv", 200)
    arguments = [
        f"--data.{name}={value}"
        for name, value in {**OPTIONS, "dates": "seen", "path": folder / "heart.csv"}.items()
    ]
    arguments += [
        "--data.left_out_client=east",
        f"--data.root={folder}",
        "--rounds=2",
        "--eval_every=1",
    ]
    arguments += ["--prediction.predictors=network", "--data.validation_fraction=0"]
    assert cli.main(["run", "table", *arguments, "--workdir", str(folder / "run")]) == 0
    return folder, table


@pytest.fixture
def predict(trained, tmp_path, call_predict):
    def call(table, *words):
        table.to_csv(tmp_path / "new.csv", index=False)
        return call_predict(trained[0] / "run", tmp_path / "new.csv", *words)

    return call


@pytest.mark.thorough
@pytest.mark.promise
def test_rows_left_out_in_another_order_of_columns_are_predicted_as_in_the_run(trained, predict):
    folder, table = trained
    east = table[table["hospital"] == "east"]
    model = load_run(folder / "run")
    data = load_dataset("table", path=folder / "heart.csv", **OPTIONS, root=folder)
    code, rows, said = predict(
        east[["num", "seen", "chol", "age", "chest"]].assign(id=range(len(east))), "--all"
    )
    assert code == 0 and "columns that the model does not use: id" in said and "accuracy" in said
    inputs = load_dataset(
        "table", path=folder / "heart.csv", **OPTIONS, root=folder, left_out_client="east"
    ).train.x
    expected = model.predict(inputs[data.train.client == data.client_names.index("east")])
    found = np.array(
        [[float(row[f"probability_{name}"]) for name in model.class_names] for row in rows]
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.warns(ConfigNote, match=r"by column: chol \d+; filled in"):
        np.testing.assert_allclose(model.predict(east), expected, atol=1e-7)
    assert rows[0]["input"] == "new.csv, line 2" and rows[0]["true_label"] == str(
        east["num"].iloc[0]
    )
    own = list(csv.DictReader(io.StringIO((folder / "run" / "predictions.csv").read_text())))
    assert [row["network"] for row in own] == [row["name"] for row in rows]
    assert own[0]["input"] == f"heart.csv, line {east.index[0] + 2}"


@pytest.mark.promise
@pytest.mark.thorough
def test_unknown_words_are_told_and_a_missing_column_is_refused(trained, predict):
    table = trained[1].head(3).drop(columns="num")
    code, rows, said = predict(table.assign(chest="z"))
    assert code == 0, said
    assert "true_label" not in rows[0]
    assert (
        "column 'chest' holds 'z' in new.csv, line 2" in said
        and "no word that training knew" in said
    )
    code, rows, said = predict(table.rename(columns={"chol": "cholesterol"}))
    assert code == 2 and "there is no column 'chol'. Did you mean 'cholesterol'" in said
    code, rows, said = predict(table.assign(age="old"))
    assert code == 2 and "column 'age' holds 'old' in new.csv, line 2" in said


@pytest.mark.promise
@pytest.mark.thorough
def test_arrays_for_a_model_of_a_table_say_what_is_taken_by_place(trained, tmp_path, capsys):
    folder, table = trained
    inputs = np.zeros((2, len(load_run(folder / "run").reading.inputs)), np.float32)
    np.savez(tmp_path / "new.npz", inputs=inputs, labels=table["num"].iloc[:2].to_numpy())
    assert cli.main(["predict", str(folder / "run"), str(tmp_path / "new.npz")]) == 0
    said = capsys.readouterr().err
    assert "columns of an array have no names: they are taken as age, chest=a" in said
    assert "labels are numbers" not in said  # the classes are called 0 and 1
