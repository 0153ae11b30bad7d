"""(FL)^2: numbers of the specification's checks, limits and edge cases."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.contrib.methods.fl2 import (
    at_own_thresholds,
    by_uncertainty,
    client_thresholds,
)
from fedjax_ssl.federated import Client, RoundContext
from fedjax_ssl.methods.parts.confident_pseudo_labels import CONFIDENT, Choice
from fedjax_ssl.objectives import sharpness_ascent
from tests import toy


def key() -> jax.Array:
    return jax.random.key(3)


ROWS = np.array(
    [[0.96, 0.03, 0.01], [0.5, 0.3, 0.2], [0.2, 0.45, 0.35], [0.1, 0.3, 0.6], [0.36, 0.33, 0.31]]
)


@jax.jit
def chosen(probabilities: jax.Array, sizes: jax.Array) -> Choice:
    """What clients of these sizes train on."""
    nothing = jnp.zeros(probabilities.shape[:2], jnp.int32)
    clients = Client(sizes, nothing, nothing - 1, sizes * 0, sizes, {}, ())
    round_fields = dict.fromkeys(RoundContext._fields) | {"clients": clients}
    return at_own_thresholds((), RoundContext(**round_fields), probabilities)


def test_thresholds_of_a_client(float64) -> None:
    """Check 1, with a second client that is all padding and a third one with a value that is not
    finite.
    """
    padded = np.concatenate([ROWS, np.full((2, 3), np.nan)])
    broken = np.where(np.arange(7)[:, None] == 1, np.nan, np.nan_to_num(padded, nan=0.3))
    probabilities = jnp.asarray(np.stack([padded, padded, broken]))
    real = jnp.asarray(np.arange(7) < np.array([[5], [0], [5]]))
    tau, thresholds = jax.jit(client_thresholds)(probabilities, real)
    np.testing.assert_allclose(tau[0], 0.574, rtol=1e-12)
    np.testing.assert_allclose(thresholds[0], [0.574, 0.3817641509, 0.3980094340], atol=1e-10)
    np.testing.assert_array_equal(tau[1], 0.0)
    choice = chosen(probabilities, jnp.asarray([5, 0, 5], jnp.int32))
    np.testing.assert_array_equal(choice.confident[0, :5], [True, False, True, True, False])
    np.testing.assert_array_equal(choice.labels[0, :5], [0, 0, 1, 2, 0])
    assert np.isnan(tau[2]) and bool(jnp.all(choice.confident[2])), "it trains, and is dropped"


def test_the_surest_example_stays_whatever_a_mean_rounds_to() -> None:
    """Edge case: in float32, the mean of 13 equal numbers may lie above them."""
    largest = np.float32(0.7)
    rows = np.tile(np.array([largest, 1 - largest], np.float32), (13, 1))[None]
    tau, _ = jax.jit(client_thresholds)(rows, np.ones((1, 13), bool))
    assert tau[0] <= largest
    choice = chosen(jnp.asarray(rows), jnp.asarray([13], jnp.int32))
    assert bool(jnp.all(choice.confident))


def returned(
    optimizer: Any, state: Any, anchor: Any, clients: list[tuple[float, list[float]]]
) -> Any:
    """The server's step after clients returned (tau, parameters)."""
    trained = []
    for tau, params in clients:
        weight = by_uncertainty(None, {CONFIDENT: jnp.asarray(tau)})
        one = jnp.ones(())
        trained.append(
            toy.local(
                {"model": anchor},
                {"model": jnp.asarray(params)},
                {"model": weight},
                one,
                one,
                (),
                (),
            )
        )
    summed, _ = toy.added_up(optimizer, *trained)
    params, state = optimizer.apply(state, {"model": anchor}, summed, toy.context(len(clients)))
    return params["model"], state


def test_clients_weigh_by_their_uncertainty_and_the_mean_has_momentum(float64) -> None:
    """Check 2; where all are certain, they count the same."""
    optimizer = federated.fedopt(optax.sgd(1.0, 0.5))
    anchor = jnp.asarray([1.0, 1.0])
    start = optimizer.init({"model": anchor})
    first, state = returned(
        optimizer, start, anchor, [(0.9, [2.0, 0.0]), (0.6, [0.0, 1.0]), (0.5, [1.0, -1.0])]
    )
    np.testing.assert_allclose(first, [0.7, -0.1], rtol=1e-12)
    second, _ = returned(optimizer, state, first, [(0.8, [1.0, 0.0]), (0.8, [0.0, 0.0])])
    np.testing.assert_allclose(second, [0.35, -0.55], rtol=1e-12)
    certain, _ = returned(optimizer, start, anchor, [(1.0, [2.0, 0.0]), (1.0, [0.0, 1.0])])
    np.testing.assert_allclose(certain, [1.0, 0.5], rtol=1e-12)


