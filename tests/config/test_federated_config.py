"""Federated optimizers by name: defaults that depend on the name, what is refused, and what a
run carries.
"""

import jax
import jax.numpy as jnp
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.runs.build import build, federate, load_experiment


def config_with(**fields):
    config = presets.digits_by_writer("fedavg", 2)
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="module")
def federation():
    return federate(load_experiment(config_with()), jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {}),
        ("fedprox", {"mu": 0.01}),
        ("fednova", {"mu": 0.0}),
        ("scaffold", {"server_learning_rate": 1.0}),
        ("fedavgm", {"server_learning_rate": 1.0, "server_momentum": 0.5}),
        ("fedadam", {"server_learning_rate": 0.01, "tau": 1e-3}),
        ("fedadagrad", {"server_learning_rate": 0.1, "tau": 1e-3}),
    ],
)
def test_defaults_follow_the_name(name: str, settings: dict[str, float]) -> None:
    def resolved(**fields):
        section = configs.resolve(config_with(**{"federated.name": name, **fields})).federated
        found = {
            setting: section[setting]
            for setting in ("mu", "server_learning_rate", "server_momentum", "tau")
        }
        return {setting: value for setting, value in found.items() if value is not None}

    assert resolved() == settings
    assert resolved(**{f"federated.{setting}": 0.3 for setting in settings}) == dict.fromkeys(
        settings, 0.3
    )


def test_a_setting_that_the_optimizer_does_not_take_is_noted():
    with pytest.warns(
        configs.ConfigNote, match=r"federated\.mu=0\.3 has no effect: federated optimizer 'fedadam'"
    ):
        resolved = configs.resolve(
            config_with(**{"federated.name": "fedadam", "federated.mu": 0.3})
        )
    assert resolved.federated.mu is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"federated.name": "scaffold", "optimizer.name": "adam"},
            r"config\.federated: scaffold's .*config\.optimizer has name='adam', momentum=0\.0.*name='sgd'",
        ),
        ({"federated.name": "scaffold", "optimizer.momentum": 0.9}, "has name='sgd', momentum=0.9"),
        (
            {"federated.name": "scaffold", "optimizer.clip_norm": 1.0},
            "clip_norm=1.0; use .*clip_norm=None",
        ),
        (
            {"federated.name": "fednova", "federated.mu": 10.0},
            r"federated: mu is 10\.0 .* product must be below 1",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(fields, message: str) -> None:
    with pytest.raises(configs.ConfigError, match=message):
        configs.resolve(config_with(**fields))


def test_a_traced_momentum_is_refused_where_there_must_be_none(federation) -> None:
    experiment = load_experiment(config_with(**{"federated.name": "scaffold"}))
    with pytest.raises(
        configs.ConfigError, match="control variates are mean gradients of plain SGD"
    ):
        jax.eval_shape(
            lambda momentum: build(experiment, federation, {"optimizer.momentum": momentum}).method,
            jnp.zeros(()),
        )


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedavgm"])
def test_a_run_carries_the_state_of_its_optimizer(federation, name: str) -> None:
    fields = {"federated.name": name, "optimizer.momentum": 0.0 if name == "scaffold" else 0.9}
    experiment = load_experiment(config_with(**fields))
    traced = {"scaffold": "federated.server_learning_rate", "fednova": "federated.mu"}.get(
        name, "federated.server_momentum"
    )

    def one_round(key, value):
        method = build(experiment, federation, {traced: value}).method
        return method.round(key, method.init(key, federation), federation)

    state, _ = jax.eval_shape(one_round, jax.random.key(0), jnp.zeros(()))
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    held = sum(leaf.size for leaf in jax.tree.leaves((state.optimizer, state.clients)))
    assert (
        held
        == {"scaffold": (federation.num_clients + 1) * size, "fednova": 0, "fedavgm": size}[name]
    )
