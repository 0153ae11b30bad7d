"""Pseudo-labels made before local training: XCLP's hash, cosines and lost clients, and which
labels FedSem keeps.
"""

import jax
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import participation
from tests import toy

DATA = toy.federation(noise=1.0)
KEY = jax.random.key(2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fixed", "warmup_rounds"),
    [(True, 0), (True, 1), (False, 0)],
)
def test_fixed_projections_stay_for_a_run_and_change_with_its_seed(fixed, warmup_rounds):
    """The network stands still and everybody takes part, so only the hash can change the
    confidences.
    """
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
    one_round = jax.jit(method.round)
    state = jax.jit(method.init)(KEY, data)
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
        expected = np.where(
            np.arange(size) < seen, np.asarray(data.labels)[rows], predictions[rows]
        )
        np.testing.assert_array_equal(tables[2].labels[client, :size], expected)
        np.testing.assert_array_equal(tables[2].weights[client, :seen], 1.0)
        assert (tables[2].labels[client, size:] == -1).all()
        assert (tables[2].weights[client, seen:size] < 1.0).all()


GRAPH = {"num_bits": 64, "num_neighbors": 3}


def losing(share: float, when: str):
    how = participation(lost=share, lost_when=when)
    return methods.build("xclp", toy.setup(DATA, participation=how), **GRAPH)


@pytest.mark.thorough
@pytest.mark.promise
@pytest.mark.parametrize("share", [0.4, pytest.param(0.6, marks=pytest.mark.thorough)])
def test_clients_lost_before_their_codes_are_compared_might_not_have_been_invited(share) -> None:
    method = losing(share, "start")
    whole = methods.build("xclp", toy.setup(DATA), **GRAPH)
    how = participation(lost=share)
    state = jax.jit(method.init)(KEY, DATA)
    ids = jax.numpy.arange(DATA.num_clients)
    drawn = np.asarray(how.happens("lost", how.lost, KEY, jax.numpy.int32(0), ids))
    lost = np.flatnonzero(drawn).tolist()
    assert 0 < len(lost) < DATA.num_clients
    found, _ = jax.jit(method.round)(KEY, state, DATA)
    absent = toy.without(DATA, *lost)
    expected, _ = jax.jit(whole.round)(KEY, whole.init(KEY, absent), absent)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6),
        found.params,
        expected.params,
    )


def test_clients_lost_after_that_have_no_labels_and_do_not_train() -> None:
    method = losing(0.999999, "codes")
    state = jax.jit(method.init)(KEY, DATA)
    after, info = jax.jit(method.round)(KEY, state, DATA)
    # Coverage is that of clients that stay, and there is none.
    assert np.isnan(float(info["pseudo_label_coverage"])) and int(info["local_steps"]) == 0
    assert int(info["lost_clients"]) == int(info["clients"])
    bytes_up = federated.to_numbers(info)["bytes_up"]
    assert bytes_up == 4 * 2 * sum(toy.SIZES)  # their codes of 64 bits
    assert federated.to_numbers(info)["bytes_down"] == 4 * 67 * int(info["clients"])
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)


@pytest.mark.thorough
def test_the_labels_of_clients_lost_after_the_scores_count() -> None:
    """Client 1 has three labels; without them the others get other pseudo-labels."""

    class LosingClient1(federated.Participation):
        def happens(self, name, probability, run_key, number, ids):
            return ids == 1

    infos = {}
    for when in ("codes", "scores"):
        how = LosingClient1(lost=0.5, lost_when=when)
        method = methods.build("xclp", toy.setup(DATA, participation=how), **GRAPH)
        infos[when] = toy.train(method, KEY, DATA, 1)[1][0]
    assert infos["codes"]["local_steps"] == infos["scores"]["local_steps"]
    assert infos["codes"]["pseudo_label_coverage"] == 1.0
    assert infos["codes"]["confidence_correct"] != infos["scores"]["confidence_correct"]


@pytest.mark.thorough
@pytest.mark.promise
def test_exact_cosines_are_what_many_bits_come_to() -> None:
    run = toy.setup(DATA)
    shared = {"num_neighbors": 3, "graph_features": "inputs"}
    exact, coded = (
        methods.build("xclp", run, **shared, **own)
        for own in ({"similarity": "exact"}, {"num_bits": 2**15})
    )
    infos = [
        jax.jit(method.round)(KEY, method.init(KEY, DATA), DATA)[1] for method in (exact, coded)
    ]
    for name in ("pseudo_label_accuracy", "confidence_correct"):
        assert float(infos[0][name]) == pytest.approx(float(infos[1][name]), abs=0.05)
    with pytest.raises(ValueError, match="compares codes"):
        methods.build("xclp", run, similarity="exact", protocol="ideal")
    losing_codes = participation(lost=0.5, lost_when="codes")
    with pytest.raises(ValueError, match="compares codes of clients that stay"):
        setup = run._replace(participation=losing_codes)
        methods.build("xclp", setup, protocol="ideal")
