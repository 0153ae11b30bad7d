"""SAGE: numbers of the specification's checks, limits and edge cases."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.contrib.methods._whole_batches import client_weight
from fedjax_ssl.contrib.methods.sage import corrected_labels, local_share
from fedjax_ssl.federated import Client, Recipe, Stage, Training, build
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.objectives import batch_cross_entropy, soft_label_divergence
from tests import toy
from tests.methods.parts.test_guess import OURS, STRONG, THEIRS


def key() -> jax.Array:
    return jax.random.key(3)


def sure_at(threshold: float):
    return lambda probabilities: jnp.max(probabilities, axis=1) >= threshold


def test_share_of_the_local_label(float64) -> None:
    """Check 1."""
    shares = local_share(jnp.asarray([0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0]))
    expected = [
        0.9999861372,
        0.8705384950,
        0.4999930686,
        0.2499965343,
        0.0624991336,
        0.0009765490,
        0.000001,
    ]
    np.testing.assert_allclose(shares, expected, atol=1e-10)


def test_targets_loss_and_gradient(float64) -> None:
    """Check 2."""
    everybody = jnp.ones(5, bool)
    strong = jnp.asarray(STRONG)

    @jax.jit
    def found():
        corrected = corrected_labels(jnp.asarray(OURS), jnp.asarray(THEIRS), sure_at(0.95))
        targets = corrected.targets
        one_by_one = [
            5 * soft_label_divergence(strong, targets, everybody, jnp.arange(5) == row)
            for row in range(5)
        ]
        loss, slope = jax.value_and_grad(soft_label_divergence)(
            strong, targets, everybody, corrected.counted
        )
        soft = -jnp.sum(corrected.targets * jax.nn.log_softmax(strong), axis=1)
        return (
            corrected,
            jnp.stack(one_by_one),
            loss,
            slope,
            jnp.mean(jnp.where(corrected.counted, soft, 0.0)),
        )

    corrected, rows, loss, slope, soft = found()
    targets = [
        [1, 0, 0],
        [0.0272043280, 0.9727956720, 0],
        [0, 1, 0],
        [0, 1, 0],
        [0.8122411362, 0.1877588638, 0],
    ]
    np.testing.assert_allclose(corrected.targets, targets, atol=1e-10)
    np.testing.assert_array_equal(corrected.counted, [True, True, True, False, True])
    np.testing.assert_allclose(
        rows, [0.1698460155, 1.0417819020, 0.5514447096, 1.5514447093, 0.5190375020], atol=1.5e-10
    )
    np.testing.assert_allclose([loss, soft], [0.4564220258, 0.5779905343], atol=1e-10)
    gradient = [
        [-0.0312410531, 0.0228390399, 0.0084020132],
        [0.0958552126, -0.1331199573, 0.0372647446],
        [0.0423883115, -0.0847766230, 0.0423883115],
        [0.0, 0.0, 0.0],
        [-0.0917252043, 0.0488295225, 0.0428956818],
    ]
    np.testing.assert_allclose(slope, gradient, atol=1e-9)


def test_no_gradient_reaches_what_makes_the_targets() -> None:
    def loss(ours, theirs):
        corrected = corrected_labels(jax.nn.softmax(ours), jax.nn.softmax(theirs), sure_at(0.5))
        everybody = jnp.ones(5, bool)
        return soft_label_divergence(
            jnp.asarray(STRONG), corrected.targets, everybody, corrected.counted
        )

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(
        np.log(np.float32(OURS)), np.log(np.float32(THEIRS))
    )
    assert not np.any(np.asarray(slopes))


def test_optimizer(float64) -> None:
    """Check 3."""
    local = federated.local_optimizer(momentum=0.9, weight_decay=1e-4)
    weight = jnp.asarray(1.0)
    state = local.init(weight)
    seen = []
    for _ in range(2):
        added, state = local.update(jnp.asarray(0.5), state, weight, jnp.asarray(0.1))
        weight = weight + added
        seen.append(float(weight))
    np.testing.assert_allclose(seen, [0.94999, 0.8549715001], atol=1e-10)


@pytest.mark.parametrize(
    ("labelled", "examples", "weight"), [(250, 2500, 502_500), (251, 2500, 504_500)]
)
def test_weight_of_a_client_in_the_code(labelled: int, examples: int, weight: int) -> None:
    """Check 4."""
    nothing = np.zeros((), np.int32)
    client = Client(nothing, nothing, nothing, np.int32(labelled), np.int32(examples), {}, ())
    assert (
        client_weight(client, 2000.0) == weight
        and client_weight(client, 1.0) == labelled + examples
    )


@pytest.fixture(scope="module")
def sage_round():
    """The model after a round of a linear model; settings are arguments of one program."""
    data = toy.federation()

    @jax.jit
    def train(settings: dict[str, jax.Array]) -> Any:
        run = toy.setup(data, model=toy.linear_model(), local_epochs=3, augment=toy.jitter)
        method = methods.build("sage", run, **settings)
        return method.round(key(), method.init(key(), data), data)

    def call(**changed: float) -> Any:
        settings = {"threshold": 0.6, "unlabelled_weight": 1.0, "kappa": 14.0, **changed}
        return train({name: jnp.asarray(value) for name, value in settings.items()})

    return call


@pytest.mark.thorough
def test_with_a_threshold_that_nothing_reaches_it_is_supervised_federated_averaging(
    sage_round,
) -> None:
    """Check 5, first limit; as many steps as whole batches fit into a client's examples."""
    mine, info = sage_round(threshold=1.0)
    other, _ = sage_round(threshold=0.6, unlabelled_weight=0.0)
    chex.assert_trees_all_close(mine.params, other.params, rtol=1e-6, atol=1e-7)
    assert info["local_steps"] == 3 * sum(size // 4 for size in toy.SIZES)
    learned, _ = sage_round()
    assert float(optax.tree.norm(optax.tree.sub(learned.params, mine.params))) > 1e-3
    # Written again, without the term: labelled batches of the same sampler, and the same weights.
    data = toy.federation()
    run = toy.setup(data, model=toy.linear_model(), local_epochs=3, augment=toy.jitter)
    steps = federated.Steps(lambda client: 3 * (client.num_examples // 4), 9)
    sampler = federated.paired_batches(
        4, 8, steps, run.max_labelled, run.max_unlabelled, labelled_too=True
    )
    stage = Stage(
        Training(
            (supervised_term(run),), sampler, weigh=lambda client, _: client_weight(client, 1.0)
        )
    )
    plain, _ = toy.train(build(Recipe(run, (stage,))), key(), data, 1)
    chex.assert_trees_all_close(mine.params, plain.params, rtol=1e-5, atol=1e-6)


def test_limits_of_the_targets() -> None:
    """Check 5: a share of 1 is FixMatch where the local model is confident, a share of 0 takes
    the global class.
    """
    ours = jnp.asarray(OURS)
    theirs = jnp.asarray(THEIRS)
    of = jax.jit(lambda kappa: corrected_labels(ours, theirs, sure_at(0.95), kappa))
    local = of(0.0)
    both = of(1e9)
    sure = np.asarray(OURS).max(1) >= 0.95
    np.testing.assert_allclose(np.asarray(local.targets)[sure], np.eye(3)[[0, 0, 0]])
    np.testing.assert_allclose(both.targets, np.eye(3)[np.argmax(THEIRS, axis=1)], atol=1.1e-6)
    found = jax.jit(soft_label_divergence)(
        jnp.asarray(STRONG), local.targets, jnp.ones(5, bool), jnp.asarray(sure)
    )
    labels = jnp.where(jnp.asarray(sure), jnp.argmax(ours, axis=1), -1)
    expected = batch_cross_entropy(jnp.asarray(STRONG), labels, jnp.ones(5, bool))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.thorough
def test_the_received_model_stays_as_it_was_and_its_statistics_are_its_own() -> None:
    """The loss sees the frozen model in evaluation mode, in all three steps."""
    data = toy.only(toy.federation(), 0)
    run = toy.setup(data, model_options={"norm": "bn"}, batch_size=12, local_epochs=3)
    run = run._replace(local_optimizer=federated.local_optimizer(momentum=0.9))
    method = methods.build("sage", run, threshold=0.0, unlabelled_ratio=1)
    start = jax.jit(method.init)(key(), data)
    state, info = jax.jit(method.round)(key(), start, data)
    assert info["local_steps"] == 3
    # By hand: batches of all 12 examples, in an order that does not matter; labelled ones three
    # times each.
    rows = np.asarray(data.index)[0, :12]
    unlabelled = data.inputs[rows]
    labelled = jnp.tile(data.inputs[rows[:4]], (3, 1))
    labels = jnp.tile(data.labels[rows[:4]], 3)

    def loss(params, model_state):
        inputs = jnp.concatenate([labelled, unlabelled, unlabelled])
        outputs, after = run.model.apply(params, model_state, inputs, train=True)
        known, weak, strong = jnp.split(outputs.logits, 3)
        frozen, _ = run.model.apply(
            start.params["model"], start.model_state, unlabelled, train=False
        )
        corrected = corrected_labels(
            jax.nn.softmax(weak), jax.nn.softmax(frozen.logits), sure_at(0.0)
        )
        everybody = jnp.ones(12, bool)
        total = batch_cross_entropy(known, labels, everybody) + soft_label_divergence(
            strong, corrected.targets, everybody, corrected.counted
        )
        return total, after

    @jax.jit
    def by_hand(params, model_state):
        momentum = jax.tree.map(jnp.zeros_like, params)
        for _ in range(3):
            slope, model_state = jax.grad(loss, has_aux=True)(params, model_state)
            momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, slope)
            params = jax.tree.map(lambda w, m: w - 0.1 * m, params, momentum)
        return params, model_state

    expected = by_hand(start.params["model"], start.model_state)
    chex.assert_trees_all_close(
        (state.params["model"], state.model_state), expected, rtol=1e-4, atol=1e-5
    )


def test_a_client_with_less_than_a_batch_takes_no_step_and_one_without_labels_learns_from_the_others() -> (
    None
):
    """Edge cases."""
    data = toy.federation(sizes=(3, 8), labelled=(3, 0))
    run = toy.setup(data, model=toy.linear_model())
    method = methods.build("sage", run, threshold=0.0)
    start = jax.jit(method.init)(key(), data)
    state, info = jax.jit(method.round)(key(), start, data)
    assert info["local_steps"] == 2 * 2 and info["examples"] == 4 * 8
    chex.assert_tree_all_finite(state)
