"""Pseudo-labels made before local training: which hash a round of XCLP uses, which labels FedSem keeps."""

import jax
import numpy as np
import pytest

from fedjax_ssl import methods
from tests import toy

DATA, KEY = toy.federation(noise=1.0), jax.random.key(2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fixed", "warmup_rounds"),
    [(True, 0), (True, 1), (False, 0)],
)
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
