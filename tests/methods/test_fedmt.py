"""FedMT: numbers of the specification's checks, limits and edge cases."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated import Client, RoundContext, Snapshot, Step, Stream
from fedjax_ssl.methods.fedmt import Estimate, FedMT, projection_term
from fedjax_ssl.methods.fedmt import estimated as eager_estimated
from fedjax_ssl.methods.parts.alternating_training import ServerTurn, server_training
from fedjax_ssl.methods.parts.confident_pseudo_labels import CONFIDENT, ConfidentLabels, fix_term
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.objectives import channel_cross_entropy, mixup_cross_entropy, set_channel
from tests import toy

NESTED = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
# Check 7: class probabilities and coarse labels of ten examples.
PROBABILITIES = np.array(
    [
        [0.98, 0.01, 0.005, 0.005],
        [0.97, 0.01, 0.01, 0.01],
        [0.02, 0.96, 0.01, 0.01],
        [0.004, 0.99, 0.003, 0.003],
        [0.01, 0.98, 0.005, 0.005],
        [0.3, 0.4, 0.2, 0.1],
        [0.05, 0.95, 0.0, 0.0],
        [0.01, 0.01, 0.97, 0.01],
        [0.1, 0.1, 0.7, 0.1],
        [0.1, 0.1, 0.1, 0.7],
    ]
)
COARSE = (0, 0, 0, 1, 1, 1, 0, 2, 2, 1)


estimated = jax.jit(eager_estimated)


def key() -> jax.Array:
    return jax.random.key(5)


def weak_labels(labels, num_observations, matrix, from_sets=False, share=None) -> WeakLabels:
    """Weak labels of clients, one row of everything each."""
    labels = jnp.asarray(labels, jnp.int32)
    matrix = jnp.asarray(matrix, jnp.float32)
    counts = jnp.asarray(num_observations, jnp.int32)
    return WeakLabels(
        labels=labels,
        num_examples=jnp.sum(labels >= 0, axis=1),
        num_observations=counts,
        from_sets=jnp.full(counts.shape, from_sets),
        matrix=matrix,
        share=jnp.ones(matrix.shape[:2]) if share is None else jnp.asarray(share, jnp.float32),
        prior=jnp.full(matrix.shape[2], 1.0 / matrix.shape[2]),
    )


def cohort(weak: WeakLabels, sizes) -> RoundContext:
    """A round of clients that have weak labels for all of their examples."""
    sizes = jnp.asarray(sizes, jnp.int32)
    index = jnp.broadcast_to(jnp.arange(weak.labels.shape[1], dtype=jnp.int32), weak.labels.shape)
    clients = Client(
        jnp.arange(sizes.size),
        index,
        jnp.full_like(index, -1),
        0 * sizes,
        sizes,
        {},
        (),
        None,
        weak,
    )
    return RoundContext(
        key(), key(), jnp.zeros((), int), clients, sizes > 0, clients, {}, {}, {}, jnp.zeros((1, 1))
    )


def test_estimate_with_an_empty_class_and_padding():
    """Check 7 for a client in a label space of its own, beside one with more coarse labels."""
    labels = np.full((2, 12), -1)
    labels[0, :10] = COARSE
    labels[1, :10] = np.arange(10) % 5
    probabilities = np.full((2, 12, 4), 0.25)
    probabilities[:, :10] = PROBABILITIES
    round = cohort(weak_labels(labels, [3, 5], np.zeros((2, 5, 4))), [10, 10])
    given = jnp.asarray(probabilities, jnp.float32)
    above = estimated(round, given, given.max(2) > 0.95)
    columns = np.array([[1, 0, 0], [1 / 3, 2 / 3, 0], [0, 0, 1], [0.4, 0.4, 0.2]]).T
    np.testing.assert_allclose(above.matrix[0, :3], columns, atol=1e-6)
    np.testing.assert_array_equal(above.matrix[0, 3:], 0.0)
    np.testing.assert_array_equal(above.support[0], [2, 3, 1, 0])
    at = estimated(round, given, given.max(2) >= 0.95)
    np.testing.assert_allclose(at.matrix[0, :3, 1], [0.5, 0.5, 0.0], atol=1e-6)


def step_of(
    logits, weak: WeakLabels | None, estimate: Estimate | tuple, labels, view: str, stream: str
) -> Step:
    """A local step of one client whose batch are all of its examples, in order."""
    logits = jnp.asarray(logits)
    labels = jnp.asarray(labels, jnp.int32)
    size = labels.size
    place = jnp.arange(size, dtype=jnp.int32)
    mask = jnp.ones(size, bool)
    client = (
        None
        if weak is None
        else jax.tree.map(lambda x: x[0], dataclasses.replace(weak, prior=weak.prior[None]))
    )
    nobody = jnp.full(size, -1, jnp.int32)
    owner = Client(
        jnp.zeros((), int), place, nobody, jnp.zeros((), int), jnp.asarray(size),
        {CONFIDENT: ConfidentLabels(labels, mask, jnp.ones(size), estimate)}, (), None, client,
    )  # fmt: skip
    batch = Stream(
        place, mask, nobody, jnp.zeros((size, 1)), None if client is None else client.labels
    )
    outputs = {view: models.Outputs(logits, logits, None)}
    zero = jnp.zeros((), int)
    nothing = Snapshot({}, {})
    return Step({stream: batch}, owner, nothing, key(), toy.NOW, zero, outputs)


def some_setup() -> federated.Setup:
    return toy.setup(toy.federation())


@pytest.mark.thorough
@pytest.mark.parametrize("known", [True, False])
def test_total_loss(known):
    """Check 10."""
    matrix = np.zeros((1, 3, 3))
    matrix[0, :2] = NESTED  # a row of padding
    weak = weak_labels([[0, 1]], [2], matrix if known else 0 * matrix)
    nowhere = Estimate(jnp.asarray(0 * matrix[0] if known else matrix[0], jnp.float32), jnp.ones(3))
    # an unknown matrix is estimated
    term = projection_term(some_setup(), FedMT())
    weakly = [[1.0, 0.5, -0.2], [-0.3, 0.1, 0.9]]
    projection = jax.jit(term.loss)(step_of(weakly, weak, nowhere, [0, 2], "fix/weak", "fix"))
    strongly = [[0.8, 0.2, 0.0], [0.0, 0.4, 0.5]]
    fix = fix_term(some_setup(), 1.0).loss(step_of(strongly, None, (), [0, 2], "fix/strong", "fix"))
    mixed = jnp.asarray([[0.6, 0.3, 0.1], [0.2, 0.2, 0.7]])
    mix = mixup_cross_entropy(
        mixed, jnp.asarray([0, 2]), jnp.asarray([1, 0]), 0.3, jnp.ones(2, bool)
    )
    np.testing.assert_allclose(
        [projection, fix, mix], [0.3658745411, 0.8065223519, 1.1038316624], rtol=2e-6
    )
    np.testing.assert_allclose(projection + 0.5 * fix + 0.25 * mix, 1.0450936326, rtol=2e-6)


@pytest.mark.thorough
def test_a_client_with_sets_projects_through_its_class_shares():
    shares = np.array([[[0.8, 0.1, 0.1], [0.2, 0.5, 0.3]]])
    weak = weak_labels([[0, 1, 1]], [2], shares, from_sets=True, share=[[0.4, 0.6]])
    logits = jnp.asarray([[1.0, 0.5, -0.2], [0.1, 0.2, 0.3], [-1.0, 0.0, 2.0]])
    ignored = Estimate(jnp.ones((2, 3)) / 2, jnp.ones(3))
    channel = set_channel(shares[0], jnp.asarray([0.4, 0.6]), jnp.ones(3) / 3)
    expected = jnp.mean(channel_cross_entropy(logits, jnp.asarray([0, 1, 1]), channel))
    term = projection_term(some_setup(), FedMT(correspondence="estimated"))
    value = jax.jit(term.loss)(step_of(logits, weak, ignored, [0, 0, 0], "fix/weak", "fix"))
    np.testing.assert_allclose(value, expected, rtol=1e-6)


def one_round(
    data: FederatedData,
    name: str = "fedmt",
    rounds: int = 1,
    changes: dict | None = None,
    **options,
):
    run = toy.setup(data, model=toy.linear_model(), **(changes or {}))
    return toy.train(methods.build(name, run, **options), key(), data, rounds)


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
    weak = weak_labels(
        np.where(slots, data.labels[data.index], -1), [toy.NUM_CLASSES] * 6, matrices
    )
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
    plain, expected = toy.train(federated.build(federated.Recipe(run, (stage,))), key(), seen, 1)
    chex.assert_trees_all_close(mine.params, plain.params, rtol=1e-5, atol=1e-6)
    assert infos[0]["local_steps"] == expected[0]["local_steps"] == 12 + 5, "clients and server"
    assert (
        infos[0]["correspondence_error"] > 0.1
        and infos[0]["classes_without_support"] == toy.NUM_CLASSES
    )


@pytest.mark.thorough
def test_in_the_first_round_the_server_trains_alone():
    """As one round of `single`, whose epochs are the same single batch."""
    data = toy.weak_federation("coarse")
    run = toy.setup(data, model=toy.linear_model(), rounds=2)
    method = methods.build("fedmt", run, threshold=0.5)
    warm, (first,) = toy.train(method, key(), data, 1)
    alone, _ = toy.train(methods.build("single", run), key(), data, 1)
    chex.assert_trees_all_equal(warm.params, alone.params)
    assert first["clients"] == 0 and first["bytes_down"] == 0
    _, infos = toy.run(jax.jit(method.round), key(), warm, data, 1)
    assert infos[0]["clients"] == data.num_clients


@pytest.mark.thorough
def test_estimates_use_no_hidden_knowledge():
    data = toy.weak_federation("coarse")
    run = toy.setup(data, model=toy.linear_model())
    method = methods.build("fedmt", run, threshold=0.5, correspondence="estimated")
    init = jax.jit(method.init)
    one_round = jax.jit(method.round)

    def train(federation: FederatedData):
        state, (info,) = toy.run(one_round, key(), init(key(), federation), federation, 1)
        return state, info

    state, info = train(data)
    assert np.isfinite(info["correspondence_error"])
    again, scrambled = train(toy.with_hidden_labels_scrambled(data))
    chex.assert_trees_all_equal(again, state)
    assert scrambled["pseudo_label_accuracy"] < info["pseudo_label_accuracy"]
    assert data.weak is not None
    unknown = dataclasses.replace(
        data, weak=dataclasses.replace(data.weak, matrix=jnp.zeros_like(data.weak.matrix))
    )
    blind, logged = train(unknown)
    chex.assert_trees_all_equal(blind.params, state.params)
    assert np.isnan(logged["correspondence_error"])


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
    nested = np.repeat(np.eye(2), 2, axis=1)
    base = toy.federation(sizes=(400,), labelled=(0,), num_test=1000, server=8)
    return dataclasses.replace(
        base,
        inputs=jnp.asarray(inputs),
        labels=jnp.asarray(labels, jnp.int32),
        observed=jnp.where(np.arange(labels.size) < 8, labels, -1).astype(jnp.int32),
        index=jnp.asarray(client[None], jnp.int32),
        test_index=jnp.arange(408, 1408, dtype=jnp.int32),
        server_index=jnp.arange(8, dtype=jnp.int32),
        num_classes=4,
        weak=weak_labels(labels[client][None] // 2, [2], nested[None]),
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
            start = method.init(key(), one)
            end = jax.lax.scan(
                lambda s, _: (method.round(key(), s, one)[0], None), start, length=100
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
