"""fedtrans: the loss on coarse labels against NumPy, who takes part, refusals."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Setup
from fedjax_ssl.methods.parts.second_head import coarse_cross_entropy, coarse_epochs
from tests import toy

KEY = jax.random.key(4)
# Momentum and weight decay would move what merely has no gradient.
LOCAL = federated.local_optimizer("sgd", momentum=0.5, weight_decay=0.01)
WITHOUT_CLASS_LABELS = (0,) * len(toy.SIZES)


def run_of(data: FederatedData, **changes) -> Setup:
    options = {
        "model_options": {"aux_head": True, "norm": "bn"},
        "local_optimizer": LOCAL,
        **changes,
    }
    return toy.setup(data, learning_rate=0.2, **options)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return toy.weak_federation("coarse", labelled=WITHOUT_CLASS_LABELS)


@pytest.mark.thorough
def test_clients_with_sets_or_class_labels_alone_take_no_part(data):
    method = methods.build("fedtrans", run_of(data), coarse_rounds=1)
    size = toy.SIZES[1]
    weak = dataclasses.replace(
        data.weak,
        from_sets=data.weak.from_sets.at[0].set(True),
        num_examples=data.weak.num_examples.at[1].set(0),
        labels=data.weak.labels.at[1].set(-1),
    )
    rows = data.index[1, :size]
    others = dataclasses.replace(
        data,
        weak=weak,
        num_labelled=data.num_labelled.at[1].set(size),
        observed=data.observed.at[rows].set(data.labels[rows]),
    )
    one_round = jax.jit(method.round)
    start = jax.jit(method.init)(KEY, data)
    state, info = one_round(KEY, start, others)
    absent, expected = one_round(KEY, start, toy.without(data, 0, 1))
    assert info["clients"] == expected["clients"] == 4
    chex.assert_trees_all_equal(state.params, absent.params)


def test_the_loss_on_coarse_labels_against_numpy():
    """Three coarse labels and five outputs, of which the unused are the largest; a row of
    padding.
    """
    logits = np.random.default_rng(0).normal(size=(5, 5), scale=3.0).astype(np.float32)
    logits[:, 3:] += 60.0
    labels = np.array([0, 2, 1, 2, 0], np.int32)
    mask = np.array([True, True, True, True, False])
    loss = jax.jit(jax.value_and_grad(coarse_cross_entropy))
    value, gradient = loss(
        jnp.asarray(logits), jnp.asarray(labels), jnp.asarray(3), jnp.asarray(mask)
    )
    shown = logits[:4, :3].astype(np.float64)
    probabilities = np.exp(shown) / np.exp(shown).sum(axis=1, keepdims=True)
    losses = -np.log(probabilities[np.arange(4), labels[:4]])
    np.testing.assert_allclose(value, losses.mean(), rtol=1e-6)
    expected = np.zeros((5, 5))
    expected[:4, :3] = (probabilities - np.eye(3)[labels[:4]]) / 4
    np.testing.assert_allclose(gradient, expected, atol=1e-7)
    np.testing.assert_array_equal(gradient[:, 3:], 0.0)
    nothing, gradient = loss(
        jnp.asarray(logits), jnp.full(5, -1, jnp.int32), jnp.asarray(0), jnp.asarray(mask)
    )
    assert nothing == 0.0 and np.all(np.asarray(gradient) == 0.0), "a client without coarse labels"


def test_epochs_go_over_the_examples_between_class_labels_and_nothing():
    data = toy.weak_federation("coarse", labelled=(4, 0, 0, 0, 0, 0))
    everyone = federated.all_clients(data)
    fewer = dataclasses.replace(everyone.weak, num_examples=everyone.weak.num_examples.at[0].set(5))
    client = jax.tree.map(lambda table: table[0], everyone._replace(weak=fewer))
    schedule = jax.jit(coarse_epochs(2, 3, data.max_known).schedule)(KEY, client, toy.NOW)
    positions = np.asarray(schedule.positions["coarse"])
    mask = np.asarray(schedule.masks["coarse"])
    assert int(schedule.num_steps) == 9
    for epoch in range(3):
        steps = slice(3 * epoch, 3 * epoch + 3)
        np.testing.assert_array_equal(np.sort(positions[steps][mask[steps]]), np.arange(4, 9))
    assert not mask[9:].any()


def test_a_network_without_a_second_head_says_which_field_to_set(data):
    with pytest.raises(
        ValueError, match=r"set config\.model\.aux_head = True; .* are dense1, head, without"
    ):
        methods.build("fedtrans", toy.setup(data))


@pytest.mark.parametrize(
    ("federation", "message"),
    [
        (toy.weak_federation("server"), "needs clients with coarse labels"),
        (toy.weak_federation("coarse", server=0), "needs class labels at the server"),
        (
            toy.padded(toy.padded(toy.weak_federation("coarse"))),
            "up to 4 coarse labels or sets, but the second head of fedtrans has only 3 outputs",
        ),
    ],
)
def test_a_federation_that_it_cannot_learn_from_is_refused_before_training(federation, message):
    method = methods.build("fedtrans", run_of(federation, model_options={"aux_head": True}))
    start = jax.eval_shape(method.init, KEY, federation)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(method.round, KEY, start, federation)
