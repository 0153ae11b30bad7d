"""Federated optimizers by name: defaults that depend on the name, what is refused, and what a run carries."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.experiment import build_method, federate, load_experiment


def config_with(**fields):
    config = presets.digits_by_writer("fedavg", "2")
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="module")
def federation():
    return federate(load_experiment(config_with()), jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "mu", "rate"),
    [
        ("fedprox", 0.01, 0.01),
        ("fednova", 0.0, 0.01),
        ("scaffold", 0.01, 1.0),
        ("fedavgm", 0.01, 1.0),
        ("fedadam", 0.01, 0.01),
    ],
)
def test_defaults_follow_the_name(name: str, mu: float, rate: float) -> None:
    resolved = configs.resolve(config_with(**{"federated.name": name}))
    assert (resolved.federated.mu, resolved.federated.server_learning_rate) == (mu, rate)
    given = configs.resolve(
        config_with(**{"federated.name": name, "federated.mu": 0.5, "federated.server_learning_rate": 0.3})
    )
    assert (given.federated.mu, given.federated.server_learning_rate) == (0.5, 0.3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"federated.name": "scaffold", "optimizer.name": "adam"},
            r"config\.federated\.name is 'scaffold'.*config\.optimizer has name='adam', momentum=0\.0.*name='sgd'",
        ),
        ({"federated.name": "scaffold", "optimizer.momentum": 0.9}, "has name='sgd', momentum=0.9"),
        ({"federated.name": "scaffold", "optimizer.clip_norm": 1.0}, "clip_norm=1.0; use .*clip_norm=None"),
        ({"federated.name": "fednova", "federated.mu": 10.0}, r"federated\.mu is 10\.0 .* product must be below 1"),
        ({"federated.server_momentum": 1.0}, r"server_momentum is 1\.0; it must lie in \[0, 1\)"),
        ({"federated.name": "scafold"}, "Did you mean 'scaffold'"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, message: str) -> None:
    with pytest.raises(configs.ConfigError, match=message):
        configs.resolve(config_with(**fields))


def test_a_gradient_norm_to_clip_at_must_be_positive(federation) -> None:
    experiment = load_experiment(config_with(**{"optimizer.clip_norm": 0.0}))
    with pytest.raises(configs.ConfigError, match=r"config\.optimizer.*clip_norm is 0\.0; it must be positive"):
        build_method(experiment, federation)


def test_a_traced_momentum_is_refused_where_there_must_be_none(federation) -> None:
    experiment = load_experiment(config_with(**{"federated.name": "scaffold"}))
    with pytest.raises(configs.ConfigError, match="control variates are mean gradients of plain SGD"):
        jax.eval_shape(
            lambda momentum: build_method(experiment, federation, {"optimizer.momentum": momentum}), jnp.zeros(())
        )


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedavgm"])
def test_a_run_carries_the_state_of_its_optimizer(federation, name: str) -> None:
    fields = {"federated.name": name, "optimizer.momentum": 0.0 if name == "scaffold" else 0.9}
    experiment = load_experiment(config_with(**fields))
    traced = {"scaffold": "federated.server_learning_rate", "fednova": "federated.mu"}.get(
        name, "federated.server_momentum"
    )

    def one_round(key, value):
        method = build_method(experiment, federation, {traced: value})
        return method.round(key, method.init(key, federation), federation)

    state, info = jax.eval_shape(one_round, jax.random.key(0), jnp.zeros(()))
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    held = sum(leaf.size for leaf in jax.tree.leaves(state.optimizer))
    assert held == {"scaffold": (federation.num_clients + 1) * size, "fednova": 0, "fedavgm": size}[name]
    assert info["bytes_up"].shape == ()
