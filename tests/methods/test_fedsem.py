import jax
import numpy as np
import pytest

from fedjax_ssl import methods
from tests import toy

KEY = jax.random.key(2)


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
