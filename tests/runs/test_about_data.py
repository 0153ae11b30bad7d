"""What a run says of its data before it starts: test examples that are used for nothing, classes
and clients that no test example has, batches of one.
"""

import dataclasses
import re
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict

import fedjax_ssl as fs
from fedjax_ssl.config import resolve
from fedjax_ssl.data import Dataset, Split, client_names
from fedjax_ssl.data.sites_apart import sites_apart
from fedjax_ssl.errors import ConfigNote
from fedjax_ssl.runs import advice
from fedjax_ssl.runs.build import load_resolved
from fedjax_ssl.runs.loop import Point, _notes_of, run_batch
from fedjax_ssl.runs.notes import about_data
from fedjax_ssl.runs.shared import Shared

UNUSED = "7 of 7 of the data's own test examples are used for nothing, because data."


@pytest.fixture
def config_of(tmp_path):
    """A run where client "n" has one example, "rare" is in no test and "new" has no label."""
    own = [f"{i},{'xy'[i % 2]},{'pq'[i // 2 % 2]},test" for i in range(6)]
    rows = [f"{i + 9},{'xy'[i % 2]},{'pq'[i // 2 % 2]},train" for i in range(20)]
    lines = ["a,label,client,split", *own, "7,new,p,test", *rows, "99,rare,n,train"]
    (tmp_path / "rows.csv").write_text("\n".join(lines))

    def config(**settings):
        fields = {"data.path": str(tmp_path / "rows.csv"), "model.name": "mlp"}
        fields |= {"data.root": str(tmp_path), "data.validation_fraction": 0, **settings}
        return fs.load_config("table", fields)

    return config


@pytest.fixture
def said(config_of):
    """What is said of its data."""

    def sentences(**settings):
        program = Shared().program(fs.config.resolve(config_of(**settings)))
        built = program.built
        names = client_names(built.experiment.dataset, built.federation)
        return about_data(built, program.template(), names)

    return sentences


def test_classes_and_clients_that_the_test_lacks(said):
    lacking = said()
    assert [one.partition(":")[0] for one in lacking] == [
        "1 class without a test example (rare)",
        "1 client without a test example (n)",
        "1 class without a label in training (new)",
    ]


def test_classes_that_the_validation_lacks(said):
    told = said(**{"data.validation_fraction": 0.2})
    assert any(
        re.match(r"\d class(es)? without a validation example \(.*rare", one) for one in told
    )


def test_few_validation_examples_choose_a_round_by_chance(config_of):
    built = Shared().build(fs.config.resolve(config_of(**{"data.validation_fraction": 0.2})))
    with pytest.warns(ConfigNote, match="chosen by 4 validation examples, of which so few"):
        advice.note_validation(built.experiment.config, built.federation)


def test_own_test_examples_that_are_used_for_nothing(said):
    told = said(**{"data.client_test_fraction": 0.3})[0]
    assert told.startswith(f"{UNUSED}client_test_fraction=0.3 makes another test set")


def test_the_test_examples_of_the_client_that_is_left_out_are_used(said):
    told = said(**{"data.left_out_client": "q"})
    assert told[0].startswith("5 of 7 of the data's own") and "left_out_client" in told[0]


def test_batches_of_one_under_batch_norm(said):
    batches = {"model.norm": "bn", "optimizer.batch_size": 4}
    assert "in some batches of 1 client (n)" in said(**batches)[-1]
    assert not any("batch norm" in one for one in said(**{"optimizer.batch_size": 1}))


def test_a_quiet_run_says_it_and_nothing_else(said, config_of, tmp_path, capsys):
    fs.run(config_of(rounds=1), tmp_path / "run", quiet=True)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.splitlines() == [f"note: {line}" for line in said()]
    # runs that are vectorized say it too, once for all
    with pytest.warns(ConfigNote) as notes:
        run_batch([Point(resolve(config_of(rounds=1)), tmp_path / "run")], Shared())
    assert [str(one.message) for one in notes] == said()


def test_runs_at_once_say_what_each_of_their_settings_brings(monkeypatch):
    def quiet_notes(one):
        return ["of all", f"delay {one.config.delay}"]

    monkeypatch.setattr("fedjax_ssl.runs.loop.quiet_notes", quiet_notes)
    settings = ({"seed": 0, "delay": 1}, {"seed": 1, "delay": 1}, {"seed": 0, "delay": 9})
    runs = [SimpleNamespace(config=ConfigDict(one)) for one in settings]
    assert [*_notes_of(runs)] == ["of all", "delay 1", "delay 9"]


def test_sites_that_differ_are_said_where_nothing_makes_them_alike():
    x = np.linspace(0, 1, 40, dtype=np.float32)[:, None] + np.repeat([[0.0], [9.0]], 20, axis=0)
    train = Split(x.astype(np.float32), np.arange(40) % 2, np.arange(40) // 20)
    apart = sites_apart(Dataset("toy", train, None, ("a", "b"), ("north", "south"), 1.0))
    assert apart.by_client
    assert apart.sentence.startswith("sites differ in the feature 'number 0': 0.244 on average")
    assert apart.sentence.endswith("--data.standardize=client makes them alike")
    of_one_class = dataclasses.replace(train, y=train.client)
    other = sites_apart(Dataset("toy", of_one_class, None, ("a", "b"), None, 1.0))
    assert not other.by_client and "it may be the classes that differ" in other.sentence
    alike = dataclasses.replace(train, client=np.arange(40) % 2)
    assert sites_apart(Dataset("toy", alike, None, ("a", "b"), None, 1.0)) is None


def test_a_run_says_that_sites_differ_and_its_summary_has_it(tmp_path):
    lines = [
        "a,label,client",
        *(f"{i % 7 + 90 * (i % 2)},{'xyy'[i % 3]},{'pq'[i % 2]}" for i in range(60)),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    fields = {"data.path": str(tmp_path / "rows.csv"), "data.root": str(tmp_path)}
    fields |= {"data.client_test_fraction": 0.2, "data.validation_fraction": 0}
    built = Shared().build(fs.config.resolve(fs.load_config("table", fields)))
    with pytest.warns(ConfigNote, match="sites differ in the feature 'a'.*standardize=client"):
        advice.check(built)
    private = {"privacy.name": "gaussian", "privacy.noise": 1.0, "data.standardize": "none"}
    by_client = {"data.standardize": "client"}
    for more in (by_client, private):  # alike, or means that no noise hides
        config = fs.config.resolve(fs.load_config("table", {**fields, **more}))
        assert advice.apart_in(built._replace(experiment=load_resolved(config))) is None
