"""Sweeps over seeds on several devices, and how it is said where clients are."""

import chex
import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import config as configs
from fedjax_ssl import federated, presets
from fedjax_ssl.runs.build import build, federate, load_experiment
from fedjax_ssl.runs.summary import describe_placement
from fedjax_ssl.train import make_train, over_seeds


def config(**fields):
    config = presets.digits_by_writer("fedavg", 2)
    config.rounds = 2
    config.eval_every = 2
    config.optimizer.local_epochs = 1
    config.model.name = "linear"
    config.update_from_flattened_dict({"federated.cohort_size": 5, **fields})
    return config


def mesh(seeds, clients, axes=("seeds", "clients")):
    return Mesh(np.array(jax.devices()[: seeds * clients]).reshape(seeds, clients), axes)


@pytest.fixture(scope="module")
def keys():
    return jax.vmap(jax.random.key)(np.arange(4))


@pytest.mark.thorough
def test_seeds_and_clients_on_four_devices_give_the_bits_of_one(keys):
    """Two groups of two devices: each group trains two seeds in turn and shares their cohorts of
    five clients.
    """
    alone = over_seeds(make_train(config()))(keys)
    many = over_seeds(make_train(config(**{"federated.devices": 2})), mesh(2, 2))(keys)
    chex.assert_trees_all_equal(alone, many)
    assert len(np.unique(many[1]["loss"])) == 4
    assert {shard.device for shard in many[1]["loss"].addressable_shards} == set(jax.devices()[:4])


def test_a_mesh_that_does_not_fit_is_refused(keys):
    train = make_train(config(**{"federated.devices": 2}))
    with pytest.raises(ValueError, match=r"axes \('clients',\); .* takes \('seeds', 'clients'\)"):
        over_seeds(train, Mesh(np.array(jax.devices()[:2]), ("clients",)))
    with pytest.raises(ValueError, match="3 seeds for 2 groups of devices"):
        over_seeds(train, mesh(2, 2))(keys[:3])
    with pytest.raises(
        ValueError, match="2 devices are to share each cohort, but the surrounding shard_map has 4"
    ):
        over_seeds(train, mesh(1, 4))(keys[:1])


@pytest.mark.parametrize(
    ("choice", "backend", "line"),
    [
        (federated.Choice("sequential", 1), "cpu", "clients one after another (CPU)"),
        (federated.Choice("sequential", 1), "gpu", "clients one after another"),
        (federated.Choice("vmap", 10), "gpu", "clients at once: 10, all of them"),
        (federated.Choice("chunked", 8), "gpu", "clients at once: 8 in chunks"),
        (
            federated.Choice("lanes", 48, 48, 210_000_000, 60_000_000_000),
            "gpu",
            "clients at once: 48 in lanes, about 210 MB each of 60 GB",
        ),
    ],
)
def test_the_choice_in_words(choice, backend, line):
    assert describe_placement(choice, backend) == line


def test_clients_at_once_are_chosen_unless_they_are_given():
    assert configs.resolve(config()).federated.chunk_size is None
    with pytest.raises(configs.ConfigError, match=r"config\.federated\.chunk_size is 0"):
        configs.resolve(config(**{"federated.chunk_size": 0}))

    def placed(key, **fields):
        found = []
        experiment = load_experiment(config(**{"federated.placement": "chunked", **fields}))
        federation = federate(experiment, key)
        built = build(experiment, federation)
        execution = built.execution._replace(report=found.append)
        method = federated.execute(built.method, execution)
        jax.eval_shape(method.round, key, jax.eval_shape(method.init, key, federation), federation)
        return found[0]

    key = jax.random.key(0)
    assert placed(key) == federated.Choice("chunked", 5, 5)  # 8, but there are 5 clients
    assert placed(key, **{"federated.chunk_size": 3}) == federated.Choice("chunked", 3, 5)
