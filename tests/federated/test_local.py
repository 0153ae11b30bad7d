"""No federation: every client trains alone, all of them in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import AtServer, Broadcast, Recipe, Stage, Term, Training, View, build
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.models import Model, Outputs
from tests import toy


def averaging_model() -> Model:
    """Class scores are a number each; the batch statistics are the mean input."""

    def apply(params, state, inputs, *, train, key=None, mask=None):
        logits = jnp.broadcast_to(params["w"], (inputs.shape[0], toy.NUM_CLASSES))
        mean = jnp.mean(inputs, axis=0, where=None if mask is None else mask[:, None])
        return Outputs(logits, inputs, None), {"mean": mean} if train else state

    def init(key):
        return {"w": jnp.zeros(toy.NUM_CLASSES)}, {"mean": jnp.zeros(toy.NUM_FEATURES)}

    return Model(init, apply)


def test_every_client_goes_on_with_its_own_model_and_batch_statistics() -> None:
    """Three steps of -log p(own id mod 3) at a rate of 1, as a plain loop; scores are means over
    the clients.
    """
    data = toy.federation()
    view = View("all", "all", lambda key, streams: streams["all"].inputs)

    def loss(step) -> jax.Array:
        return (
            -jax.nn.log_softmax(step.params["w"])[step.client.id % toy.NUM_CLASSES]
            + 0 * step.outputs["all"].logits.sum()
        )

    setup = toy.setup(
        data, model=averaging_model(), learning_rate=1.0, federated_optimizer=federated.local()
    )
    stage = Stage(
        Training((Term("own", (view,), loss),), toy.in_order("all", 4, 1)), labelled_quota="any"
    )
    method = build(Recipe(setup, (stage,)))
    state, infos = toy.train(method, jax.random.key(0), data, 3)
    inputs = np.asarray(data.inputs)
    labels = np.asarray(data.labels)[np.asarray(data.test_index)]
    expected = []
    for client in range(data.num_clients):
        w = np.zeros(toy.NUM_CLASSES)
        for _ in range(3):
            w -= np.exp(w) / np.exp(w).sum() - (
                np.arange(toy.NUM_CLASSES) == client % toy.NUM_CLASSES
            )
        expected.append(np.mean(labels == np.argmax(w)))
        seen = jnp.exp(method.predict_for(state, client, data.inputs[:1]))[0]
        np.testing.assert_allclose(seen, np.exp(w) / np.exp(w).sum(), rtol=1e-5)
        first = inputs[np.asarray(data.index)[client][: min(4, toy.SIZES[client])]]
        np.testing.assert_allclose(state.clients.model_state[client], first.mean(axis=0), rtol=1e-5)
    assert not np.any(jax.tree.leaves(state.params)), "there is no global model"
    assert not np.any(jax.tree.leaves(state.model_state))
    assert {(info["bytes_down"], info["bytes_up"]) for info in infos} == {(0, 0)}
    scores = federated.evaluate(method, state, data)
    assert float(scores["test_accuracy"]) == pytest.approx(np.mean(expected))


def test_what_needs_a_server_is_refused() -> None:
    data = toy.federation(server=3)
    setup = toy.setup(data, federated_optimizer=federated.local())
    with pytest.raises(
        ValueError, match=r"config.federated.name='local' has no server, but this method trains at"
    ):
        methods.build("semifl", setup, threshold=0.5)
    asks = supervised_term(setup)._replace(
        server=AtServer(prepare=lambda state, context: (Broadcast(), state))
    )
    with pytest.raises(ValueError, match="this method's 'supervised' needs one"):
        build(Recipe(setup, (Stage(Training((asks,), toy.in_order("labelled", 4, 1))),)))
