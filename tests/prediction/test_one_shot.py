"""The prediction application as a user runs it: what lies in the run folder, and what is
refused.
"""

import csv

import numpy as np
import pytest

from fedjax_ssl import presets
from fedjax_ssl.config import ConfigError
from fedjax_ssl.prediction.one_shot import how_to_read, jobs_of
from fedjax_ssl.runs.loop import run


def quick(variant="inputs"):
    config = presets.one_shot(variant, rounds=2)
    config.eval_every = 1
    config.optimizer.local_epochs = 1
    config.prediction.num_bits = 128
    config.prediction.variant = "code"
    config.prediction.unlabelled = "with"
    return config


@pytest.fixture
def features(tmp_path):
    """A user's file: three hospitals train, Aachen has no label, Delft only new examples; some
    labels are unknown.
    """
    generator = np.random.default_rng(0)
    centres = 3 * np.eye(3, 8)

    def draw(classes):
        return (centres[classes] + 0.5 * generator.normal(size=(len(classes), 8))).astype(
            np.float32
        )

    classes = np.arange(60) % 3
    new = np.arange(24) % 3
    client = np.repeat(["Aachen", "Bonn", "Celle"], 20)
    arrays = {
        "inputs": draw(classes),
        "labels": np.where((client == "Aachen") | (np.arange(60) % 4 == 1), -1, classes),
        "client": client,
        "test_inputs": draw(new),
        "test_labels": np.where(np.arange(24) % 5 == 0, -1, new),
        "test_client": np.repeat(["Aachen", "Bonn", "Delft"], 8),
    }
    path = tmp_path / "features.npz"
    np.savez(path, **arrays)
    return path, new


def of_file(path):
    config = quick()
    config.data.name = "npz"
    config.data.path = str(path)
    config.data.client_test_fraction = 0.0
    config.supervision.name = "all"
    config.supervision.fraction = None
    config.prediction.num_neighbors = 5
    return config


