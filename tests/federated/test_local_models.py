"""Accuracy of the models of a cohort's clients: metrics "local"."""

import jax
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.federated import evaluate
from tests import toy

KEY = jax.random.key(3)
DATA = toy.federation()


@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedmatch", marks=pytest.mark.thorough)])
def test_one_client_alone_is_the_next_global_model_and_training_stays_as_it_is(method) -> None:
    data = toy.only(DATA, 0)
    options = {"lr_schedule": "none", "l2_weight": 0.1} if method == "fedmatch" else {}
    plain = methods.build(method, toy.setup(data), **options)
    told = methods.build(method, toy.setup(data)._replace(local_scores=True), **options)
    state = plain.init(KEY, data)
    after, _ = jax.jit(plain.round)(KEY, state, data)
    found, info = jax.jit(told.round)(KEY, told.init(KEY, data), data)
    jax.tree.map(np.testing.assert_array_equal, found.params, after.params)
    assert float(info["local_test_accuracy"]) == float(
        evaluate(plain, after, data)["test_accuracy"]
    )
    rows, labels = (
        np.asarray(table)[0, : toy.LABELLED[0]] for table in (data.index, data.observed_by_clients)
    )
    for name, model in (("received_labelled_accuracy", state), ("local_labelled_accuracy", after)):
        predicted = np.asarray(plain.predict(model, data.inputs[rows])).argmax(1)
        assert float(info[name]) == pytest.approx((predicted == labels).mean())


def test_predictions_that_are_not_the_networks_scores_are_refused() -> None:
    setup = toy.setup(DATA)._replace(local_scores=True)
    with pytest.raises(ValueError, match="names 'local'"):
        methods.build("protofssl", setup)
