"""`alone` and `pooled`: FedAvg without a federation."""

import jax
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import data
from fedjax_ssl.config import ConfigNote
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.runs.shared import Shared
from tests import toy

KEY = jax.random.key(0)


def drawn(**fields):
    digits = fs.load_dataset("digits")
    options = {"supervision_options": {"labels": 5}, **fields}
    return digits, fs.federate(KEY, digits, **options)


def test_pooled_data_are_all_examples_of_clients_and_server_with_the_labels_that_are_seen():
    digits, apart = drawn(supervision="all", supervision_options={"server_labels": 50})
    one = data.pooled(apart, tested=False)
    everything = np.concatenate(
        [
            real_rows(apart.index, apart.num_examples),
            real_rows(apart.server_index, apart.num_server),
        ]
    )
    rows = real_rows(one.index, one.num_examples)
    assert sorted(rows) == sorted(everything) and one.num_clients == 1
    assert int(one.num_labelled[0]) == len(rows) and int(one.num_server) == 0
    _, few = drawn()
    one = data.pooled(few, tested=False)
    labelled = np.asarray(one.observed_by_clients)
    assert (labelled >= 0).sum() == few.summary()["labelled_examples"] == 70
    assert (labelled[0, :70] >= 0).all()
    assert data.client_names(digits, one) == ["pooled"]


def test_test_examples_stay_those_of_their_clients():
    digits, apart = drawn(client_test_fraction=0.2)
    one = data.pooled(apart, tested=True)
    names = data.client_names(digits, one)
    before = data.client_names(digits, apart)
    owner = np.asarray(apart.test_client)
    assert [names[own] for own in np.asarray(one.test_client)] == [before[own] for own in owner]
    digits, apart = drawn(test_clients=3)
    one = data.pooled(apart, tested=False)
    assert data.client_names(digits, one)[1:] == data.client_names(digits, apart)[11:]
    np.testing.assert_array_equal(one.test_index, apart.test_index)


def test_a_word_brings_the_data_to_one_place():
    config = fs.load_config("digits:pooled", {"federated.cohort_size": 5})
    built = Shared().build(fs.config.resolve(config))
    assert built.federation.num_clients == 1
    assert built.federation.summary()["labelled_examples"] == 55
    method = fs.methods.build("pooled", toy.setup(toy.federation()))
    with pytest.raises(ValueError, match=r"in one place, but there are \d clients"):
        method.recipe.check(toy.federation())
    assert fs.methods.build("alone", toy.setup(toy.federation())).recipe.alone
    proximal = fs.load_config("digits:alone", {"federated.name": "fedprox"})
    with pytest.warns(ConfigNote, match="federated.name=fedprox has no effect"):
        fs.config.resolve(proximal)
