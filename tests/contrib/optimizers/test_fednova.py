"""FedNova: the norms of its coefficients, one server step by hand, and FedAvg where all steps
are equal.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated
from fedjax_ssl.contrib.optimizers.fednova import fednova, step_norm
from fedjax_ssl.federated import Recipe, Stage, Training, build
from fedjax_ssl.methods.parts.terms import supervised_term
from tests import toy

KEY = jax.random.key(5)


@pytest.mark.parametrize(
    ("steps", "momentum", "mu", "nesterov"),
    [(5, 0.8, 0.6, False), (5, 0.8, 0.6, True), (3, 0.9, 0.0, False), (7, 0.0, 1.0, False)],
)
def test_norm_is_the_sum_of_the_weights_of_the_gradients(
    float64, steps: int, momentum: float, mu: float, nesterov: bool
) -> None:
    """The local optimizer itself, given one gradient of size 1 at a time."""
    rate = 0.1
    local = federated.local_optimizer("sgd", momentum=momentum, nesterov=nesterov)
    weights = []
    for place in range(steps):
        w = {"model": jnp.zeros(1)}
        state = local.init(w)
        for step in range(steps):
            gradient = {"model": float(step == place) + mu * w["model"]}
            added, state = local.update(gradient, state, w, jnp.asarray(rate))
            w = jax.tree.map(jnp.add, w, added)
        weights.append(-float(w["model"][0]) / rate)
    norm = step_norm(jnp.asarray(steps), momentum, mu * rate, nesterov=nesterov)
    assert float(norm) == pytest.approx(sum(weights), rel=1e-12)
    assert step_norm(jnp.asarray(0), momentum, mu * rate, nesterov=nesterov) == 0


def test_a_server_step_by_hand(float64) -> None:
    anchor = np.array([1.0, -2.0])
    results = np.array([[0.5, -1.0], [3.0, -2.5], [9.0, 9.0]])
    weights = [1.0, 3.0, 0.0]
    steps = [2, 6, 4]
    rate = 0.1
    optimizer = fednova(local=federated.LocalSettings(momentum=0.9))
    clients = [
        toy.local(
            {"model": jnp.asarray(anchor)},
            {"model": jnp.asarray(result)},
            {"model": jnp.asarray(weight)},
            jnp.asarray(count, jnp.int32),
            jnp.asarray(rate),
            (),
            (),
        )
        for result, weight, count in zip(results, weights, steps, strict=True)
    ]
    summed, _ = toy.added_up(optimizer, *clients)
    turn = toy.context(3)
    new, _ = optimizer.apply((), {"model": jnp.asarray(anchor)}, summed, turn)
    norms = [float(step_norm(jnp.asarray(count), 0.9)) for count in steps]
    direction = sum(
        w / 4 * (anchor - x) / (rate * a) for w, x, a in zip(weights, results, norms, strict=True)
    )
    effective = sum(w / 4 * a for w, a in zip(weights, norms, strict=True))
    np.testing.assert_allclose(new["model"], anchor - rate * effective * direction, rtol=1e-13)
    nothing = jax.tree.map(jnp.zeros_like, summed)
    same, _ = optimizer.apply((), {"model": jnp.asarray(anchor)}, nothing, turn)
    np.testing.assert_array_equal(same["model"], anchor)


def test_equally_many_steps_are_fedprox(float64) -> None:
    mu = 0.5
    data = toy.federation()

    def trained(optimizer):
        setup = toy.setup(
            data,
            model=toy.linear_model(),
            federated_optimizer=optimizer,
            local_optimizer=federated.local_optimizer(momentum=0.5),
            weighting="examples",
        )
        stage = Stage(
            Training((supervised_term(setup),), toy.in_order("labelled", 4, 3)),
            labelled_quota="any",
        )
        return toy.train(build(Recipe(setup, (stage,))), KEY, data, 2)

    ours, infos = trained(fednova(mu, local=federated.LocalSettings(momentum=0.5)))
    plain, costs = trained(federated.fedprox(mu))
    chex.assert_trees_all_close(ours.params, plain.params, rtol=1e-12, atol=1e-14)
    assert infos[0]["bytes_up"] == costs[0]["bytes_up"] + 4 * infos[0]["clients"]
    assert infos[0]["bytes_down"] == costs[0]["bytes_down"]


@pytest.mark.parametrize(
    ("mu", "message"), [(-0.1, "mu is -0.1"), (10.0, "their product must be below 1")]
)
def test_bad_settings_are_refused(mu: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fednova(mu)
