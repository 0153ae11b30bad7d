"""A run standardized by client is used: at the hospitals that it knows, and at a new one."""

import json

import numpy as np
import pandas
import pytest

from fedjax_ssl import cli, load_dataset, load_run
from fedjax_ssl.encoding.encoders import encoder
from fedjax_ssl.errors import ConfigNote
from fedjax_ssl.trained.inputs import read_examples
from fedjax_ssl.trained.scales import Scales
from fedjax_ssl.trained.trained_model import TrainedModelError

OPTIONS = {
    "client_column": "Klinik",
    "label_column": "diagnosis",
    "ignore": ("patient",),
}
UNITS = {"north": (1.0, 0.0), "south": (1 / 40, 0.0), "harbor": (0.1, 50.0)}  # of the marker


def patients(site, count, seed):
    random = np.random.default_rng(seed)
    ill = np.arange(count) % 2
    factor, more = UNITS[site]
    marker = (200 + 60 * ill + random.normal(0, 12, count)) * factor + more
    return pandas.DataFrame(
        {
            "patient": [f"{site[0]}{row:03}" for row in range(count)],
            "Klinik": site,
            "marker": marker.round(3),
            "age": random.integers(40, 70, count),
            "diagnosis": np.where(ill, "ill", "well"),
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sites")
    table = pandas.concat([patients("north", 60, 0), patients("south", 60, 1)], ignore_index=True)
    table.to_csv(folder / "patients.csv", index=False)
    settings = {**OPTIONS, "ignore": "patient", "path": folder / "patients.csv", "root": folder}
    settings |= {"standardize": "client", "client_test_fraction": 0.2, "validation_fraction": 0}
    words = [f"--data.{name}={value}" for name, value in settings.items()]
    words += ["--model.name=linear", "--rounds=20", "--eval_every=20"]
    assert cli.main(["run", "table", *words, "--workdir", str(folder / "run")]) == 0
    return folder, table


@pytest.fixture
def predict(trained, tmp_path, call_predict):
    def call(table, *words):
        table.to_csv(tmp_path / "new.csv", index=False)
        return call_predict(trained[0] / "run", tmp_path / "new.csv", *words)

    return call


def test_the_column_says_who_has_a_row_and_old_labels_are_called_so(trained, predict):
    folder, table = trained
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.8 and "sites_apart" not in summary
    code, rows, said = predict(table)
    assert code == 0 and rows[1]["input"] == "new.csv, line 3"
    assert "clients     north (60), south (60)" in said
    right = [row["name"] == row["true_name"] for row in rows]
    assert np.mean(right) > 0.8
    assert "(24 of 120 have a label that training did not see)" in said
    assert "(96 of 120 have a label that the model was trained on or chosen by" in said
    assert f"{summary['test_accuracy']:.2%} (24 of 120" in said


def test_a_new_site_is_standardized_by_its_own_rows_and_an_unknown_label_is_named(predict):
    new = patients("harbor", 40, 2)
    new.loc[7, "diagnosis"] = "borderline"
    code, rows, said = predict(new)
    assert code == 0 and len(rows) == 40
    assert "'harbor' is no client of the run. Its inputs are standardized by" in said
    assert "of these 40 examples alone" in said and "so few" not in said
    assert "label 'borderline' of 1 example (new.csv, line 9) is none of the classes" in said
    assert "(39 of 40 have a label)" in said and rows[7]["true_label"] == ""
    assert np.mean([row["name"] == row["true_name"] for row in rows]) > 0.8
    code, _, said = predict(new.head(3).drop(columns="Klinik"))
    assert code == 0 and "no client is named" in said and "so few say little" in said
    code, _, said = predict(new.head(1))
    assert code == 0 and "nothing is left of a single one" in said


def test_a_client_without_a_value_and_one_that_is_named(trained, predict):
    north = trained[1].head(60)
    _, by_column, _ = predict(north)
    _, by_name, said = predict(north.drop(columns="Klinik"), "--client", "north")
    assert "new site" not in said
    assert [row["probability"] for row in by_name] == [row["probability"] for row in by_column]
    code, _, said = predict(north, "--client", "nroth")
    assert code == 2 and "'nroth' is no client of the run. Did you mean 'north'?" in said


@pytest.mark.parametrize(
    ("name", "known", "refused"),
    [
        ("North", "north", True),
        ("nort", "north", True),
        ("site1", "site2", False),
        ("site12", "site21", False),
        ("east", "west", False),
        ("hospital_b", "hospital_a", False),
    ],
)
def test_a_misspelt_client_is_no_new_site(name, known, refused):
    scales = Scales({"max": 1.0, "clients": {known: {"mean": [0.0], "std": [1.0]}}})
    values = np.arange(40, dtype=np.float32)[:, None]
    if refused:
        with pytest.raises(TrainedModelError, match=f"Did you mean {known!r}"):
            scales.of(values, name)
    else:
        with pytest.warns(ConfigNote, match="as those of a new site$"):
            assert scales.of(values, name) is not None


def test_in_python_rows_and_arrays(trained):
    folder, table = trained
    model = load_run(folder / "run")
    expected = load_dataset("table", path=folder / "patients.csv", root=folder, **OPTIONS)
    names = table["Klinik"].tolist()
    rows = model.predict(table)
    np.testing.assert_allclose(model.predict(expected.train.x, client=names), rows, atol=1e-6)
    np.testing.assert_array_equal(model.predict(table, client=table["Klinik"]), rows)
    by_number = (model.predict(expected.train.x, client=one) for one in (np.int64(0), 0))
    np.testing.assert_array_equal(*by_number)
    with pytest.raises(TrainedModelError, match=r"client has 1 name for \d+ inputs"):
        model.predict(table, client=["north"])
    harbor = patients("harbor", 40, 2)
    with pytest.warns(ConfigNote, match="as those of a new site$"):
        whole = model.predict(harbor)
    inputs = harbor[["marker", "age"]].to_numpy().astype(np.float32)
    with pytest.warns(ConfigNote, match="as those of a new site$"):
        model.add_client("harbor", inputs)
    np.testing.assert_allclose(model.predict(inputs[:1], client="harbor"), whole[:1], atol=1e-5)


def test_an_encoder_standardizes_by_client(trained):
    folder, table = trained
    model = load_run(folder / "run")
    both = pandas.concat([table, patients("harbor", 40, 2)])
    both.to_csv(folder / "more.csv", index=False)
    dataset = load_dataset("table", path=folder / "more.csv", root=folder, **OPTIONS)
    with pytest.warns(ConfigNote, match="'harbor' is no client of the run"):
        found = encoder(str(folder / "run"), dataset, None, None)
    names = [dataset.client_names[number] for number in dataset.train.client]
    assert found.clients["train"] == names
    features = found.encode(dataset.train.x[:5], names[:5])
    np.testing.assert_allclose(features, model.embed(dataset.train.x[:5], client=names[:5]))


def test_arrays_say_who_has_them(trained, tmp_path):
    model = load_run(trained[0] / "run")
    np.savez(tmp_path / "x.npz", inputs=np.ones((2, 2), np.float32), client=["north", "x"])
    found = read_examples([tmp_path / "x.npz"], model)
    assert found.clients == ["north", "x"] and found.names == ["0", "1"]


def test_labels_of_arrays_are_whole_numbers_or_names(trained, tmp_path):
    model = load_run(trained[0] / "run")
    inputs = np.ones((3, 2), np.float32)
    for labels, read in (([0, -1, 1], [0, -1, 1]), (["well", "", "odd"], [1, -1, -1])):
        np.savez(tmp_path / "x.npz", inputs=inputs, labels=labels)
        found = read_examples([tmp_path / "x.npz"], model)
        assert found.labels.tolist() == read
    assert "label 'odd' of 1 example (row 2) is none of the classes" in found.notes[0]
    np.savez(tmp_path / "x.npz", inputs=inputs, labels=[0.0, 1.0, 2.0])
    with pytest.raises(TrainedModelError, match="labels are float64; they are whole numbers"):
        read_examples([tmp_path / "x.npz"], model)
