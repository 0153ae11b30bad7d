"""FedSiam's teacher from round to round, who takes part, and which network predicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from fedjax_ssl import methods
from tests import toy

KEY = jax.random.key(3)
RATE = 0.05


def one_client():
    """Four labelled and four unlabelled examples: one batch holds them all, whatever their
    order.
    """
    return toy.federation(sizes=(8,), labelled=(4,))


def method_for(data, **options):
    run = toy.setup(data, model=toy.linear_model(aux_head=True), learning_rate=RATE, local_epochs=3)
    return methods.build("fedsiam", run, **options)


@pytest.mark.thorough
def test_the_teacher_starts_from_the_student_of_the_first_stage() -> None:
    data = one_client()
    method = method_for(data, warmup_rounds=1)
    one_round = jax.jit(method.round)
    after_labels, _ = one_round(KEY, method.init(KEY, data), data)
    state, _ = one_round(KEY, after_labels, data)
    # With decay 1 - 1/(t+1) the teacher is the mean of its start and the students of the steps.
    start = after_labels.params["model"]["b"]
    end = state.params["model"]["b"]
    teacher = state.terms["mean_teacher"].params["b"]
    assert float(jnp.abs(teacher - start).max()) <= float(jnp.abs(end - start).max()) + 1e-6
    assert float(state.terms["mean_teacher"].step) == 3.0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("predict_with", "warmup_rounds", "network"),
    # before its first step
    [("student", 0, "student"), ("teacher", 0, "teacher"), ("teacher", 2, "student")],
)
def test_predictions_come_from_the_chosen_network(
    predict_with: str, warmup_rounds: int, network: str
) -> None:
    data = one_client()
    method = method_for(data, predict_with=predict_with, warmup_rounds=warmup_rounds)
    state, _ = toy.train(method, KEY, data, 2)
    params = state.params["model"] if network == "student" else state.terms["mean_teacher"].params
    expected = scipy.special.log_softmax(
        np.asarray(data.inputs) @ np.asarray(params["w"]) + params["b"], axis=1
    )
    np.testing.assert_allclose(
        jax.jit(method.predict)(state, data.inputs), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.thorough
def test_bytes_count_student_and_teacher() -> None:
    data = one_client()
    _, infos = toy.train(method_for(data), KEY, data, 1)
    numbers = 2 * (toy.NUM_FEATURES * toy.NUM_CLASSES + toy.NUM_CLASSES)
    # The teacher's steps travel, too.
    assert infos[0]["bytes_up"] == infos[0]["bytes_down"] == 4 * (2 * numbers + 1)


@pytest.mark.thorough
@pytest.mark.parametrize(("unlabelled_clients", "clients"), [(False, 5), (True, 6)])
def test_clients_without_labels_take_part_if_they_may(
    unlabelled_clients: bool, clients: int
) -> None:
    data = toy.federation()
    _, infos = toy.train(method_for(data, unlabelled_clients=unlabelled_clients), KEY, data, 1)
    assert infos[0]["clients"] == clients
