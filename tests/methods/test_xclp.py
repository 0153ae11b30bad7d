"""FedAvg+XCLP and its baselines: which hash a round uses, which labels stay, and limits (XCLP sections 5 and 9.3)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import ServerState, Stage, Term, federated_method, mixed_epochs
from fedjax_ssl.federated.terms import PseudoLabels, augmented_view, examples_mask, pseudo_label_term
from fedjax_ssl.models import count_parameters
from fedjax_ssl.objectives import batch_cross_entropy
from tests import toy

DATA, KEY = toy.federation(noise=1.0), jax.random.key(2)


@pytest.mark.thorough
@pytest.mark.parametrize(("fixed", "warmup_rounds"), [(True, 0), (True, 1), (False, 0)])
def test_fixed_projections_stay_for_a_run_and_change_with_its_seed(fixed, warmup_rounds):
    """The network stands still and everybody takes part, so only the hash can change the confidences."""
    method = methods.build(
        "xclp",
        toy.setup(DATA, learning_rate=0.0),
        warmup_rounds=warmup_rounds,
        num_bits=32,
        num_neighbors=3,
        graph_features="inputs",
        fixed_projections=fixed,
    )
    step = jax.jit(method.round)
    start = method.init(jax.random.key(0), DATA)._replace(round=jax.numpy.int32(warmup_rounds))

    def confidences(seed):
        state, first = step(jax.random.key(seed), start, DATA)
        _, second = step(jax.random.key(seed), state, DATA)
        return [float(info["confidence_correct"]) for info in (first, second)]

    found = np.array([confidences(seed) for seed in (0, 1, 2)])
    assert len(set(found[:, 0])) == 3
    assert ((found[:, 0] == found[:, 1]) == fixed).all()


@pytest.mark.thorough
def test_pseudo_labels_are_made_once_for_everybody_and_then_frozen() -> None:
    data = toy.federation()
    run = toy.setup(data, cohort_size=3)  # most clients are absent when the labels are made
    method = methods.build("fedsem", run, warmup_rounds=2)
    one_round, state = jax.jit(method.round), jax.jit(method.init)(KEY, data)
    tables = []
    for number in range(5):
        if number == 2:
            predictions = np.asarray(method.predict(state, data.inputs)).argmax(1)
        state, _ = one_round(KEY, state, data)
        tables.append(jax.tree.map(np.asarray, state.terms["pseudo_labels"]))
    for table in tables[:2]:
        assert (table.labels == -1).all() and (table.weights == 0).all()
    for table in tables[3:]:
        np.testing.assert_array_equal(table.labels, tables[2].labels)
        np.testing.assert_array_equal(table.weights, tables[2].weights)
    for client, (size, seen) in enumerate(zip(toy.SIZES, toy.LABELLED, strict=True)):
        rows = np.asarray(data.index)[client, :size]
        expected = np.where(np.arange(size) < seen, np.asarray(data.labels)[rows], predictions[rows])
        np.testing.assert_array_equal(tables[2].labels[client, :size], expected)
        np.testing.assert_array_equal(tables[2].weights[client, :seen], 1.0)
        assert (tables[2].labels[client, size:] == -1).all()
        assert (tables[2].weights[client, seen:size] < 1.0).all()


# What they become when a part is taken away.


OTHER_KEY = jax.random.key(5)
GRAPH = {"num_bits": 128, "num_neighbors": 3}


def stage_of(run, term: Term, quota: str = "proportional") -> Stage:
    sampler = mixed_epochs(run.batch_size, run.local_epochs, run.max_labelled, run.max_unlabelled)
    return Stage((term,), sampler, labelled_quota=quota)


def given_labels(run, table) -> Term:
    """Targets from a table over all examples, -1 = none."""

    def prepare(state, round):
        labels = jnp.where(examples_mask(round.clients), table[round.clients.rows], -1)
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
        return batch_cross_entropy(step.outputs[view.name].logits, truth, step.streams["mixed"].mask), step.local

    oracle = federated_method(run, (stage_of(run, Term("supervised", (view,), supervised)),))
    semi = federated_method(run, (stage_of(run, given_labels(run, data.labels)),))
    expected, expected_infos = toy.train(oracle, OTHER_KEY, data, 3)
    state, infos = toy.train(semi, OTHER_KEY, data, 3)
    chex.assert_trees_all_close(state.params, expected.params, rtol=1e-6, atol=1e-7)
    assert [info["loss"] for info in infos] == pytest.approx([info["loss"] for info in expected_infos], rel=1e-6)


@pytest.mark.thorough
def test_without_propagation_only_labels_are_left() -> None:
    """alpha = 0: the influence matrix is the identity, unlabelled rows are invalid."""
    data = toy.federation()
    run = toy.setup(data)
    options = {**GRAPH, "alpha": 0.0, "class_weighting": "none"}
    state, infos = toy.train(methods.build("xclp", run, **options), OTHER_KEY, data, 2)
    labels_only = federated_method(run, (stage_of(run, given_labels(run, data.observed)),))
    expected, _ = toy.train(labels_only, OTHER_KEY, data, 2)
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
    alone = methods.build("per_client_lp", run, similarity="lsh", unlabelled_clients=True, **options)
    return Pair(data, across.init(OTHER_KEY, data), jax.jit(across.round), jax.jit(alone.round))


@pytest.mark.thorough
def test_a_cohort_of_one_client_is_label_propagation_on_its_own(pair: Pair) -> None:
    """XCLP section 9.3, item 6, p = 1: the same labels from another hash, with nearly the same confidence."""
    single = toy.only(pair.data, 0)
    _, across = pair.across(OTHER_KEY, pair.start, single)
    _, alone = pair.alone(OTHER_KEY, pair.start, single)
    for name in ("pseudo_label_accuracy", "pseudo_label_coverage"):
        assert float(across[name]) == float(alone[name]) == 1.0
    assert float(across["confidence_correct"]) == pytest.approx(float(alone["confidence_correct"]), abs=0.05)


@pytest.mark.thorough
def test_labels_reach_a_client_without_any_only_over_a_common_graph(pair: Pair) -> None:
    _, across = pair.across(OTHER_KEY, pair.start, pair.data)
    _, alone = pair.alone(OTHER_KEY, pair.start, pair.data)
    assert float(across["pseudo_label_coverage"]) == float(across["pseudo_label_accuracy"]) == 1.0
    assert float(alone["pseudo_label_coverage"]) == pytest.approx(9 / 21)


@pytest.mark.thorough
def test_bytes_are_those_of_the_model_and_of_codes_and_scores(pair: Pair) -> None:
    _, across = pair.across(OTHER_KEY, pair.start, pair.data)
    _, alone = pair.alone(OTHER_KEY, pair.start, pair.data)
    both_models = 2 * 4 * count_parameters(pair.start.params)
    assert int(alone["bytes_up"]) == int(alone["bytes_down"]) == both_models
    assert int(across["bytes_up"]) == both_models + 27 * 1024 // 8
    assert int(across["bytes_down"]) == both_models + 27 * toy.NUM_CLASSES * 4
