"""FixMatch, UDA, MixMatch, mean teacher, VAT, Pi-model and Pseudo-label: limits, labels at the
server, clients alone; their steps are in whole_step/test_consistency.py.
"""

import jax
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import federated, methods, presets
from fedjax_ssl.methods.consistency import shuffled
from tests import toy
from tests.methods import cases

KEY = jax.random.key(3)
METHODS = ("fixmatch", "uda", "mixmatch", "mean_teacher", "pi_model", "vat", "pseudo_label")


@pytest.mark.thorough
def test_a_teacher_without_memory_is_the_pi_model_with_constant_targets() -> None:
    data = toy.federation()
    run = toy.setup(data, model=toy.linear_model(), augment=toy.jitter)
    shared = {"labelled_too": False, "unlabelled_ratio": 1, "ramp_rounds": 1}
    taught, pi, labels_alone = (
        toy.train(methods.build(name, run, **shared, **own), KEY, data, 2)[0].params["model"]["w"]
        for name, own in (
            ("mean_teacher", {"decay": 0.0}),
            ("pi_model", {"stop_gradient": True}),
            ("pi_model", {"unlabelled_weight": 0.0}),
        )
    )
    np.testing.assert_allclose(taught, pi, rtol=1e-5, atol=1e-6)
    assert np.abs(pi - labels_alone).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("name", METHODS)
def test_learns_from_labels_at_the_server(name: str) -> None:
    """With a step or two at the server in a round, most of them drift away on their own
    predictions.
    """
    data = toy.weak_federation("server")
    settings = {**cases.of(name).settings, "server_batch_size": 3, "server_epochs": 10}
    method = methods.build(name, cases.setup(name, data), **settings)
    state, _ = toy.train(method, KEY, data, 16)
    chosen = np.argmax(jax.jit(method.predict)(state, data.inputs), axis=1)[data.test_index]
    assert np.mean(chosen == data.labels[data.test_index]) > 0.8  # chance: 1/3


def test_clients_train_on_what_there_is() -> None:
    """Without unlabelled examples labels are learned alone; without any label there is nothing
    to learn.
    """
    data = toy.federation()
    method = methods.build("fixmatch", toy.setup(data, max_unlabelled=0))
    _, info = jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)
    assert "pseudo_label_accuracy" not in info
    with pytest.raises(ValueError, match=r"nothing to learn from.*unlabelled_weight 0\.0"):
        methods.build("fixmatch", toy.setup(data, max_labelled=0), unlabelled_weight=0.0)


@pytest.mark.parametrize("name", METHODS)
def test_clients_alone(name: str) -> None:
    """FedMatch's Local-X: what needs a server is refused."""
    run = toy.setup(toy.federation(), federated_optimizer=federated.local(), rounds=8)
    if name == "mean_teacher":
        with pytest.raises(ValueError, match="no server"):
            methods.build(name, run)
        return
    methods.build(name, run)
    with pytest.raises(ValueError, match="'moving_average' needs one"):
        methods.build(name, run, ema_decay=0.5)


def test_partners_are_a_permutation_of_the_real_rows() -> None:
    real = np.array([True, False, True, True, False])
    draw = jax.jit(shuffled)
    for seed in range(5):
        assert sorted(np.asarray(draw(jax.random.key(seed), real))[real]) == [0, 2, 3]


@pytest.mark.parametrize("name", METHODS)
def test_the_digits_have_labels_at_the_writers_or_at_the_server(name: str) -> None:
    for given, expected in (((10,), ("per_client", 10)), (("server", 30), ("server", 30))):
        found = configs.resolve(presets.digits_consistency(name, *given)).supervision
        assert (found.name, found.labels) == expected
    with pytest.raises(configs.ConfigError, match="labels of writers and of the server"):
        presets.digits_consistency(name, 10, 30)
