"""Which model a run reports by its validation accuracy."""

import math
from types import MappingProxyType

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.runs.rounds import TOTALS
from fedjax_ssl.runs.summary import selected, summarize

ACCURACIES = (0.9, 0.5, 0.7, 0.7, 0.6)  # after rounds 1 to 5, of validation


def summary(columns=MappingProxyType({}), /, **fields):
    config = configs.default("xclp")
    config.rounds = 5
    config.method.warmup_rounds = 0
    config.data.validation_fraction = 0.1
    config.update_from_flattened_dict(fields)
    row = dict.fromkeys(TOTALS, 0) | dict(columns)
    rows = [
        {**row, "round": number, "validation_accuracy": value, "test_accuracy": number / 10}
        for number, value in enumerate(ACCURACIES, start=1)
    ]
    seconds = {"compile_seconds": 0.0, "train_seconds": 0.0}
    found = summarize(configs.resolve(config), rows, seconds, [])
    return found["selected_round"], found["selected_test_accuracy"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1, 0.1)),
        ({"select_from": 2}, (3, 0.3)),  # the first of two equal ones
        ({"select_from": 5}, (5, 0.5)),
        ({"select_from": 1, "method.warmup_rounds": 2, "eval_every": 1}, (3, 0.3)),
    ],
)
def test_the_best_round_from_a_given_one_on(fields, expected) -> None:
    assert summary(**fields) == expected


@pytest.mark.parametrize(
    ("fields", "columns", "expected"),
    [
        # Ditto: validation says nothing of clients' own models
        ({}, {"test_client_accuracy": 0.5, "test_client_global_accuracy": 0.4}, 5),
        ({"metrics": ()}, {"test_client_accuracy": 0.5}, 5),
        ({}, {"test_client_accuracy": math.nan}, 5),  # no test example is a client's
        # the config says how to choose
        ({"metrics": (), "select_from": 2}, {"test_client_accuracy": 0.5}, 3),
        ({"metrics": (), "early_stopping.patience": 9}, {"test_client_accuracy": 0.5}, 1),
        # the mean of own models
        ({"metrics": (), "federated.name": "local"}, {"test_client_accuracy": 0.5}, 1),
        ({}, {"test_client_accuracy": 0.5}, 1),  # of the common model
    ],
)
def test_of_clients_own_models_the_last_round_is_kept(fields, columns, expected) -> None:
    assert summary(columns, **fields)[0] == expected


def test_a_model_whose_scores_are_not_numbers_is_never_the_best() -> None:
    assert summary({"validation_loss": math.nan})[0] == 1, "all of them"
    rows = [
        {"round": 1, "validation_accuracy": 0.9, "validation_loss": math.nan},
        {"round": 2, "validation_accuracy": 0.1, "validation_loss": 2.0},
    ]
    assert selected(configs.default("fedavg"), rows) == rows[1]


def test_a_round_after_the_last_or_without_validation_data_is_said_to_do_nothing() -> None:
    with pytest.warns(
        configs.ConfigNote, match=r"config\.select_from=6 comes after the last of 5 rounds"
    ):
        assert summary(select_from=6) == (5, 0.5)
    with pytest.warns(
        configs.ConfigNote, match="select_from=2 has no effect without validation data"
    ):
        summary(select_from=2, **{"data.validation_fraction": 0.0})
