"""A metric of one's own in rows, in the choice of the best model and in the report, and what is
wrong with one.
"""

import json
import sys

import numpy as np
import pytest
from sklearn.metrics import f1_score

import fedjax_ssl as fs
from fedjax_ssl import cli
from fedjax_ssl.command_line import message_of
from fedjax_ssl.config import ConfigError, resolve
from fedjax_ssl.runs.loop import Point, run, run_batch
from fedjax_ssl.runs.shared import Shared
from tests.runs.test_scores import experiment, table_of

SOURCE = """
import jax.numpy as jnp
from sklearn.metrics import f1_score, log_loss

def weighted_f1(labels, probabilities):
    return f1_score(labels, probabilities.argmax(axis=1), average="weighted")

def cross_entropy(labels, probabilities):
    return log_loss(labels, probabilities, labels=range(10))

def in_jax(labels, probabilities):
    return jnp.mean(jnp.argmax(probabilities, axis=1) == labels)

def accuracy(labels, probabilities):
    return 0.0

def client_accuracy_spread(labels, probabilities):
    return 0.0

def of_every_class(labels, probabilities):
    return probabilities.mean(axis=0)

def with_a_fault(labels, probabilities):
    return labels.mean() / undefined_name
"""


@pytest.fixture(scope="module")
def shared():
    return Shared()


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "my_metrics.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)


@pytest.mark.promise
@pytest.mark.thorough
def test_in_rows_report_and_summary(tmp_path, shared, capsys):
    names = ("ece", "my_metrics:weighted_f1", "my_metrics:in_jax")
    summary = run(experiment(metrics=names), tmp_path / "run", shared=shared, quiet=True)
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert {"test_weighted_f1", "validation_weighted_f1"} <= rows[
        0
    ].keys() and "test_log_probs" not in rows[0]
    for row in rows:
        for kind in ("test", "validation"):
            assert row[f"{kind}_in_jax"] == pytest.approx(row[f"{kind}_accuracy"])
    _, probabilities, labels = table_of(tmp_path / "run")
    expected = f1_score(labels, probabilities.argmax(axis=1), average="weighted")
    chosen = next(row for row in rows if row["round"] == summary["scores"]["round"])
    assert chosen["test_weighted_f1"] == pytest.approx(expected)
    page = tmp_path / "report.html"
    cli.main(
        ["report", str(tmp_path / "run"), "--metric", "test_weighted_f1", "--output", str(page)]
    )
    assert "test weighted f1" in capsys.readouterr().out and "Confusion matrix" in page.read_text()


@pytest.mark.parametrize(
    "direction", [pytest.param("minimize", marks=pytest.mark.thorough), "maximize"]
)
def test_it_stops_a_run_and_chooses_its_model(tmp_path, shared, direction):
    fields = {
        "metrics": ("my_metrics:cross_entropy",),
        "early_stopping.metric": "validation_cross_entropy",
    }
    fields |= {"early_stopping.direction": direction, "early_stopping.patience": 1, "rounds": 3}
    summary = run(experiment(**fields), tmp_path, shared=shared, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    values = [row["validation_cross_entropy"] for row in rows]
    assert values == pytest.approx([row["validation_loss"] for row in rows], rel=1e-4)
    best = int(np.argmin(values) if direction == "minimize" else np.argmax(values))
    assert summary["rounds"] == {"minimize": 3, "maximize": 2}[direction]  # the loss falls
    assert summary["selected_round"] == best + 1 == fs.load_run(tmp_path).round
    assert summary["selected_validation_cross_entropy"] == values[best]


@pytest.mark.promise
@pytest.mark.thorough
def test_runs_that_are_vectorized_have_it_and_one_program_refuses_it(tmp_path):
    fields = {"metrics": ("my_metrics:in_jax",), "rounds": 1, "data.validation_fraction": 0.0}
    given = [resolve(experiment(**fields, seed=seed)) for seed in (0, 1)]
    run_batch([Point(one, tmp_path / str(one.seed)) for one in given], Shared())
    for seed in (0, 1):
        (row,) = map(json.loads, (tmp_path / str(seed) / "metrics.jsonl").read_text().splitlines())
        assert row["test_in_jax"] == pytest.approx(row["test_accuracy"])
    with pytest.raises(
        ConfigError, match="names my_metrics:in_jax: functions of your own run between"
    ):
        fs.make_train(experiment(**fields))


ONE = "my_metrics:in_jax"
WRONG = {  # name, other fields -> what is said
    ("my_metrics:of_every_class",): (
        "has to return one number, and float32 [10] came (my_metrics.py, line 20)"
    ),
    ("my_metrics:with_a_fault",): (
        "NameError: name 'undefined_name' is not defined (my_metrics.py, line 24, in "
        "with_a_fault: `return labels.mean() / undefined_name`)"
    ),
    ("my_metrics:accuracy",): "names a function 'accuracy', whose column is there already",
    ("my_metrics:client_accuracy_spread",): (
        "names a function 'client_accuracy_spread', whose column is there already"
    ),
    ("my_metrics:f3",): "my_metrics.py has no 'f3'",
    ("my_metrics:log_loss", "sklearn.metrics:log_loss"): "where two functions have one name",
    (ONE, (
        "federated.name=local"
    )): "clients train alone: there is no global model whose probabilities it could score",
    ("f1", "early_stopping.metric=validation_f1"): (
        "Did you mean 'validation_macro_f1'? Allowed with these config.metrics: "
        "validation_accuracy, validation_balanced_accuracy, validation_loss, validation_macro_f1"
    ),
    (ONE, (
        "early_stopping.metric=validation_in_jax"
    )): "your own: give config.early_stopping.direction, maximize or",
}  # fmt: skip


@pytest.mark.parametrize(("given", "said"), WRONG.items())
@pytest.mark.promise
@pytest.mark.thorough
def test_what_is_wrong_is_said_in_one_line_before_anything_is_compiled(
    tmp_path, monkeypatch, given, said
):
    monkeypatch.chdir(tmp_path)
    others = dict(one.split("=") for one in given if "=" in one)
    with pytest.raises(ConfigError) as caught:
        run(
            experiment(metrics=tuple(one for one in given if "=" not in one), **others),
            tmp_path / "run",
            quiet=True,
        )
    message = message_of(caught.value)
    assert said in message and "\n" not in message
    assert not (tmp_path / "run").exists()


@pytest.mark.promise
@pytest.mark.thorough
def test_scores_whose_better_values_are_known_need_no_direction():
    for metric, direction in (("loss", "minimize"), ("ece", "minimize"), ("macro_f1", "maximize")):
        config = experiment(**{"early_stopping.metric": f"validation_{metric}"})
        assert resolve(config).early_stopping.direction == direction
