"""What a run does beside training: early stopping, viewers, scores by client."""

import csv
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import load_run, presets
from fedjax_ssl.data import report
from fedjax_ssl.runs.loop import run
from tests import toy


def stopping(**fields):
    """A run that learns nothing, so that no evaluation is better than the first one."""
    config = presets.digits_by_writer("fedavg", 5)
    config.rounds = 10
    config.eval_every = 1
    config.early_stopping.patience = 2
    config.data.validation_fraction = 0.2
    config.optimizer.learning_rate = 0.0
    config.optimizer.local_epochs = 1
    config.metrics = ("f1",)
    config.update_from_flattened_dict(fields)
    return config


@pytest.mark.promise
@pytest.mark.thorough
def test_a_run_ends_when_nothing_gets_better_and_viewers_are_told(tmp_path, capsys, monkeypatch):
    told = []
    writer = SimpleNamespace(
        add_scalar=lambda name, value, global_step: told.append((name, global_step)),
        add_hparams=lambda settings, metrics, name: told.append((settings, metrics)),
        close=lambda: told.append("closed"),
    )
    monkeypatch.setitem(
        sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=lambda *a, **k: writer)
    )
    watched = {"tracking.writers": ("tensorboard",)}
    summary = run(stopping(**watched), tmp_path)
    assert summary["rounds"] == 3 and summary["stopped_early"] and summary["selected_round"] == 1
    assert load_run(tmp_path).round == 1 and load_run(tmp_path, "last").round == 3
    assert "stopped early" in capsys.readouterr().out
    assert ("test_macro_f1", 1) in told and ("test_accuracy", 3) in told and told[-1] == "closed"
    settings, metrics = told[-2]
    assert (
        settings["optimizer.learning_rate"] == 0.0
        and metrics["test_accuracy"] == summary["test_accuracy"]
    )
    told.clear()
    # Who watches is no part of the run.
    assert run(stopping(), tmp_path) == json.loads((tmp_path / "summary.json").read_text())
    assert run(stopping(**watched), tmp_path) == summary and not told
    assert "this run is complete already" in capsys.readouterr().out


@pytest.mark.promise
@pytest.mark.thorough
def test_patience_without_validation_examples_is_refused(tmp_path):
    with pytest.raises(
        configs.ConfigError, match=r"patience is 2, but there are no validation data"
    ):
        run(stopping(**{"data.validation_fraction": 0.0}), tmp_path)


@pytest.mark.thorough
def test_predictions_are_made_by_the_best_model(tmp_path):
    fields = {"prediction.predictors": "network", "optimizer.learning_rate": 3.0, "rounds": 8}
    summary = run(stopping(**fields, **{"early_stopping.patience": 8}), tmp_path)
    assert summary["predictions"][0]["accuracy"] == pytest.approx(
        summary["selected_test_accuracy"], abs=1e-6
    )


@pytest.mark.promise
@pytest.mark.thorough
def test_a_viewer_that_is_not_installed_is_said_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        configs.ConfigError, match=r"config\.tracking: .*pip install 'fedjax_ssl\[wandb\]'"
    ):
        run(stopping(**{"tracking.writers": ("wandb",)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.promise
@pytest.mark.thorough
def test_unknown_scores_and_viewers_are_named():
    config = configs.load(
        "digits", [("metrics", "f1,auroc"), ("tracking.writers", "wandb,tensorboard")]
    )
    resolved = configs.resolve(config)
    assert resolved.metrics == ("f1", "auroc") and resolved.tracking.writers == (
        "wandb",
        "tensorboard",
    )
    config.metrics = ("f2",)
    with pytest.raises(
        configs.ConfigError, match=r"config\.metrics names 'f2'\. Did you mean 'f1'\?"
    ):
        configs.resolve(config)
    config.metrics = ("f1", "f1")
    with pytest.raises(configs.ConfigError, match="names one of them twice"):
        configs.resolve(config)


@pytest.mark.promise
@pytest.mark.thorough
def test_test_examples_without_a_label_are_counted():
    data = toy.federation()
    labels = np.array(data.labels)
    labels[np.asarray(data.test_index)[:12]] = -1
    assert "labelled_test_examples" not in data.summary()
    some = toy.changed(data, labels=labels)
    assert some.summary()["labelled_test_examples"] == 48
    assert "test 60 (48 with a label)" in report(some, ("a", "b", "c"))


@pytest.mark.thorough
def test_clients_have_their_names_and_labels_are_counted(tmp_path, capsys):
    """A folder of two sites, some of whose test examples have no label."""
    generator = np.random.default_rng(0)
    test_labels = np.arange(40) // 2 % 2
    test_labels[:10] = -1
    sites = np.array(["Site A", "Site B"])
    np.savez(
        tmp_path / "own.npz",
        inputs=generator.normal(size=(40, 4)),
        labels=np.arange(40) // 2 % 2,
        client=sites[np.arange(40) % 2],
        test_inputs=generator.normal(size=(40, 4)),
        test_labels=test_labels,
        test_client=sites[np.arange(40) % 2],
    )
    config = presets.digits_by_writer("fedavg", "all")
    config.data.update({"name": "npz", "path": str(tmp_path / "own.npz"), "test_clients": 0})
    config.rounds = 2
    config.eval_every = 1
    config.model.name = "linear"
    summary = run(config, tmp_path / "run")
    output = capsys.readouterr().out
    assert "40 test examples, 30 labelled test examples" in output
    assert "(30 with a label)" in (tmp_path / "run" / "partition.txt").read_text()
    rows = list(csv.DictReader((tmp_path / "run" / "client_accuracy.csv").read_text().splitlines()))
    assert [row["round"] for row in rows] == ["1", "2"] and rows[0].keys() == {
        "round",
        "Site A",
        "Site B",
    }
    accuracies = [float(rows[1][site]) for site in sites]
    assert summary["test_client_accuracy"] == pytest.approx(np.mean(accuracies))
    assert summary["test_client_accuracy_worst_tenth"] == pytest.approx(min(accuracies))
    assert "accuracy by client:" in output and "Site A" in output
