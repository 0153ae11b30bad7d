"""FedRep: which part is trained when and by whom, what is averaged, what stays where it is, what
is sent.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import in_turn, labelled_epochs
from fedjax_ssl.federated.sampler import epochs
from fedjax_ssl.models import count_parameters
from tests import toy

KEY = jax.random.key(6)
# Momentum and weight decay would move what merely has no gradient.
LOCAL = federated.local_optimizer("sgd", momentum=0.5, weight_decay=0.01)


def run_of(data, **changes):
    model = {"model_options": {"aux_head": True}}
    return toy.setup(data, learning_rate=0.2, local_optimizer=LOCAL, **{**model, **changes})


@pytest.fixture(scope="module")
def data():
    return toy.weak_federation("coarse", labelled=(0,) * len(toy.SIZES))


@pytest.fixture(scope="module")
def trained(data):
    """States before and after a round with four of six clients, and its metrics."""
    method = methods.build("fedrep", run_of(data, cohort_size=4), head_epochs=2)
    start = jax.jit(method.init)(KEY, data)
    after, infos = toy.run(jax.jit(method.round), KEY, start, data, 1)
    return start, after, infos[0]


def moved(one, other) -> np.ndarray:
    """Which rows of a table of clients differ."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return np.any(
        [np.any(np.asarray(a != b).reshape(len(a), -1), axis=1) for a, b in pairs], axis=0
    )


@pytest.mark.thorough
def test_heads_stay_with_who_trains_them(trained) -> None:
    start, after, info = trained
    assert moved(start.clients.params, after.clients.params).sum() == info["clients"] == 4
    chex.assert_trees_all_equal(start.params["aux_head"], after.params["aux_head"])
    for group in ("head", "body"):
        pairs = zip(
            jax.tree.leaves(start.params[group]), jax.tree.leaves(after.params[group]), strict=True
        )
        assert all(np.any(a != b) for a, b in pairs), group


@pytest.mark.thorough
def test_the_body_is_all_that_is_sent(trained) -> None:
    start, _, info = trained
    assert info["bytes_up"] == info["bytes_down"] == 4 * 4 * count_parameters(start.params["body"])


@pytest.mark.thorough
def test_the_average_has_the_server_as_one_more_client(data) -> None:
    """Everybody alone from the same start: the next body is the mean of the five bodies."""
    settings = {"head_epochs": 1, "body_epochs": 1, "server_batch_size": 3}
    everybody = (0, 1, 2, 5)
    together = toy.without(data, 3, 4)
    method = methods.build("fedrep", run_of(data), **settings)
    one_round = jax.jit(method.round)
    start = jax.jit(method.init)(KEY, data)

    def body(federation):
        state, _ = one_round(KEY, start, federation)
        return np.concatenate(
            [np.ravel(x) for x in jax.tree.leaves(state.params["body"])]
        ), state.params["head"]

    no_server = toy.changed(together, num_server=0)
    mean, head = body(together)
    clients, _ = body(no_server)
    alone, own_head = body(toy.without(data, *range(6)))
    np.testing.assert_allclose(mean, (len(everybody) * clients + alone) / 5, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(head, own_head, rtol=1e-5)
    _, untouched = body(no_server)
    chex.assert_trees_all_equal(untouched, start.params["head"])


@pytest.mark.thorough
def test_one_sampler_after_the_other() -> None:
    """Two epochs of "head" and one of "body": six labelled examples in batches of four."""
    data = toy.federation(sizes=(6, 3), labelled=(6, 3))
    one, two = (
        epochs(name, lambda c: c.num_labelled, 4, n, 6) for name, n in (("head", 2), ("body", 1))
    )
    client = jax.tree.map(lambda x: x[0], federated.all_clients(data))
    drawn = in_turn(one, two).schedule(KEY, client, toy.NOW)
    sizes = {name: np.asarray(mask.sum(axis=1)) for name, mask in drawn.masks.items()}
    assert int(drawn.num_steps) == 6
    np.testing.assert_array_equal(sizes["head"], [4, 2, 4, 2, 0, 0])
    np.testing.assert_array_equal(sizes["body"], [0, 0, 0, 0, 4, 2])
    used = np.asarray(drawn.positions["body"])[np.asarray(drawn.masks["body"])]
    assert sorted(used) == list(range(6))
    small = in_turn(labelled_epochs(4, 2, 6), two).schedule(
        KEY, client._replace(num_labelled=jnp.asarray(3)), toy.NOW
    )
    assert int(small.num_steps) == 3 and np.asarray(small.masks["body"])[2].sum() == 3


@pytest.mark.thorough
def test_a_shared_head_is_averaged_among_the_clients(data) -> None:
    method = methods.build("fedrep", run_of(data), head_epochs=1, shared_head=True)
    start = jax.jit(method.init)(KEY, data)
    after, infos = toy.run(jax.jit(method.round), KEY, start, data, 1)
    sent = count_parameters([start.params["body"], start.params["aux_head"]])
    assert infos[0]["bytes_up"] == 6 * 4 * sent and after.clients.params == {}
    assert np.any(
        after.params["aux_head"]["aux_head"]["kernel"]
        != start.params["aux_head"]["aux_head"]["kernel"]
    )


@pytest.mark.thorough
def test_with_class_labels_every_client_predicts_with_its_own_head() -> None:
    data = toy.federation()
    method = methods.build(
        "fedrep", toy.setup(data, learning_rate=0.2), labels="class", head_epochs=3
    )
    state, infos = toy.train(method, KEY, data, 12)
    rows = np.asarray(data.test_index)
    own = np.argmax(method.predict_for(state, jnp.asarray(4), data.inputs[rows]), axis=1)
    assert np.mean(own == np.asarray(data.labels)[rows]) > 0.8
    assert infos[0]["bytes_up"] == 5 * 4 * count_parameters(state.params["body"]), (
        "one of six has no label"
    )
    everyone = np.argmax(method.predict(state, data.inputs[rows]), axis=1)
    assert np.mean(everyone == np.asarray(data.labels)[rows]) > 0.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": "class", "shared_head": True}, "nothing would be private"),
    ],
)
def test_refusals(data, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        methods.build("fedrep", run_of(data), **settings)


def test_a_network_with_one_head_is_refused(data) -> None:
    with pytest.raises(ValueError, match=r"fedrep needs a network with a second head"):
        methods.build("fedrep", run_of(data, model_options={}))
