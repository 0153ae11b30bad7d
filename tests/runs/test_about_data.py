"""What a run says of its data before it starts: test examples that are used for nothing, classes
and clients that no test example has, batches of one.
"""

import pytest

import fedjax_ssl as fs
from fedjax_ssl.data import client_names
from fedjax_ssl.errors import ConfigNote
from fedjax_ssl.runs.about_data import about_data
from fedjax_ssl.runs.loop import Point, run_batch
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
        run_batch([Point(config_of(rounds=1), tmp_path / "run")], Shared())
    assert [str(one.message) for one in notes] == said()
