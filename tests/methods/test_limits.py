"""Limits of FedAvg+XCLP and its baselines (XCLP sections 5 and 9.3): what they become when a
part is taken away.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Recipe, ServerState, Stage, Term, Training, build, mixed_epochs
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    augmented_view,
    examples_mask,
    pseudo_label_term,
)
from fedjax_ssl.models import count_parameters
from fedjax_ssl.objectives import batch_cross_entropy
from tests import toy

KEY = jax.random.key(5)
GRAPH = {"num_bits": 128, "num_neighbors": 3}


def stage_of(run, term: Term, quota: str = "proportional") -> Stage:
    sampler = mixed_epochs(run.batch_size, run.local_epochs, run.max_labelled, run.max_unlabelled)
    return Stage(Training((term,), sampler), labelled_quota=quota)


def given_labels(run, table) -> Term:
    """Targets from a table over all examples, -1 = none."""

    def prepare(state, context):
        labels = jnp.where(examples_mask(context.clients), table[context.clients.rows], -1)
        ones = (labels >= 0).astype(jnp.float32)
        return PseudoLabels(labels, ones, ones), state

    return pseudo_label_term(run, prepare)


@pytest.mark.thorough
def test_true_pseudo_labels_with_weight_one_are_supervised_averaging_on_the_same_batches() -> None:
    """XCLP section 9.3, item 6."""
    data = toy.federation()
    run = toy.setup(data, augment=toy.jitter)
    view = augmented_view(run, "mixed")

    def supervised(step):
        truth = data.labels[step.client.rows[step.streams["mixed"].position]]
        return batch_cross_entropy(
            step.outputs[view.name].logits, truth, step.streams["mixed"].mask
        ), step.local

    oracle = build(Recipe(run, (stage_of(run, Term("supervised", (view,), supervised)),)))
    semi = build(Recipe(run, (stage_of(run, given_labels(run, data.labels)),)))
    expected, expected_infos = toy.train(oracle, KEY, data, 3)
    state, infos = toy.train(semi, KEY, data, 3)
    chex.assert_trees_all_close(state.params, expected.params, rtol=1e-6, atol=1e-7)
    assert [info["loss"] for info in infos] == pytest.approx(
        [info["loss"] for info in expected_infos], rel=1e-6
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["xclp", pytest.param("per_client_lp", marks=pytest.mark.thorough)]
)
def test_without_propagation_only_labels_are_left(name: str) -> None:
    """alpha = 0: the influence matrix is the identity, unlabelled rows are invalid."""
    data = toy.federation()
    run = toy.setup(data)
    options = {**GRAPH, "alpha": 0.0, "class_weighting": "none"}
    if name == "per_client_lp":
        options["unlabelled_clients"] = True
    state, infos = toy.train(methods.build(name, run, **options), KEY, data, 2)
    labels_only = build(Recipe(run, (stage_of(run, given_labels(run, data.observed)),)))
    expected, _ = toy.train(labels_only, KEY, data, 2)
    chex.assert_trees_all_close(state.params, expected.params, rtol=1e-6, atol=1e-7)
    assert [info["pseudo_label_coverage"] for info in infos] == [0.0, 0.0]
    assert np.isnan(infos[0]["pseudo_label_accuracy"])


class Pair(NamedTuple):
    """Both kinds of label propagation on raw inputs of two clients, the second without labels."""

    data: FederatedData
    start: ServerState
    across: Callable[..., Any]
    alone: Callable[..., Any]


@pytest.fixture(scope="module")
def pair() -> Pair:
    data = toy.federation(sizes=(15, 12), labelled=(6, 0), noise=0.05)
    run = toy.setup(data)
    options = {"num_bits": 1024, "num_neighbors": 3, "graph_features": "inputs"}
    across = methods.build("xclp", run, **options)
    alone = methods.build(
        "per_client_lp", run, similarity="lsh", unlabelled_clients=True, **options
    )
    return Pair(data, across.init(KEY, data), jax.jit(across.round), jax.jit(alone.round))


@pytest.mark.thorough
def test_labels_reach_a_client_without_any_only_over_a_common_graph(pair: Pair) -> None:
    _, across = pair.across(KEY, pair.start, pair.data)
    _, alone = pair.alone(KEY, pair.start, pair.data)
    assert float(across["pseudo_label_coverage"]) == float(across["pseudo_label_accuracy"]) == 1.0
    assert float(alone["pseudo_label_coverage"]) == pytest.approx(9 / 21)


@pytest.mark.thorough
def test_bytes_are_those_of_the_model_and_of_codes_and_scores(pair: Pair) -> None:
    _, across = pair.across(KEY, pair.start, pair.data)
    _, alone = pair.alone(KEY, pair.start, pair.data)
    both_models = 2 * 4 * count_parameters(pair.start.params)
    assert int(alone["bytes_up"]) == int(alone["bytes_down"]) == both_models
    assert int(across["bytes_up"]) == both_models + 27 * 1024 // 8
    assert int(across["bytes_down"]) == both_models + 27 * toy.NUM_CLASSES * 4
