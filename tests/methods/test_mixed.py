"""Mixed supervision: several kinds of clients in one objective."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated import ServerState
from fedjax_ssl.methods.mixed import observation_likelihood
from fedjax_ssl.methods.parts.channel_terms import check_channels, learns
from tests import toy

KEY = jax.random.key(1)


def four_kinds() -> FederatedData:
    """Clients 0 and 5 have some class labels and nothing else, 1 and 2 coarse labels, 3 and 4
    sets.
    """
    labels = (4, 0, 0, 0, 0, 2)
    coarse, sets = (toy.federation(weak=kind, labelled=labels) for kind in ("coarse", "sets"))
    with_sets = jnp.asarray([False, False, False, True, True, False])
    observations = coarse.weak.matrix.shape[1], sets.weak.matrix.shape[1]
    most = max(observations)

    def both(a: jax.Array, b: jax.Array) -> jax.Array:
        if a.ndim > 1 and a.shape[1] in observations and b.shape[1] != a.shape[1]:
            a = jnp.pad(a, ((0, 0), (0, most - a.shape[1]), *[(0, 0)] * (a.ndim - 2)))
        return jnp.where(with_sets.reshape(-1, *[1] * (a.ndim - 1)), b, a)

    fields = {
        name: both(getattr(coarse.weak, name), getattr(sets.weak, name))
        for name in ("labels", "num_examples", "num_observations", "from_sets", "matrix", "share")
    }
    weak = WeakLabels(**fields, prior=sets.weak.prior)
    nothing = jnp.asarray([5, 0])
    weak = dataclasses.replace(
        weak,
        labels=weak.labels.at[nothing].set(-1),
        num_examples=weak.num_examples.at[nothing].set(0),
    )
    return dataclasses.replace(coarse, weak=weak)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return four_kinds()


@pytest.fixture(scope="module")
def start(data: FederatedData) -> ServerState:
    """Of both terms, and so of one of them: none has a state."""
    return jax.jit(methods.build("mixed", toy.setup(data)).init)(KEY, data)


@pytest.fixture(scope="module")
def train(data: FederatedData, start: ServerState) -> Callable[..., Any]:
    """Rounds with both terms, from one program for all federations of this shape."""
    method = methods.build("mixed", toy.setup(data), num_bits=256, num_neighbors=3)
    return partial(toy.run, jax.jit(method.round), KEY, start)


@pytest.mark.thorough
def test_all_kinds_take_part_and_the_federation_is_learned(
    data: FederatedData, train: Callable[..., Any]
) -> None:
    assert data.kinds() == ("labels", "coarse", "sets")
    state, infos = train(data, 4)
    method = methods.build("fedavg", toy.setup(data))
    assert federated.evaluate(method, state, data)["test_accuracy"] > 0.8, "chance is 1/3"
    assert infos[-1]["dropped_clients"] == 0
    assert infos[-1]["pseudo_label_coverage"] > 0.9


@pytest.mark.thorough
def test_without_the_graph_the_pseudo_labels_cost_and_send_nothing(
    data: FederatedData, train: Callable[..., Any], start: ServerState
) -> None:
    (_, (with_graph,)) = train(data, 1)
    method = methods.build("mixed", toy.setup(data), pseudo_label_weight=0.0)
    (_, (without,)) = toy.run(jax.jit(method.round), KEY, start, data, 1)
    assert "pseudo_label_accuracy" in with_graph and "pseudo_label_accuracy" not in without
    assert with_graph["bytes_up"] > without["bytes_up"]


@pytest.mark.thorough
def test_pseudo_labels_never_contradict_a_coarse_label(
    data: FederatedData, train: Callable[..., Any]
) -> None:
    """Coarse label 1 is class 1 alone and coarse label 0 never class 1, whatever the graph of
    noise says.
    """
    noise = jnp.asarray(np.random.default_rng(0).normal(size=data.inputs.shape), data.inputs.dtype)
    known = ~data.weak.from_sets[:, None] & (data.weak.labels >= 0)

    def share_of_class_1(matrix: jax.Array, coarse: int) -> float:
        """Among the pseudo-labels of the examples with this coarse label: a hidden truth of
        class 1, others unknown.
        """
        asked = data.index[known & (data.weak.labels == coarse)]
        truth = jnp.full_like(data.labels, -1).at[asked].set(1)
        weak = dataclasses.replace(data.weak, matrix=matrix)
        _, infos = train(dataclasses.replace(data, inputs=noise, labels=truth, weak=weak), 1)
        return infos[0]["pseudo_label_accuracy"]

    assert share_of_class_1(data.weak.matrix, 1) == 1 and share_of_class_1(data.weak.matrix, 0) == 0
    silent = jnp.where(data.weak.from_sets[:, None, None], data.weak.matrix, 0.5)
    assert share_of_class_1(silent, 1) < 0.9 and share_of_class_1(silent, 0) > 0.1


def test_likelihoods_are_the_rows_of_the_channels(data: FederatedData) -> None:
    clients = federated.Client(
        jnp.arange(6),
        data.index,
        data.observed[data.index],
        data.num_labelled,
        data.num_examples,
        {},
        (),
        weak=dataclasses.replace(
            data.weak, prior=jnp.broadcast_to(data.weak.prior, (6, toy.NUM_CLASSES))
        ),
    )
    likelihood = np.asarray(
        jax.jit(observation_likelihood, static_argnums=1)(clients, toy.NUM_CLASSES)
    )
    coarse = int(data.weak.labels[1, 4])
    np.testing.assert_array_equal(likelihood[1, 4], toy.COARSE[coarse])
    seen = int(data.weak.labels[4, 9]) if int(data.weak.num_examples[4]) else -1
    row = np.asarray(data.weak.matrix[4, seen]) / np.asarray(data.weak.prior)
    np.testing.assert_allclose(likelihood[4, 9], row / row.max() if seen >= 0 else 1.0, atol=1e-6)
    np.testing.assert_array_equal(likelihood[5], 1.0)
    # Client 3 has a single example, so that only one of its sets has any.
    np.testing.assert_array_equal(jax.jit(learns)(clients), [True, True, True, False, True, True])


def test_what_the_weak_labels_leave_open_is_said_before_training(data: FederatedData) -> None:
    assert not any("as a whole" in text for text in check_channels(data)), "there are class labels"
    blind = dataclasses.replace(data, num_labelled=jnp.zeros_like(data.num_labelled))
    coarse_only = dataclasses.replace(
        blind,
        weak=dataclasses.replace(blind.weak, num_examples=blind.weak.num_examples.at[3:].set(0)),
    )
    assert "does not identify the class posterior: 1 of 2" in check_channels(coarse_only)[-1]


@pytest.mark.parametrize(
    ("kind", "field", "edit", "message"),
    [
        ("sets", "matrix", lambda m: m.at[4, 0].mul(1.5), "Row 0 of set_priors.*client 4.* 1.5"),
        ("coarse", "matrix", lambda m: m.at[1, :, 0].set(0.0), "Column 0 .*client 1.* is all 0"),
        ("coarse", "labels", lambda y: y.at[1, 5].set(7), "Observed label 7"),
        ("sets", "prior", lambda p: jnp.asarray([0.5, 0.5, 0]), "test_prior is 0 for class 2"),
        (
            *("sets", "matrix", lambda m: 0 * m + jnp.asarray([0.5, 0.3, 0.2])),
            "no client's observations tell anything about the class",
        ),
    ],
)
def test_weak_labels_that_cannot_be_are_refused(kind, field, edit, message: str) -> None:
    data = toy.federation(weak=kind, labelled=(0,) * 6)
    broken = dataclasses.replace(data.weak, **{field: edit(getattr(data.weak, field))})
    with pytest.raises(ValueError, match=message):
        check_channels(dataclasses.replace(data, weak=broken))
