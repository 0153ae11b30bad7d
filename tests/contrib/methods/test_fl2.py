"""(FL)^2: numbers of the specification's checks, limits and edge cases."""

import dataclasses
from collections.abc import Callable
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
    perturbed_step,
)
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Client, RoundContext, ServerState, Term
from fedjax_ssl.methods.parts.confident_pseudo_labels import CONFIDENT, Choice
from fedjax_ssl.objectives import batch_cross_entropy, divergence_from, sharpness_ascent
from tests import toy
from tests.federated.test_toy_methods import after, looking, method_of, number


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


def test_losses_and_gradients_of_one_step(float64) -> None:
    """Check 4, without the optimizer; and the perturbed loss goes to 0 as the square of the
    radius.
    """
    everybody = jnp.ones(3, bool)
    labels = jnp.asarray(LABELS, jnp.int32)
    sure = jnp.asarray(SURE)

    def scores(params):
        return affine().apply(params, {}, jnp.asarray(BATCH), train=True)[0].logits

    @jax.jit
    def losses(radius):
        params = {"kernel": jnp.asarray(WEIGHTS), "bias": jnp.asarray(BIAS)}
        own = batch_cross_entropy(scores(params), labels, everybody)
        known, uphill = jax.value_and_grad(lambda w: batch_cross_entropy(scores(w), labels, sure))(
            params
        )
        offset = sharpness_ascent(params, uphill, radius)
        there = jax.tree.map(jnp.add, params, offset)
        before = scores(params)
        divergence, slope = jax.value_and_grad(
            lambda w: divergence_from(before, scores(w), everybody, sure)
        )(there)
        reversed_ = divergence_from(scores(there), before, everybody, sure)
        return own, known, offset, divergence, slope, reversed_

    own, known, offset, divergence, slope, reversed_ = losses(0.1)
    np.testing.assert_allclose([own, known], [0.6389366856, 0.5894812192], atol=1e-10)
    expected = [
        [0.0017691066, 0.0059736366],
        [-0.0005995693, -0.0261341829],
        [0.0041082307, 0.0008825054],
    ]
    np.testing.assert_allclose(offset["kernel"], expected, atol=1e-10)
    np.testing.assert_allclose(
        offset["bias"], [-0.0175690264, -0.0382780357, 0.0558470620], atol=1e-10
    )
    np.testing.assert_allclose([divergence, reversed_], [0.0008656688, 0.0008728690], atol=1e-10)
    expected = [
        [-0.0000096121, 0.0113365637],
        [-0.0098712015, -0.0202771403],
        [0.0098808136, 0.0089405766],
    ]
    np.testing.assert_allclose(slope["kernel"], expected, atol=1e-10)
    np.testing.assert_allclose(
        slope["bias"], [-0.0022807697, -0.0097642540, 0.0120450237], atol=1e-10
    )
    np.testing.assert_allclose(losses(1.0)[3], 0.0896980856, atol=1e-10)
    np.testing.assert_allclose(losses(1e-3)[3] / losses(1e-4)[3], 100.0, rtol=1e-2)


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


CHANGES = {
    "batch_size": max(toy.SIZES),
    "federated_optimizer": federated.fedopt(optax.sgd(1.0, 0.5)),
}


@pytest.fixture(scope="module")
def fl2_round() -> Callable[..., tuple[ServerState, dict[str, Any]]]:
    """State and metrics after a round of a linear model; settings are arguments of one program."""

    @jax.jit
    def train(
        data: FederatedData, settings: dict[str, jax.Array]
    ) -> tuple[ServerState, dict[str, Any]]:
        run = toy.setup(data, model=toy.linear_model(), **CHANGES)
        options = {"adaptive_thresholds": False, "uncertainty_weights": False, "pretrain_calls": 0}
        method = methods.build("fl2", run, **options, **settings)
        return method.round(key(), method.init(key(), data), data)

    def call(data: FederatedData, **settings: float) -> tuple[ServerState, dict[str, Any]]:
        return train(data, {name: jnp.asarray(value) for name, value in settings.items()})

    return call


@pytest.mark.thorough
def test_fixed_thresholds_and_no_consistency_are_semifl_without_mixing(fl2_round) -> None:
    """Check 5, first limit."""
    data = toy.weak_federation("server")
    mine, info = fl2_round(data, threshold=0.7, consistency_weight=0.0)
    run = toy.setup(data, model=toy.linear_model(), **CHANGES)
    semifl = methods.build("semifl", run, threshold=0.7, mix_weight=0.0)
    theirs, expected = jax.jit(semifl.round)(key(), semifl.init(key(), data), data)
    chex.assert_trees_all_close(mine.params, theirs.params, rtol=1e-5, atol=1e-6)
    assert info["local_steps"] == expected["local_steps"] > 0


@pytest.mark.thorough
def test_without_a_sure_row_a_step_is_plain_pseudo_labelling() -> None:
    """Edge case: adaptive thresholds train on rows of which none is sure; the perturbation is
    then 0.
    """
    data = toy.weak_federation("server")

    @jax.jit
    def params(weight: jax.Array, radius: jax.Array) -> Any:
        run = toy.setup(data, model=toy.linear_model())
        settings = {
            "threshold": 1.0,
            "consistency_weight": weight,
            "rho": radius,
            "pretrain_calls": 0,
        }
        method = methods.build("fl2", run, **settings)
        start = method.init(key(), data)
        return method.round(key(), start, data)[0].params, start.params

    (one, start) = params(jnp.asarray(1.0), jnp.asarray(0.5))
    (other, _) = params(jnp.asarray(0.0), jnp.asarray(0.1))
    chex.assert_trees_all_equal(one, other)
    chex.assert_tree_all_finite(one)
    assert float(optax.tree.norm(optax.tree.sub(one, start))) > 1e-3


def test_a_gradient_at_perturbed_weights(float64) -> None:
    """Sharpness-aware step on w^4 / 4 + w at w = 1: the gradient of w^4 / 4 is taken at 1 + rho,
    that of w at 1.
    """
    data = toy.federation()
    rho = 0.1

    def loss(step):
        at_first = step.earlier["all"].logits[0, 0] - step.inputs["all"][0, 0]
        return step.params["w"] ** 4 / 4 + 0.0 * at_first

    sharp = Term("sharp", (looking(),), loss)
    wrap_step = perturbed_step(
        sharp,
        Term("probe", (looking(),), lambda step: step.params["w"] ** 3),
        lambda params, gradient: jax.tree.map(lambda g: rho * g / jnp.abs(g), gradient),
    )
    terms = (sharp, Term("plain", (looking(),), lambda step: step.params["w"]))
    state, _ = after(
        method_of(data, *terms, start={"w": 1.0}, wrap_step=wrap_step, learning_rate=0.1), data
    )
    assert number(state) == pytest.approx(1.0 - 0.1 * (1.1**3 + 1.0), rel=1e-12)