def table(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
def test_labels_for_the_users_new_examples(features, tmp_path, capsys):
    path, truth = features
    config = of_file(path)
    folder = tmp_path / "run"
    summary = run(config, folder)
    rows = table(folder / "predictions.csv")
    assert [row["client"] for row in rows] == ["Aachen"] * 8 + ["Bonn"] * 8 + ["Delft"] * 8
    assert [int(row["row"]) for row in rows] == list(range(24)) and {
        row["split"] for row in rows
    } == {"test"}
    assert [row["label"] for row in rows] == [
        "" if place % 5 == 0 else str(truth[place]) for place in range(24)
    ]
    right = [row["xclp"] == str(known) for row, known in zip(rows, truth, strict=True)]
    # also where nobody knows, where the client has no label, and no training data
    assert sum(right) >= 22
    assert [bool(row["per_client_lp"]) for row in rows] == [row["client"] == "Bonn" for row in rows]
    assert all(0 <= float(row["xclp_confidence"]) <= 1 for row in rows)
    by_client = {row["client"]: row for row in table(folder / "predictions_by_client.csv")}
    assert [by_client["Delft"][name] for name in ("training_examples", "new_examples")] == [
        "0",
        "8",
    ]
    assert (
        by_client["Aachen"]["labelled_examples"] == "0"
        and by_client["Aachen"]["per_client_lp_accuracy"] == "0.0000"
    )
    xclp, alone = summary["predictions"]
    known = np.arange(24) % 5 != 0
    assert (
        xclp["accuracy"] == pytest.approx(np.mean(np.array(right)[known])) and xclp["coverage"] == 1
    )
    assert alone["coverage"] == pytest.approx(1 / 3) and alone["new_examples"] == 24
    assert summary["test_accuracy"] is None and not (folder / "metrics.csv").exists()
    printed = capsys.readouterr().out
    assert (
        "xclp" in printed
        and "without a label" in printed
        and str(folder / "predictions.csv") in printed
    )


@pytest.mark.thorough
def test_new_examples_that_nobody_can_score(features, tmp_path):
    path, _ = features
    arrays = dict(np.load(path))
    del arrays["test_labels"]
    np.savez(path, **arrays)
    summary = run(of_file(path), tmp_path / "run")
    assert [row["name"] for row in summary["predictions"]] == ["xclp", "per_client_lp"]
    assert all("accuracy" not in row for row in summary["predictions"])
    assert [row["coverage"] for row in summary["predictions"]] == [1, pytest.approx(1 / 3)]
    assert all(
        row["label"] == "" and row["xclp"] in "012"
        for row in table(tmp_path / "run" / "predictions.csv")
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run folder with a trained network and its predictions, and its summary."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, run(quick("network"), folder)


@pytest.mark.thorough
def test_after_training_the_network_predicts_too_and_features_are_its_own(trained):
    folder, summary = trained
    network, xclp, alone = summary["predictions"]
    assert [row["name"] for row in (network, xclp, alone)] == ["network", "xclp", "per_client_lp"]
    assert network["accuracy"] == pytest.approx(summary["test_accuracy"])
    assert network["balanced_accuracy"] == pytest.approx(summary["test_balanced_accuracy"])
    assert xclp["accuracy"] > alone["accuracy"]
    again = run(quick("network"), folder)  # complete already
    assert again["predictions"] == summary["predictions"]


def test_ways_of_predicting_have_names_of_their_own():
    config = presets.one_shot("network", rounds=1)
    names = [job.name for job in jobs_of(config)]
    assert names[:4] == ["network", "xclp_paper", "xclp_code", "xclp_paper_labelled"]
    assert len(set(names)) == len(names) == 9
    config.prediction.variant = "paper"
    config.prediction.unlabelled = "without"
    assert [job.name for job in jobs_of(config)] == [
        "network",
        "xclp_labelled",
        "per_client_lp_labelled",
    ]


@pytest.mark.filterwarnings("ignore:.* has no effect without:fedjax_ssl.config.ConfigNote")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"prediction.predictors": ""},
            "config.rounds is 0 and config.prediction.predictors names nothing",
        ),
        ({"prediction.predictors": "xlcp"}, "names 'xlcp'. Did you mean 'xclp'?"),
        (
            {"prediction.predictors": "network,xclp"},
            "names 'network', whose classifier config.rounds=0",
        ),
        ({"prediction.variant": "both of them"}, "config.prediction.variant is 'both of them'"),
        ({"prediction.groups": 99}, "config.prediction.groups is 99; there are 14 clients"),
        ({"prediction.predictors": "xclp, xclp"}, "names one of them twice"),
        ({"prediction.features": "network"}, "whose weights config.rounds=0 leaves random"),
        (
            {"data.client_test_fraction": 0.0, "data.test_fraction": 0.2},
            "no new example belongs to a client",
        ),
        (
            {"data.client_test_fraction": 0.0, "data.left_out_client": 3},
            "no client with new examples has any",
        ),
        (
            {"data.client_test_fraction": 0.0, "data.left_out_client": 14},
            "no such client. Its clients: writer 0, writer 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message, tmp_path):
    config = quick()
    for field, value in changes.items():
        section, name = field.split(".")
        config[section][name] = value
    with pytest.raises(ConfigError) as error:
        run(config, tmp_path / "run")
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_exact_cosines_of_a_group_per_client_are_per_client_label_propagation(features, tmp_path):
    config = of_file(features[0])
    config.prediction.update(predictors="xclp,per_client_lp", similarity="exact", groups=4)
    run(config, tmp_path / "exact", quiet=True)
    rows = table(tmp_path / "exact" / "predictions.csv")
    assert any(row["xclp"] for row in rows)
    assert all(row["xclp"] == row["per_client_lp"] for row in rows)
    config.prediction.groups = 1
    config.prediction.protocol = "real"
    with pytest.raises(ConfigError, match=r"prediction\.similarity is 'exact', but the protocols"):
        run(config, tmp_path / "refused", quiet=True)


def test_of_several_ways_one_is_to_be_read_first():
    config = quick()
    config.prediction.variant = config.prediction.unlabelled = "both"
    config.prediction.predictors = "network,per_client_lp,xclp"
    advice = how_to_read(jobs_of(config))
    assert advice.startswith("read xclp_code first") and "_labelled: without unlabelled" in advice
    config.prediction.predictors = "network"
    assert how_to_read(jobs_of(config)) == ""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Clients .* do not tell all classes apart")
def test_clients_with_coarse_labels_get_predictions_in_their_own_space_too(tmp_path):
    config = presets.mixed_federation("channels", labelled=2, coarse=4, sets=3)
    config.rounds = config.eval_every = 1
    config.supervision.labels = 10
    config.supervision.sets = 5
    config.supervision.correspondence = None  # parity, by default
    config.data.test_clients = 0
    config.data.client_test_fraction = 0.3
    config.prediction.predictors = "network"
    run(config, tmp_path / "run")
    rows = table(tmp_path / "run" / "predictions.csv")
    coarse = {row["client"] for row in rows if row["network_coarse"]}
    assert len(coarse) == config.supervision.coarse_clients
    own = [row for row in rows if row["client"] in coarse]
    assert len({row["network"] for row in own}) > 2 and {row["network_coarse"] for row in own} <= {
        "even",
        "odd",
    }
    assert not any(row["network_coarse"] for row in rows if row["client"] not in coarse)


def test_class_statistics_stand_in_the_same_table(features, tmp_path):
    config = of_file(features[0])
    config.rounds = 0
    config.prediction.update(predictors="class_means,linear_head,xclp", variant="code", num_bits=33)
    rows = run(config, tmp_path / "run", quiet=True)["predictions"]
    assert [row["name"] for row in rows] == ["class_means", "linear_head", "xclp"]
    # clusters are far apart; two clients have labels
    assert all(row["accuracy"] == 1.0 and row["coverage"] == 1.0 for row in rows)
    arrays = np.load(features[0])
    points = len(arrays["inputs"]) + len(arrays["test_inputs"])
    assert [row["protocol_bytes"] for row in rows] == [2 * 108, 2 * 252, points * 8]
