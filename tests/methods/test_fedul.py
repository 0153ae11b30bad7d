"""FedUL (notes on the paper, section 14): limits, invariances, clients that tell nothing, and
the Gaussian toy.
"""

import dataclasses
from functools import partial
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import methods, models
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method
from tests import toy

KEY = jax.random.key(3)
UNLABELLED = (0,) * 6
PRIOR = np.array([0.5, 0.3, 0.2])


def all_weak(from_sets: bool) -> FederatedData:
    """Every training example has its class as its weak label: in a pure set, or as a coarse
    label.
    """
    data = toy.federation(labelled=UNLABELLED)
    real = jnp.arange(data.max_examples) < data.num_examples[:, None]
    clients = data.num_clients
    weak = toy.weak_labels(
        jnp.where(real, data.labels[data.index], -1),
        np.broadcast_to(np.eye(3), (clients, 3, 3)),
        from_sets=from_sets,
        share=np.broadcast_to(PRIOR if from_sets else np.ones(3), (clients, 3)),
        prior=PRIOR,
    )
    return dataclasses.replace(data, weak=weak)


def sets(labelled: tuple[int, ...] = UNLABELLED) -> FederatedData:
    return toy.weak_federation("sets", labelled=labelled)


def with_weak(data: FederatedData, **changes: Any) -> FederatedData:
    return dataclasses.replace(data, weak=dataclasses.replace(data.weak, **changes))


def fedul(data: FederatedData, changes: dict[str, Any] | None = None, **options: Any) -> Method:
    return methods.build("fedul", toy.setup(data, **(changes or {})), **options)


@pytest.mark.thorough
@pytest.mark.parametrize("observed", ["sets", "coarse", "labels"])
def test_where_the_channel_is_the_identity_it_is_federated_averaging(observed: str) -> None:
    """Check 8, the same keys, the same bits: pure sets in the shares of the test, coarse labels
    that are the classes, and class labels alone.
    """
    given = toy.federation() if observed == "labels" else all_weak(observed == "sets")
    labelled = given if observed == "labels" else toy.federation(labelled=toy.SIZES)
    plain = methods.build("fedavg", toy.setup(labelled))
    expected, expected_infos = toy.train(plain, KEY, labelled, 3)
    state, infos = toy.train(fedul(given), KEY, given, 3)
    chex.assert_trees_all_equal(state.params, expected.params)
    assert [info["loss"] for info in infos] == [info["loss"] for info in expected_infos]
    notes = fedul(given).recipe.check(given)
    assert ("fedul is FedAvg" in " ".join(notes)) == (observed == "labels")


@pytest.mark.thorough
def test_numbering_of_sets_and_of_clients_does_not_matter() -> None:
    """Check 11; whole clients are one batch here, so that no order of examples is left."""
    data = sets()
    one_step = {"batch_size": 16, "local_epochs": 1}
    round_function = jax.jit(fedul(data, one_step).round)
    start = fedul(data, one_step).init(KEY, data)
    expected, _ = toy.run(round_function, KEY, start, data, 2)
    order = jnp.asarray([2, 0, 1])
    moved = jnp.asarray([1, 2, 0])  # set -> its new number
    weak = data.weak
    renumbered = with_weak(
        data,
        labels=jnp.where(weak.labels >= 0, moved[weak.labels], -1),
        matrix=weak.matrix[:, order],
        share=weak.share[:, order],
    )
    state, _ = toy.run(round_function, KEY, start, renumbered, 2)
    chex.assert_trees_all_close(state.params, expected.params, rtol=1e-6, atol=1e-6)
    clients = jnp.asarray([4, 0, 5, 2, 1, 3])
    per_client = ("index", "num_labelled", "num_examples")
    weak_per_client = ("labels", "num_examples", "num_observations", "from_sets", "matrix", "share")
    others = with_weak(data, **{name: getattr(weak, name)[clients] for name in weak_per_client})
    others = dataclasses.replace(
        others, **{name: getattr(data, name)[clients] for name in per_client}
    )
    state, _ = toy.run(round_function, KEY, start, others, 2)
    chex.assert_trees_all_close(state.params, expected.params, rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
def test_a_client_with_one_set_or_equal_sets_takes_no_part() -> None:
    """Section 13: its loss is constant, so that training would only add noise."""
    data = sets()
    weak = data.weak
    uniform = jnp.full(3, 1 / 3)
    shares = jnp.asarray([1.0, 0.0, 0.0])
    one_set = with_weak(
        data,
        labels=weak.labels.at[2].set(jnp.where(weak.labels[2] >= 0, 0, -1)),
        matrix=weak.matrix.at[2].set(shares[:, None] * uniform),
        share=weak.share.at[2].set(shares),
    )
    equal_sets = with_weak(data, matrix=weak.matrix.at[2].set(uniform))
    round_function = jax.jit(fedul(data, l1=0.01).round)
    start = fedul(data, l1=0.01).init(KEY, data)
    absent, expected = toy.run(round_function, KEY, start, toy.without(data, 2), 2)
    for changed in (one_set, equal_sets):
        state, infos = toy.run(round_function, KEY, start, changed, 2)
        chex.assert_trees_all_equal(state.params, absent.params)
        assert [info["local_steps"] for info in infos] == [info["local_steps"] for info in expected]
    together, _ = toy.run(round_function, KEY, start, data, 2)
    assert float(optax.tree.norm(optax.tree.sub(together.params, absent.params))) > 1e-3


MEANS = 2.0 * np.stack(
    [np.cos(2 * np.pi * np.arange(3) / 3), np.sin(2 * np.pi * np.arange(3) / 3)], axis=1
)
PRIORS = (
    np.array([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]]),
    np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]),
    np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2], [0.2, 0.4, 0.4]]),
)
SHARES = (np.array([0.3, 0.3, 0.4]), np.array([0.4, 0.3, 0.2, 0.1]), np.full(5, 0.2))
SIZE = 4000
NUM_SEEDS = 5


