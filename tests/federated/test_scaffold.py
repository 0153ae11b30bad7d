"""SCAFFOLD against a plain loop in NumPy, its limits, and its state on several devices."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated
from fedjax_ssl.federated import Recipe, Stage, Training, build, sample_cohort
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.methods.parts.two_stages import labelled_stage
from fedjax_ssl.models import count_parameters
from tests import toy

KEY = jax.random.key(6)
RATE = 0.2
SERVER_RATE = 0.7
STEPS = 3
BATCH = 4
COHORT = 3


def method_of(data, optimizer, **changes):
    """Labels-only training with batches of 4 in random order; clients take different numbers of
    steps.
    """
    setup = toy.setup(data, model=toy.linear_model(), federated_optimizer=optimizer, **changes)
    return build(Recipe(setup, (labelled_stage(setup, None),)))


def in_order_method(data, optimizer, **changes):
    setup = toy.setup(
        data,
        model=toy.linear_model(),
        federated_optimizer=optimizer,
        learning_rate=RATE,
        cohort_size=COHORT,
        **changes,
    )
    stage = Stage(
        Training((supervised_term(setup),), toy.in_order("labelled", BATCH, STEPS)),
        labelled_quota="any",
    )
    return build(Recipe(setup, (stage,)))


def cohort(data, number: int) -> list[int]:
    key = named_key(jax.random.fold_in(named_key(KEY, "round"), number), "cohort")
    return np.asarray(
        sample_cohort(key, data.num_labelled, data.num_examples, COHORT, "any").ids
    ).tolist()


def gradient(weights, inputs, labels):
    scores = inputs @ weights["w"] + weights["b"]
    probs = np.exp(scores - scores.max(1, keepdims=True))
    wrong = probs / probs.sum(1, keepdims=True) - np.eye(toy.NUM_CLASSES)[np.maximum(labels, 0)]
    wrong *= (labels >= 0)[:, None] / len(labels)
    return {"w": inputs.T @ wrong, "b": wrong.sum(0)}


def test_three_rounds_of_some_clients_are_the_published_algorithm(float64) -> None:
    data = toy.federation()
    method = in_order_method(data, federated.scaffold(SERVER_RATE))
    start = jax.jit(method.init)(KEY, data)
    state, _ = toy.run(jax.jit(method.round), KEY, start, data, 3)

    inputs, observed, index = (
        np.asarray(array) for array in (data.inputs, data.observed, data.index)
    )
    weights = {name: np.asarray(value) for name, value in start.params["model"].items()}
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    server = dict(zeros)
    clients = [dict(zeros) for _ in toy.SIZES]
    rounds = [cohort(data, number) for number in range(3)]
    for members in rounds:
        changes = []
        moved = []
        for client in members:
            local = dict(weights)
            for step in range(STEPS):
                rows = index[client][(step * BATCH + np.arange(BATCH)) % toy.SIZES[client]]
                slope = gradient(local, inputs[rows], observed[rows])
                local = {
                    n: local[n] - RATE * (slope[n] - clients[client][n] + server[n]) for n in local
                }
            new = {
                n: clients[client][n] - server[n] + (weights[n] - local[n]) / (STEPS * RATE)
                for n in local
            }
            changes.append({n: local[n] - weights[n] for n in local})
            moved.append({n: new[n] - clients[client][n] for n in local})
            clients[client] = new
        weights = {
            n: weights[n] + SERVER_RATE * np.mean([change[n] for change in changes], 0)
            for n in weights
        }
        server = {
            n: server[n] + np.sum([change[n] for change in moved], 0) / len(clients)
            for n in weights
        }

    def flat(tree):
        return np.concatenate([tree["b"].ravel(), tree["w"].ravel()])

    for name in weights:
        np.testing.assert_allclose(
            state.params["model"][name], weights[name], rtol=1e-11, atol=1e-12
        )
    (held,) = state.clients.federated["model"]
    (of_server,) = state.optimizer["model"]
    np.testing.assert_allclose(of_server, flat(server), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(held, [flat(c) for c in clients], rtol=1e-10, atol=1e-12)
    never = set(range(len(clients))) - set().union(*rounds)
    assert 1 <= len(never) < len(clients), "some clients were drawn, some were not"
    np.testing.assert_array_equal(held[np.array(sorted(never))], 0)


@pytest.mark.thorough
def test_variates_held_at_zero_are_fedavg_bit_for_bit() -> None:
    data = toy.federation()
    scaffold = federated.scaffold()

    def forget(state, *rest):
        params, _ = scaffold.apply(state, *rest)
        return params, state

    expected, infos = toy.train(method_of(data, federated.fedavg()), KEY, data, 2)
    silent = scaffold._replace(
        apply=forget, report=lambda local: (scaffold.report(local)[0], local.kept)
    )
    held, _ = toy.train(method_of(data, silent), KEY, data, 2)
    chex.assert_trees_all_equal(held.params, expected.params)
    ours, costs = toy.train(method_of(data, scaffold), KEY, data, 2)
    assert not np.array_equal(ours.params["model"]["w"], expected.params["model"]["w"])
    # A variate as large as the model goes each way beside it.
    for way in ("bytes_up", "bytes_down"):
        assert [info[way] for info in costs] == [2 * info[way] for info in infos]
    assert infos[0]["bytes_up"] == 4 * count_parameters(expected.params) * infos[0]["clients"]


@pytest.mark.thorough
def test_clients_that_were_dropped_or_absent_keep_their_variates() -> None:
    data = toy.federation()
    method = method_of(data, federated.scaffold())
    one_round = jax.jit(method.round)
    state, _ = one_round(KEY, jax.jit(method.init)(KEY, data), data)
    before = np.asarray(state.clients.federated["model"][0])
    assert (np.abs(before[1]) > 0).any() and (np.abs(before[4]) > 0).any()
    broken, info = one_round(KEY, state, toy.with_broken_client(data, 1))
    assert info["dropped_clients"] == 1
    absent, _ = one_round(KEY, state, toy.without(data, 1))
    after = np.asarray(broken.clients.federated["model"][0])
    np.testing.assert_array_equal(after[1], before[1])
    assert not np.array_equal(after[4], before[4])
    chex.assert_trees_all_equal(
        (broken.optimizer, broken.clients), (absent.optimizer, absent.clients)
    )
    np.testing.assert_array_equal(before[2], 0)  # has no labels, so it never takes a step


def test_weighted_variates_are_the_means_by_the_models_weights(float64) -> None:
    """Worked by hand: weights 3 and 1, changes of 2 and -2 in one step at rate 0.5, so c_i = -4
    and 4, c = -2.
    """
    means = {}
    for weighted in (False, True):
        optimizer = federated.scaffold(1.0, weighted)
        anchor = {"model": jnp.zeros(1)}
        clients = [
            toy.local(
                anchor=anchor,
                params={"model": jnp.full(1, moved)},
                weights={"model": jnp.float64(weight)},
                num_steps=jnp.int32(1),
                learning_rate=jnp.float64(0.5),
                sent_by_optimizer=anchor,
                kept=anchor,
            )
            for weight, moved in ((3.0, 2.0), (1.0, -2.0), (0.0, 9.0))
        ]
        summed, kept = toy.added_up(optimizer, *clients)
        model, means[weighted] = optimizer.apply(
            optimizer.init(anchor), anchor, summed, toy.context(2)
        )
        np.testing.assert_allclose(model["model"], [1.0])
        np.testing.assert_allclose([own["model"][0] for own in kept], [-4.0, 4.0, 0.0])
    np.testing.assert_allclose(means[False]["model"], [0.0])
    np.testing.assert_allclose(means[True]["model"], [-2.0])
