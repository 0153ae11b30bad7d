"""Builders of a user's own that have a parameter `facts` are told the sizes of the run."""

import sys
import types

import jax
import jax.numpy as jnp
import optax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import runs
from fedjax_ssl.config import resolve
from fedjax_ssl.data.federation.pool import Partition
from fedjax_ssl.federated import Facts, sample_cohort
from fedjax_ssl.runs import advice

# of another optimizer and partition than the file's
pytestmark = pytest.mark.filterwarnings("ignore:.*carried from the config")
SETTINGS = {"rounds": 3, "federated.cohort_size": 2}


@pytest.fixture
def own(monkeypatch) -> types.ModuleType:
    """A module of one's own; what its builders were told is in `told`."""
    module = types.ModuleType("asking")
    module.told = told = []  # type: ignore[attr-defined]

    def sampler(facts):
        told.append(facts)
        return sample_cohort

    def optimizer(learning_rate, facts, rate: float = 1.0):
        told.append(facts)
        return optax.sgd(learning_rate * rate / facts.num_clients)

    def partition(facts):
        told.append(facts)

        def assign(key, pool):
            return jnp.arange(pool.labels.size, dtype=jnp.int32) % facts.num_clients

        return Partition(assign)

    module.__dict__.update(sampler=sampler, optimizer=optimizer, partition=partition)
    monkeypatch.setitem(sys.modules, "asking", module)
    return module


def built(settings: dict) -> runs.Built:
    """A run of some settings, checked as a run checks it."""
    experiment = runs.load_experiment(fs.load_config("digits_fedavg", SETTINGS | settings))
    found = runs.build(experiment, runs.federate(experiment, jax.random.key(0)))
    advice.check(found)
    return found


@pytest.mark.parametrize("field", ["cohort.name", "optimizer.name"])
def test_cohort_samplers_and_local_optimizers(own, field) -> None:
    kind = {"cohort.name": "sampler", "optimizer.name": "optimizer"}[field]
    run = built({field: f"asking:{kind}"})
    assert {*own.told} == {Facts(run.federation.num_clients, 2, 3)}


def test_an_optimizer_is_asked_for_its_rate_where_the_sizes_are_known(own) -> None:
    resolve(fs.load_config("digits_fedavg", {"optimizer.name": "asking:optimizer"}))
    assert not own.told  # natural clients come with the data
    built(
        {"partition.num_clients": 4, "partition.name": "iid", "optimizer.name": "asking:optimizer"}
    )
    assert {one.num_clients for one in own.told} == {4}


def test_partitions(own) -> None:
    settings = {"partition.num_clients": 4, "partition.name": "asking:partition"}
    run = built(settings | {"data.test_clients": 0, "data.test_fraction": 0.2})
    (told,) = {*own.told}
    assert told.num_clients == run.federation.num_clients == 4
    assert told.num_classes == 10 and told.most >= int(run.federation.num_examples.sum())