def gaussians(seed: int) -> FederatedData:
    """Check 13: three clients, three Gaussians in the plane; nobody has a label."""
    rng = np.random.default_rng(seed)
    inputs = []
    observed = np.zeros((3, SIZE), np.int32)
    matrix = np.zeros((3, 5, 3))
    share = np.zeros((3, 5))
    for client, (priors, shares) in enumerate(zip(PRIORS, SHARES, strict=True)):
        observed[client] = np.repeat(np.arange(len(shares)), np.round(SIZE * shares).astype(int))
        bounds = np.cumsum(priors, axis=1)[observed[client]]
        classes = (rng.random((SIZE, 1)) > bounds[:, :2]).sum(axis=1)
        inputs.append(MEANS[classes] + rng.normal(size=(SIZE, 2)))
        matrix[client, : len(shares)] = priors
        share[client, : len(shares)] = shares
    weak = toy.weak_labels(
        observed, matrix, num_observations=[3, 4, 5], from_sets=True, share=share, prior=PRIOR
    )
    points = np.concatenate(inputs).astype(np.float32)
    nobody_knows = np.full(len(points), -1)
    rows = np.split(np.arange(len(points)), 3)
    return toy.dealt(points, nobody_knows, rows, [0] * 3, num_classes=3, weak=weak)


@pytest.mark.thorough
def test_sets_alone_lead_to_the_bayes_classifier() -> None:
    """Check 13 with its thresholds; 12 rounds at a rate of 8 lead where 200 rounds at 0.5 do."""
    rng = np.random.default_rng(100)
    labels = rng.choice(3, size=50_000, p=PRIOR)
    points = MEANS[labels] + rng.normal(size=(50_000, 2))

    def posterior_of(data: FederatedData, key: jax.Array, **options: Any) -> jax.Array:
        run = toy.setup(
            data,
            model=models.build("linear", num_classes=3, input_shape=(2,)),
            learning_rate=8.0,
            batch_size=SIZE,
            local_epochs=5,
        )
        method = methods.build("fedul", run, **options)
        state = method.init(key, data)
        state = jax.lax.scan(lambda s, _: (method.round(key, s, data)[0], None), state, length=12)[
            0
        ]
        return jnp.exp(method.predict(state, jnp.asarray(points, jnp.float32)))

    posterior = np.asarray(jax.nn.softmax(np.log(PRIOR) + points @ MEANS.T))
    bayes = 100 * (posterior.argmax(axis=1) != labels).mean()
    assert 6.5 < bayes < 7.5

    def beside_bayes(found: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        """Error above the Bayes classifier's in points, and mean total variation from its
        posterior, per seed.
        """
        found = np.asarray(found)
        errors = 100 * (found.argmax(axis=2) != labels).mean(axis=1)
        return errors - bayes, 0.5 * np.abs(found - posterior).sum(axis=2).mean(axis=1)

    federations = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *(gaussians(seed) for seed in range(NUM_SEEDS))
    )
    # Not to divide by the test prior is to divide by ones, in the same program.
    no_prior = with_weak(federations, prior=jnp.ones_like(federations.weak.prior))
    ours = jax.jit(jax.vmap(posterior_of))
    keys = jax.random.split(KEY, NUM_SEEDS)
    excess, variation = beside_bayes(ours(federations, keys))
    assert excess.mean() < 0.1 and variation.max() < 0.022
    no_prior_excess, no_prior_variation = beside_bayes(ours(no_prior, keys))
    assert no_prior_variation.min() > 0.025 and no_prior_excess.mean() > excess.mean() + 0.1
    published_code = jax.vmap(partial(posterior_of, surrogate_loss="ce_on_probs"))
    on_probs, on_probs_variation = beside_bayes(jax.jit(published_code)(federations, keys))
    assert (on_probs_variation > variation).all() and on_probs.mean() > excess.mean() + 0.05
