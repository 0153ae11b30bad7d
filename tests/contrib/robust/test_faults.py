"""Clients that are wrong or lie."""

import chex
import jax
import numpy as np

from fedjax_ssl.contrib.robust.faults import faulty_clients, flip_labels
from tests import toy

KEY = jax.random.key(8)


def test_faulty_clients_are_those_of_the_run_and_their_labels_are_flipped() -> None:
    data = toy.federation()
    wrong = np.asarray(faulty_clients(KEY, 6, 0.5))
    assert wrong.sum() == 3
    flipped = flip_labels(0.5, 1.0).in_federation(data, KEY)
    before, after = np.asarray(data.observed), np.asarray(flipped.observed)
    for client in range(6):
        rows = np.asarray(data.index)[client, : toy.LABELLED[client]]
        expected = toy.NUM_CLASSES - 1 - before[rows] if wrong[client] else before[rows]
        np.testing.assert_array_equal(after[rows], expected)
    assert ((after == -1) == (before == -1)).all()
    chex.assert_trees_all_equal(data.labels, flipped.labels)
    names = [f"writer {number}" for number in range(6)]
    said = flip_labels(0.5, 1.0).in_words(KEY, names)
    first = names[int(np.argmax(wrong))]
    assert said.startswith("faults: 3 of 6 clients see class K - 1 - y") and first in said
