import jax
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import federated, methods
from fedjax_ssl.config import ConfigError, ConfigNote
from fedjax_ssl.data import FederatedData
from fedjax_ssl.runs.advice import (
    check_weighting,
    idle_clients,
    large_batches,
    note_missing_labels,
    weights_in_words,
)
from tests import toy


def check(name: str, data: FederatedData, weighting: str = "labelled", **options) -> None:
    check_weighting(weighting, methods.build(name, toy.setup(data), **options), data)


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [("xclp", "labels", 1), ("semifl", "server", 6), ("fedul", "sets", 1)],
)
def test_training_of_clients_without_labels_is_not_thrown_away(
    name: str, kind: str, count: int
) -> None:
    data = toy.weak_federation(kind)
    with pytest.raises(
        ConfigError, match=f"weighting is 'labelled', but {count} of 6 clients have no class labels"
    ):
        check(name, data)
    for weighting in ("uniform", "examples"):
        check(name, data, weighting)


def test_weights_by_labels_fit_where_all_that_train_have_some() -> None:
    data = toy.federation()
    for name in ("fedavg", "per_client_lp", "single"):
        check(name, data)
    check("per_client_lp", toy.federation(labelled=(1,) * 6), unlabelled_clients=True)
    with pytest.raises(ConfigError, match="1 of 6 clients"):
        check("per_client_lp", data, unlabelled_clients=True)


def test_missing_labels_are_noted() -> None:
    data = toy.federation()
    with pytest.warns(
        ConfigNote,
        match="asks for 2 labelled examples of every class.* fewer of 11 of 15 classes, 3 of",
    ):
        note_missing_labels("per_class", 2, data)
    with pytest.warns(
        ConfigNote, match="labels=5000 labels of a client: 5 of 5 clients have fewer, from 1 to"
    ):
        note_missing_labels("per_client", 5000, data)
    for supervision, labels in (("per_client", 1), ("total", 5000), ("all", None)):
        note_missing_labels(supervision, labels, data)


@pytest.mark.parametrize(
    ("name", "kind", "options", "said"),
    [
        (
            "fedavg",
            "labels",
            {},
            "1 of 6 clients never train: 1 without a label that the method learns from (n2)",
        ),
        pytest.param("xclp", "labels", {}, "", marks=pytest.mark.thorough),
        (
            "fedul",
            "sets",
            {"drop_last": True},
            "of 6 clients never train: {} with less than a batch of 8 ",
        ),
    ],
)
def test_clients_that_never_train_are_counted_and_named(name, kind, options, said):
    data = toy.weak_federation(kind, server=4)
    method = methods.build(name, toy.setup(data, batch_size=8), **options)
    line = idle_clients(method, data, [f"n{client}" for client in range(6)], 8)
    line = line[0] if line else ""
    round = jax.jit(method.round)
    state = method.init(jax.random.key(0), data)
    others = [[one for one in range(6) if one != client] for client in range(6)]
    steps = [
        round(jax.random.key(0), state, toy.without(data, *clients))[1]["local_steps"]
        for clients in others
    ]
    if name in ("fedavg", "fedul"):
        np.testing.assert_array_equal(
            federated.who_trains(method.recipe.stages, data), np.array(steps) > 0
        )
        count = sum(not taken for taken in steps)
        assert count and line.startswith(f"{count} of 6") and said.format(count) in line
    else:
        assert line == ""


def test_a_batch_that_no_client_fills_is_said():
    data = toy.federation()
    largest = int(np.max(data.num_examples))
    assert large_batches(data, largest) == []
    (line,) = large_batches(data, largest + 1)
    assert line.startswith(f"a batch of {largest + 1} (config.optimizer.batch_size) is larger than")


@pytest.mark.parametrize(
    ("name", "data", "weighting", "said"),
    [
        (
            "npz",
            "npz",
            "examples",
            "a client's weight is its number of examples (McMahan et al. 2017) (config.fed",
        ),
        ("digits", "hf:me/toy", "examples", "number of examples"),
        ("digits", "tfds:mnist", "examples", "number of examples"),
        ("digits", "my_module:load", "examples", "number of examples"),
        (
            "digits",
            "digits",
            "uniform",
            "every client has the same weight (config.federated.weighting=uniform)",
        ),
        (
            "digits_fl2",
            "cifar10",
            "uniform",
            "every client has the same weight, unless the method sets weights of its own",
        ),
    ],
)
def test_ones_own_data_are_weighted_by_examples_and_every_run_says_how(name, data, weighting, said):
    config = configs.load(name)
    assert config.federated.weighting is None
    config.data.name = data
    if data != "my_module:load":
        assert configs.resolve(config).federated.weighting == weighting
    toys = toy.federation(server=4)
    method = methods.build("fl2" if name == "digits_fl2" else "fedavg", toy.setup(toys))
    assert said in weights_in_words(weighting, method)
