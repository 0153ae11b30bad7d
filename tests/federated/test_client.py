"""The client step against a plain loop in NumPy, in float64: softmax regression, several clients
and steps.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated
from fedjax_ssl.federated import Recipe, Stage, Training, build
from fedjax_ssl.methods.parts.terms import PseudoLabels, pseudo_label_term, supervised_term
from tests import toy

RATE = 0.2
MOMENTUM = 0.8
DECAY = 0.05
MU = 0.3
STEPS = 5
BATCH = 4
Weights = dict[str, np.ndarray]


def gradient(
    weights: Weights, inputs: np.ndarray, targets: np.ndarray, row_weights: np.ndarray
) -> Weights:
    """Of 1/|B| sum_i v_i CE(x_i W + b, y_i); rows with target -1 count in |B| only."""
    scores = inputs @ weights["w"] + weights["b"]
    probs = np.exp(scores - scores.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    wrong = probs - np.eye(toy.NUM_CLASSES)[np.maximum(targets, 0)]
    wrong *= np.where(targets >= 0, row_weights, 0.0)[:, None] / len(targets)
    return {"w": inputs.T @ wrong, "b": wrong.sum(0)}


def local_training(
    start: Weights, inputs: np.ndarray, targets: np.ndarray, row_weights: np.ndarray
) -> Weights:
    weights = dict(start)
    velocity = {name: np.zeros_like(value) for name, value in start.items()}
    for step in range(STEPS):
        rows = (step * BATCH + np.arange(BATCH)) % len(inputs)
        slope = gradient(weights, inputs[rows], targets[rows], row_weights[rows])
        for name in weights:
            total = slope[name] + MU * (weights[name] - start[name]) + DECAY * weights[name]
            velocity[name] = MOMENTUM * velocity[name] + total
            weights[name] = weights[name] - RATE * velocity[name]
    return weights


def setup(data, weighting: str = "uniform") -> federated.Setup:
    return toy.setup(
        data,
        model=toy.linear_model(),
        learning_rate=RATE,
        local_optimizer=federated.local_optimizer("sgd", momentum=MOMENTUM, weight_decay=DECAY),
        federated_optimizer=federated.fedprox(MU),
        weighting=weighting,
    )


def by_hand(
    data, start: Weights, targets, row_weights, client_weights: np.ndarray, rounds: int
) -> Weights:
    index = np.asarray(data.index)
    sizes = np.asarray(data.num_examples)
    inputs = np.asarray(data.inputs)
    weights = {name: np.asarray(value) for name, value in start.items()}
    for _ in range(rounds):
        results = [
            local_training(
                weights, inputs[index[c, :n]], targets[index[c, :n]], row_weights[index[c, :n]]
            )
            for c, n in enumerate(sizes)
        ]
        weights = {
            name: np.average([result[name] for result in results], axis=0, weights=client_weights)
            for name in weights
        }
    return weights


@pytest.mark.parametrize(
    "weighting",
    ["labelled", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("uniform", "examples"))],
)
def test_labelled_training_is_the_plain_loop(float64, weighting: str) -> None:
    data = toy.federation()
    run = setup(data, weighting)
    stage = Stage(
        Training((supervised_term(run),), toy.in_order("labelled", BATCH, STEPS)),
        labelled_quota="any",
    )
    method = build(Recipe(run, (stage,)))
    start = method.init(jax.random.key(0), data)
    state, infos = toy.run(jax.jit(method.round), jax.random.key(0), start, data, 2)
    shares = {
        "uniform": np.ones(6),
        "examples": np.asarray(data.num_examples, float),
        "labelled": np.asarray(data.num_labelled, float),
    }[weighting]
    observed = np.asarray(data.observed)
    expected = by_hand(data, start.params["model"], observed, np.ones(observed.shape), shares, 2)
    for name, value in expected.items():
        assert state.params["model"][name].dtype == jnp.float64
        np.testing.assert_allclose(state.params["model"][name], value, rtol=1e-11, atol=1e-12)
    assert infos[0]["local_steps"] == 6 * STEPS and infos[0]["examples"] == 6 * STEPS * BATCH


def test_weighted_pseudo_labels_are_not_renormalized(float64) -> None:
    """XCLP section 5.3: the mean is over the whole batch, weights included as they are."""
    data = toy.federation()
    run = setup(data)
    rng = np.random.default_rng(3)
    targets = rng.integers(-1, toy.NUM_CLASSES, data.labels.shape[0]).astype(np.int32)
    row_weights = rng.uniform(0, 3, data.labels.shape[0])

    def prepare(state, context):
        rows = context.clients.rows
        return PseudoLabels(
            jnp.asarray(targets)[rows], jnp.asarray(row_weights)[rows], jnp.zeros(rows.shape)
        ), state

    term = pseudo_label_term(run, prepare)
    stage = Stage(Training((term,), toy.in_order("mixed", BATCH, STEPS)), labelled_quota="any")
    method = build(Recipe(run, (stage,)))
    start = method.init(jax.random.key(0), data)
    state, _ = toy.run(jax.jit(method.round), jax.random.key(0), start, data, 1)
    expected = by_hand(data, start.params["model"], targets, row_weights, np.ones(6), 1)
    for name, value in expected.items():
        np.testing.assert_allclose(state.params["model"][name], value, rtol=1e-11, atol=1e-12)
