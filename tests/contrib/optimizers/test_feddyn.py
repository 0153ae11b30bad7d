"""FedDyn on quadratics whose local minima are known."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated
from fedjax_ssl.contrib.optimizers.feddyn import feddyn
from tests import toy

ALPHA = 0.1
MINIMA = (0.0, 2.0)  # f_k = (w - a_k)^2 / 2


def context_of(ids: tuple[int, ...]) -> federated.RoundContext:
    context = toy.context(len(MINIMA))
    both = context.all_clients._replace(num_examples=jnp.array([3, 3]))
    mine = jax.tree.map(lambda x: x[jnp.array(ids)], both)
    return context._replace(all_clients=both, clients=mine)


def one_round(optimizer, model, state, kept, ids):
    """A round in which these clients train, each to its exact local minimum."""
    own = jax.tree.map(lambda table: table[jnp.array(ids)], kept)
    received = optimizer.send(state, own, context_of(ids))
    parts = []
    for place, client in enumerate(ids):
        mine = jax.tree.map(lambda x, at=place: x[at], received)
        h = mine.own["model"]
        trained = (MINIMA[client] - mine.strength * (h - model["model"])) / (1 + mine.strength)
        params = {"model": trained}
        slope = {"model": trained - MINIMA[client]}
        left = optimizer.correct(slope, params, model, mine)
        np.testing.assert_allclose(left["model"], 0.0, atol=1e-12)
        weights = {"model": jnp.asarray(1.0 + client)}  # which do not matter
        part, (new,) = toy.added_up(
            optimizer,
            toy.local(model, params, weights, jnp.int32(1), jnp.asarray(1.0), mine, {"model": h}),
        )
        kept = jax.tree.map(lambda table, new, c=client: table.at[c].set(new), kept, new)
        parts.append(part)
    summed = jax.tree.map(lambda *x: sum(x), *parts)
    model, state = optimizer.apply(state, model, summed, context_of(ids))
    return model, state, kept, [part.update["model"] for part in parts]


def test_two_rounds_on_quadratics(float64) -> None:
    optimizer = feddyn(ALPHA)
    model = {"model": jnp.asarray(1.5)}
    kept = {"model": jnp.zeros(2)}
    state = optimizer.init(model)
    model, state, kept, moved = one_round(optimizer, model, state, kept, (0, 1))
    np.testing.assert_allclose(1.5 + np.array(moved), [0.1363636364, 1.9545454545], atol=1e-9)
    np.testing.assert_allclose(kept["model"], [-1.3636363636, 0.4545454545], atol=1e-9)
    np.testing.assert_allclose(model["model"], 0.5909090909, atol=1e-9)
    before = model["model"]
    model, state, kept, moved = one_round(optimizer, model, state, kept, (0,))
    np.testing.assert_allclose(before + moved[0], 0.1776859504, atol=1e-9)
    np.testing.assert_allclose(kept["model"][0], -1.7768595041, atol=1e-9)
    np.testing.assert_allclose(model["model"], -0.4834710744, atol=1e-9)


def test_a_large_client_is_held_less(float64) -> None:
    """Alpha over its share of the examples times C, of which a client without examples is none."""
    context = toy.context(3)
    sizes = context.clients._replace(num_examples=jnp.array([1, 3, 0]))
    context = context._replace(clients=sizes, all_clients=sizes)
    kept = {"model": jnp.zeros((3, 4))}
    received = feddyn(0.3).send({"model": jnp.zeros(4)}, kept, context)
    np.testing.assert_allclose(received.strength[:2], [0.6, 0.2])


def test_nobody_changes_nothing() -> None:
    optimizer = feddyn(ALPHA)
    model = {"model": jnp.asarray(1.5)}
    nobody = toy.total({"model": jnp.zeros(())}, {"model": jnp.zeros(())})
    state = {"model": jnp.asarray(0.5)}
    after = optimizer.apply(state, model, nobody, context_of((0,)))
    chex.assert_trees_all_equal(after, (model, state))


def test_a_strength_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="alpha is 0"):
        feddyn(0.0)
