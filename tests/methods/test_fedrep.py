"""FedRep: what is sent, own heads, its sampler, refusals."""

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
@pytest.mark.parametrize("shared", [False, True])
def test_the_body_is_sent_and_a_head_that_is_shared(data, shared: bool) -> None:
    method = methods.build("fedrep", run_of(data), head_epochs=1, shared_head=shared)
    (start, after), (info,) = toy.every_state(method, KEY, data, 1)
    sent = [start.params["body"], *[start.params["aux_head"]] * shared]
    assert info["bytes_up"] == info["bytes_down"] == 6 * 4 * count_parameters(sent)
    assert (after.clients.params == {}) == shared
    heads = [state.params["aux_head"]["aux_head"]["kernel"] for state in (start, after)]
    assert np.array_equal(*heads) != shared


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
    ("settings", "changes", "message"),
    [
        ({"labels": "class", "shared_head": True}, {}, "nothing would be private"),
        ({}, {"model_options": {}}, "fedrep needs a network with a second head"),
    ],
)
def test_refusals(data, settings, changes, message) -> None:
    with pytest.raises(ValueError, match=message):
        methods.build("fedrep", run_of(data, **changes), **settings)
