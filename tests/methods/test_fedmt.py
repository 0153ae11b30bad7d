"""FedMT: numbers of the specification's checks, limits and edge cases."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.data import FederatedData
from fedjax_ssl.methods.fedmt import Estimate, FedMT, projection_term
from fedjax_ssl.methods.fedmt import estimated as eager_estimated
from fedjax_ssl.methods.parts.alternating_training import ServerTurn, server_training
from fedjax_ssl.methods.parts.confident_pseudo_labels import CONFIDENT
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.objectives import channel_cross_entropy, set_channel
from tests import toy
from tests.objectives.test_correspondence import OBSERVED, PROBS

estimated = jax.jit(eager_estimated)


KEY = jax.random.key(5)


def test_estimate_with_an_empty_class_and_padding():
    """Check 7 for a client in a label space of its own, beside one with more coarse labels."""
    labels = np.full((2, 12), -1)
    labels[0, :10] = OBSERVED
    labels[1, :10] = np.arange(10) % 5
    probabilities = np.full((2, 12, 4), 0.25)
    probabilities[:, :10] = PROBS
    weak = toy.weak_labels(labels, np.zeros((2, 5, 4)), num_observations=[3, 5])
    context = toy.context(2)
    clients = context.clients._replace(rows=weak.labels, num_examples=jnp.full(2, 10), weak=weak)
    round = context._replace(clients=clients)
    given = jnp.asarray(probabilities, jnp.float32)
    above = estimated(round, given, given.max(2) > 0.95)
    columns = np.array([[1, 0, 0], [1 / 3, 2 / 3, 0], [0, 0, 1], [0.4, 0.4, 0.2]]).T
    np.testing.assert_allclose(above.matrix[0, :3], columns, atol=1e-6)
    np.testing.assert_array_equal(above.matrix[0, 3:], 0.0)
    np.testing.assert_array_equal(above.support[0], [2, 3, 1, 0])
    at = estimated(round, given, given.max(2) >= 0.95)
    np.testing.assert_allclose(at.matrix[0, :3, 1], [0.5, 0.5, 0.0], atol=1e-6)


def test_a_client_with_sets_projects_through_its_class_shares():
    shares = np.array([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]])
    weak = toy.weak_labels([[0, 1, 1]], shares[None], from_sets=True, share=[[0.4, 0.6]])
    own = jax.tree.map(lambda x: x[0], dataclasses.replace(weak, prior=weak.prior[None]))
    logits = jnp.asarray([[1.0, 0.5, -0.2], [0.1, 0.2, 0.3], [-1.0, 0.0, 2.0]])
    ignored = SimpleNamespace(extra=Estimate(jnp.ones((2, 3)) / 2, jnp.ones(3)))
    batch = SimpleNamespace(observed=jnp.full(3, -1), weak=own.labels, mask=jnp.ones(3, bool))
    step: Any = SimpleNamespace(
        streams={"fix": batch},
        client=SimpleNamespace(weak=own, sent={CONFIDENT: ignored}),
        outputs={"fix/weak": models.Outputs(logits, logits, None)},
    )
    channel = set_channel(shares, jnp.asarray([0.4, 0.6]), jnp.ones(3) / 3)
    expected = jnp.mean(channel_cross_entropy(logits, own.labels, channel))
    term = projection_term(toy.setup(toy.federation()), FedMT(correspondence="estimated"))
    np.testing.assert_allclose(term.loss(step), expected, rtol=1e-6)


@pytest.mark.thorough
def test_an_unknown_correspondence_is_not_used():
    data = toy.weak_federation("coarse")
    hidden = dataclasses.replace(data.weak, matrix=jnp.zeros_like(data.weak.matrix))
    (state, (info,)), (blind, (logged,)) = (
        one_round(one, threshold=0.5, correspondence="estimated", warm_start=False)
        for one in (data, dataclasses.replace(data, weak=hidden))
    )
    chex.assert_trees_all_equal(blind.params, state.params)
    assert np.isfinite(info["correspondence_error"]) and np.isnan(logged["correspondence_error"])


def one_round(data: FederatedData, name: str = "fedmt", changes: dict | None = None, **options):
    run = toy.setup(data, model=toy.linear_model(), **(changes or {}))
    return toy.train(methods.build(name, run, **options), KEY, data, 1)


@pytest.mark.thorough
def test_without_projection_it_is_semifl():
    """Check 14, first limit; the coarse labels are not looked at."""
    data = toy.weak_federation("coarse")
    mine, infos = one_round(
        data, projection_weight=0.0, strict=False, threshold=0.6, warm_start=False
    )
    theirs, expected = one_round(data, "semifl", threshold=0.6)
    chex.assert_trees_all_equal(mine, theirs)
    np.testing.assert_equal(infos, expected)
    assert infos[0]["local_steps"] > 0


@pytest.mark.thorough
def test_the_identity_alone_is_federated_averaging_with_a_server_that_trains():
    """Check 14, second limit: coarse labels that are the classes, no confident examples, whole
    epochs.
    """
    seen = toy.federation(labelled=toy.SIZES, server=toy.NUM_SERVER)
    data = toy.weak_federation("coarse", labelled=(0,) * 6)
    slots = np.arange(data.max_examples) < np.asarray(data.num_examples)[:, None]
    matrices = np.broadcast_to(np.eye(toy.NUM_CLASSES), (6, toy.NUM_CLASSES, toy.NUM_CLASSES))
    weak = toy.weak_labels(np.where(slots, data.labels[data.index], -1), matrices)
    data = dataclasses.replace(data, weak=weak)
    changes = {"batch_size": max(toy.SIZES)}
    options = {
        "fix_weight": 0.0,
        "mix_weight": 0.0,
        "projection_examples": "all",
        "gate": "none",
        "threshold": 1.0,
    }
    mine, infos = one_round(data, changes=changes, warm_start=False, **options)
    run = toy.setup(seen, model=toy.linear_model(), **changes)
    sampler = federated.labelled_epochs(run.batch_size, run.local_epochs, run.max_labelled)
    stage = federated.Stage(
        federated.Training((supervised_term(run)._replace(name="clients"),), sampler),
        server=server_training(run, ServerTurn()),
    )
    plain, expected = toy.train(federated.build(federated.Recipe(run, (stage,))), KEY, seen, 1)
    chex.assert_trees_all_close(mine.params, plain.params, rtol=1e-5, atol=1e-6)
    assert infos[0]["local_steps"] == expected[0]["local_steps"] == 12 + 5, "clients and server"
    assert (
        infos[0]["correspondence_error"] > 0.1
        and infos[0]["classes_without_support"] == toy.NUM_CLASSES
    )


def gaussian_classes(seed: int) -> FederatedData:
    """Check 15: four classes in 20 dimensions, two coarse ones, 8 class labels at the server,
    one client.
    """
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(4, 20))
    means *= 2.5 / np.linalg.norm(means, axis=1, keepdims=True)
    labels = np.concatenate([np.arange(8), rng.integers(4, size=1400)]) % 4
    inputs = (means[labels] + rng.normal(size=(labels.size, 20))).astype(np.float32)
    client = np.arange(8, 408)
    return toy.dealt(
        inputs,
        labels,
        [client],
        [0],
        server=np.arange(8),
        test=np.arange(408, 1408),
        num_classes=4,
        weak=toy.weak_labels(labels[client][None] // 2, np.repeat(np.eye(2), 2, axis=1)[None]),
    )


@pytest.mark.thorough
def test_coarse_labels_help_and_wrong_ones_harm():
    """Check 15: order and gap over five seeds."""
    data = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(gaussian_classes(seed) for seed in range(5))
    )
    wrong = dataclasses.replace(
        data, weak=dataclasses.replace(data.weak, matrix=data.weak.matrix[:, :, ::-1])
    )
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), data, wrong)
    example = gaussian_classes(0)
    run = toy.setup(
        example,
        model="linear",
        learning_rate=0.5,
        batch_size=400,
        local_epochs=1,
        local_optimizer=federated.local_optimizer("sgd", weight_decay=1e-3),
    )

    def accuracy(name: str, federation: FederatedData, **options) -> np.ndarray:
        method = methods.build(name, run, server_epochs=1, **options)

        def train(one: FederatedData) -> jax.Array:
            start = method.init(KEY, one)
            end = jax.lax.scan(
                lambda s, _: (method.round(KEY, s, one)[0], None), start, length=100
            )[0]
            predicted = jnp.argmax(method.predict(end, one.inputs[one.test_index]), axis=1)
            return jnp.mean(predicted == one.labels[one.test_index])

        return np.asarray(jax.jit(jax.vmap(train))(federation))

    alone = accuracy("single", data)
    options = {"fix_weight": 0.0, "mix_weight": 0.0, "projection_examples": "all", "gate": "none"}
    train = {"threshold": 1.0, "warm_start": False, **options}
    told, misled = np.split(accuracy("fedmt", both, **train), 2)
    assert (told > alone).sum() >= 4
    assert np.mean(told - alone) > 0.08
    assert np.mean(misled) < 0.3 < np.mean(alone)