def test_perturbation(float64) -> None:
    """Check 3."""
    params = {"layer": {"kernel": jnp.asarray([2.0, -0.5, 0.0]), "bias": jnp.asarray([0.3])}}
    gradient = {"layer": {"kernel": jnp.asarray([0.1, -0.4, 0.2]), "bias": jnp.asarray([0.25])}}
    ascent = jax.jit(sharpness_ascent, static_argnums=3)
    adaptive = ascent(params, gradient, 0.1, True)["layer"]
    np.testing.assert_allclose(
        adaptive["kernel"], [0.1062739043, -0.0273674835, 0.0000052610], atol=1e-10
    )
    np.testing.assert_allclose(adaptive["bias"], [0.0657619268], atol=1e-10)
    plain = ascent(params, gradient, 0.1, False)["layer"]
    np.testing.assert_allclose(
        plain["kernel"], [0.0191565257, -0.0766261028, 0.0383130514], atol=1e-10
    )
    np.testing.assert_allclose(plain["bias"], [0.0478913143], atol=1e-10)
    nowhere = ascent(params, jax.tree.map(jnp.zeros_like, gradient), 0.1, True)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(nowhere))


WEIGHTS = np.array([[0.5, -0.2], [0.1, 0.4], [-0.3, 0.2]])
BIAS = np.array([0.05, -0.05, 0.0])
BATCH = np.array([[1.0, 2.0], [-1.0, 0.5], [0.5, -1.5]])
LABELS = np.array([1, 2, 0])
SURE = np.array([True, False, True])


def affine() -> models.Model:
    """The network of check 4."""

    def apply(params, state, inputs, *, train, key=None, mask=None):
        logits = inputs @ params["kernel"].T + params["bias"]
        return models.Outputs(logits, inputs, None), state

    return models.Model(
        lambda key: ({"kernel": jnp.asarray(WEIGHTS), "bias": jnp.asarray(BIAS)}, {}), apply
    )


def test_one_round_of_one_step(float64) -> None:
    """Check 4: the weak view is what makes the network give these labels, and be sure of the
    first and the last.
    """
    data = toy.federation(sizes=(3,), labelled=(0,))
    data = dataclasses.replace(data, inputs=jnp.zeros((63, 2)).at[:3].set(BATCH))

    def weak(key, inputs):
        seen = jnp.asarray([[0.0, 100.0], [-1.5, 0.0], [100.0, -100.0]])
        return seen[jnp.argmin(jnp.abs(inputs[:, :1] - BATCH[:, 0]), axis=1)]

    run = toy.setup(
        data,
        model=affine(),
        augment=weak,
        strong_augment=toy.same,
        local_optimizer=federated.local_optimizer(
            momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0
        ),
        learning_rate=0.03,
        local_epochs=1,
    )
    method = methods.build("fl2", run)
    state, infos = toy.train(method, key(), data, 1)
    params = state.params["model"]
    expected = [
        [0.5024541434, -0.2232202129],
        [0.1145789225, 0.4218427284],
        [-0.3170416159, 0.2013660845],
    ]
    np.testing.assert_allclose(params["kernel"], expected, atol=1e-10)
    np.testing.assert_allclose(
        params["bias"], [0.0493159457, -0.0499596139, 0.0006436681], atol=1e-10
    )
    assert infos[0]["loss"] == pytest.approx(0.6389366856 + 0.0008656688, abs=1e-9)
    assert infos[0]["examples"] == 3 and infos[0]["bytes_up"] == infos[0]["bytes_down"] + 4


@pytest.mark.thorough
def test_fixed_thresholds_and_no_consistency_are_semifl_without_mixing() -> None:
    """Check 5, first limit."""
    data = toy.weak_federation("server")
    run = toy.setup(data, model=toy.linear_model(), batch_size=max(toy.SIZES))
    run = run._replace(federated_optimizer=federated.fedopt(optax.sgd(1.0, 0.5)))
    plain = {"adaptive_thresholds": False, "uncertainty_weights": False, "pretrain_calls": 0}
    fl2 = methods.build("fl2", run, threshold=0.7, consistency_weight=0.0, **plain)
    semifl = methods.build("semifl", run, threshold=0.7, mix_weight=0.0)
    (mine, infos), (theirs, expected) = (
        toy.train(method, key(), data, 1) for method in (fl2, semifl)
    )
    chex.assert_trees_all_close(mine.params, theirs.params, rtol=1e-5, atol=1e-6)
    assert infos[0]["local_steps"] == expected[0]["local_steps"] > 0


@pytest.mark.thorough
def test_without_a_sure_row_a_step_is_plain_pseudo_labelling() -> None:
    """Edge case: adaptive thresholds train on rows of which none is sure; the perturbation is
    then 0.
    """
    data = toy.weak_federation("server")
    run = toy.setup(data, model=toy.linear_model())
    one, other = (
        methods.build(
            "fl2", run, threshold=1.0, consistency_weight=weight, rho=radius, pretrain_calls=0
        )
        for weight, radius in ((1.0, 0.5), (0.0, 0.1))
    )
    start = one.init(key(), data).params
    one, other = (toy.train(method, key(), data, 1)[0].params for method in (one, other))
    chex.assert_trees_all_equal(one, other)
    chex.assert_tree_all_finite(one)
    assert float(optax.tree.norm(optax.tree.sub(one, start))) > 1e-3
