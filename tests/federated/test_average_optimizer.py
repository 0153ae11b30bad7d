"""Clients that start from the mean of what the local optimizer's states were at the end of the
last cohort.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated
from fedjax_ssl.federated import Term, Training
from tests import toy
from tests.federated.test_toy_methods import after, looking, method_of, number, own_id, pull

RMSPROP = {"local_optimizer": federated.local_optimizer("rmsprop"), "average_optimizer": True}
RATE = 0.5
STEPS = 2
ROUNDS = 3


def by_hand(sizes) -> tuple[float, float]:
    """v <- 0.9 v + 0.1 g^2 and w <- w - rate g / (sqrt(v) + 1e-7) towards each client's id;
    means by size.
    """
    shared_w = shared_v = 0.0
    for _ in range(ROUNDS):
        ends = []
        for client in range(len(sizes)):
            w = shared_w
            v = shared_v
            for _ in range(STEPS):
                gradient = w - client
                v = 0.9 * v + 0.1 * gradient**2
                w -= RATE * gradient / (np.sqrt(v) + 1e-7)
            ends.append((w, v))
        shared_w, shared_v = np.average(ends, axis=0, weights=sizes)
    return shared_w, shared_v


@pytest.mark.parametrize(
    "placement", ["sequential", pytest.param("vmap", marks=pytest.mark.thorough)]
)
def test_accumulators_are_averaged_like_the_parameters(float64, placement: str) -> None:
    data = toy.federation()
    method = method_of(
        data, pull("id", own_id), steps=STEPS, learning_rate=RATE, weighting="examples", **RMSPROP
    )
    state, infos = after(toy.executed(method, placement=placement), data, ROUNDS)
    expected, accumulator = by_hand(toy.SIZES)
    (found,) = jax.tree.leaves(state.local_optimizer)
    assert number(state) == pytest.approx(expected, rel=1e-9)
    assert float(np.ravel(found)[0]) == pytest.approx(accumulator, rel=1e-9)
    # Beside the model's bytes: one number down and one up for each of six clients.
    assert infos[0]["optimizer_state_bytes"] == 6 * 8 and infos[0]["bytes_up"] == 6 * 4


@pytest.mark.thorough
def test_steps_are_counted_on_and_private_groups_start_anew() -> None:
    data = toy.federation()
    terms = pull("body", own_id, "w"), pull("head", own_id, "head", "head")
    adam = {"local_optimizer": federated.local_optimizer("adam"), "average_optimizer": True}
    more = {"start": {"w": 0.0, "head": 0.0}, "private": ("head",), "steps": STEPS}
    state, _ = after(method_of(data, *terms, **more, **adam), data, 2)
    assert set(state.local_optimizer) == {"w"}
    (steps,) = (
        leaf
        for leaf in jax.tree.leaves(state.local_optimizer)
        if jnp.issubdtype(leaf.dtype, jnp.integer)
    )
    assert int(steps) == 2 * STEPS


def test_a_client_with_an_accumulator_that_is_not_finite_is_dropped() -> None:
    """Its parameters are: a step by the gradient 1e25 over an accumulator of infinity is none."""

    def loss(step):
        return jnp.where(step.client.id == 0, 1e25, 1.0) * step.params["w"]

    data = toy.federation()
    method = method_of(data, Term("push", (looking(),), loss), **RMSPROP)
    state, infos = after(method, data)
    assert infos[0]["dropped_clients"] == 1
    (found,) = jax.tree.leaves(state.local_optimizer)
    np.testing.assert_allclose(found, 0.1, rtol=1e-6)


@pytest.mark.thorough
def test_the_server_has_an_optimizer_of_its_own() -> None:
    data = toy.federation(server=4)
    server = Training((pull("server", lambda step: jnp.asarray(7.0)),), toy.in_order("all", 4, 1))
    client = pull("id", own_id)
    with_server, _ = after(method_of(data, client, server=server, **RMSPROP), data)
    without, _ = after(method_of(data, client, **RMSPROP), data)
    chex.assert_trees_all_equal(with_server.local_optimizer, without.local_optimizer)


def test_one_way_to_keep_the_state_at_a_time() -> None:
    data = toy.federation()
    with pytest.raises(ValueError, match=r"average_state.*use one of them"):
        method_of(data, pull("id", own_id), keep_optimizer=True, **RMSPROP)
    with pytest.raises(ValueError, match="clients that train alone have no mean"):
        method_of(data, pull("id", own_id), federated_optimizer=federated.local(), **RMSPROP)
