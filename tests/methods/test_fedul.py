"""FedUL: limits, invariances, and clients that tell nothing."""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

from fedjax_ssl import methods
from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated import Method
from tests import toy

KEY = jax.random.key(3)
UNLABELLED = (0,) * 6


def all_weak(from_sets: bool) -> FederatedData:
    """Every training example has its class as its weak label: in a pure set, or as a coarse label."""
    data = toy.federation(labelled=UNLABELLED)
    real = jnp.arange(data.max_examples) < data.num_examples[:, None]
    prior = jnp.asarray([0.5, 0.3, 0.2])
    clients = data.num_clients
    weak = WeakLabels(
        labels=jnp.where(real, data.labels[data.index], -1),
        num_examples=data.num_examples,
        num_observations=jnp.full(clients, 3, jnp.int32),
        from_sets=jnp.full(clients, from_sets),
        matrix=jnp.broadcast_to(jnp.eye(3), (clients, 3, 3)),
        share=jnp.broadcast_to(prior if from_sets else jnp.ones(3), (clients, 3)),
        prior=prior,
    )
    return dataclasses.replace(data, weak=weak)


def sets(labelled: tuple[int, ...] = UNLABELLED) -> FederatedData:
    return toy.weak_federation("sets", labelled=labelled)


def with_weak(data: FederatedData, **changes: Any) -> FederatedData:
    return dataclasses.replace(data, weak=dataclasses.replace(data.weak, **changes))


def fedul(data: FederatedData, changes: dict[str, Any] | None = None, **options: Any) -> Method:
    return methods.build("fedul", toy.setup(data, **(changes or {})), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("from_sets", [True, False])
def test_pure_sets_in_the_shares_of_the_test_and_identical_coarse_labels_are_federated_averaging(
    from_sets: bool,
) -> None:
    """Check 8: the same keys, the same bits."""
    labelled = toy.federation(labelled=toy.SIZES)
    expected, expected_infos = toy.train(methods.build("fedavg", toy.setup(labelled)), KEY, labelled, 3)
    data = all_weak(from_sets)
    state, infos = toy.train(fedul(data), KEY, data, 3)
    chex.assert_trees_all_equal(state.params, expected.params)
    assert [info["loss"] for info in infos] == [info["loss"] for info in expected_infos]


@pytest.mark.thorough
def test_on_class_labels_alone_it_is_federated_averaging() -> None:
    data = toy.federation()
    expected, _ = toy.train(methods.build("fedavg", toy.setup(data)), KEY, data, 2)
    state, _ = toy.train(fedul(data), KEY, data, 2)
    chex.assert_trees_all_equal(state.params, expected.params)
    assert "fedul is FedAvg" in fedul(data).check(data)[0] and fedul(sets()).check(sets()) == []


@pytest.mark.thorough
def test_a_client_with_one_set_or_equal_sets_takes_no_part() -> None:
    """Section 13: its loss is constant, so that training would only add noise."""
    data = sets()
    weak, uniform = data.weak, jnp.full(3, 1 / 3)
    shares = jnp.asarray([1.0, 0.0, 0.0])
    one_set = with_weak(
        data,
        labels=weak.labels.at[2].set(jnp.where(weak.labels[2] >= 0, 0, -1)),
        matrix=weak.matrix.at[2].set(shares[:, None] * uniform),
        share=weak.share.at[2].set(shares),
    )
    equal_sets = with_weak(data, matrix=weak.matrix.at[2].set(uniform))
    round_function = jax.jit(fedul(data, l1=0.01).round)
    start = fedul(data, l1=0.01).init(KEY, data)
    absent, expected = toy.run(round_function, KEY, start, toy.without(data, 2), 2)
    for changed in (one_set, equal_sets):
        state, infos = toy.run(round_function, KEY, start, changed, 2)
        chex.assert_trees_all_equal(state.params, absent.params)
        assert [info["local_steps"] for info in infos] == [info["local_steps"] for info in expected]
    together, _ = toy.run(round_function, KEY, start, data, 2)
    assert float(optax.tree.norm(optax.tree.sub(together.params, absent.params))) > 1e-3


@pytest.mark.thorough
def test_the_last_partial_batch_and_the_test_prior_can_be_left_out() -> None:
    data = sets()
    method = fedul(data, {"local_epochs": 1}, drop_last=True, use_test_prior=False)
    one_round, start = jax.jit(method.round), jax.jit(method.init)(KEY, data)
    state, infos = toy.run(one_round, KEY, start, data, 1)
    assert infos[0]["local_steps"] == sum(size // 4 for size in toy.SIZES)
    assert infos[0]["examples"] == 4 * infos[0]["local_steps"]
    other, _ = toy.run(one_round, KEY, start, with_weak(data, prior=jnp.asarray([0.8, 0.1, 0.1])), 1)
    chex.assert_trees_all_equal(other.params, state.params)
