"""One local step of a method beside the same step in NumPy.

The method is built as a run builds it and takes a round of the whole engine. The reference here is
a loss written out from the paper, its slope by central differences, and a mean over clients; it
shares nothing with the package but the network and the views.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models, objectives
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import ServerState
from tests import toy

KEY = jax.random.key(5)
RATE = 0.3
CLASS_WEIGHTS = np.array([1.0, 2.5, 0.5])
# Clients of unequal sizes with many, few and no labels. A batch takes six labelled examples, which
# is each of them as often, so that the mean over a batch is the one over the client's examples.
SIZES = (7, 6, 4)
LABELLED = (3, 2, 0)
BATCH = 6
SERVER = 5
WIDTH = 4
STEP = 1e-5  # of the central differences
PRIOR = np.array([0.5, 0.3, 0.2])  # class shares of the test, where there are sets
UNIFORM = (0.15, 0.6)  # the two columns that replace uniform draws

Params = Mapping[str, Mapping[str, np.ndarray]]
Loss = Callable[[Params], float]


def weak(key: Any, inputs: Any) -> Any:
    """The weak augmentation, without chance."""
    return 0.9 * inputs + 0.2


def strong(key: Any, inputs: Any) -> Any:
    """The strong augmentation, without chance."""
    return 0.7 * inputs[:, ::-1] - 0.1


def normalized(raw: Any) -> Any:
    """Raw inputs as the network sees them."""
    return (raw - 0.4) / 1.3


def first_weights() -> dict[str, dict[str, np.ndarray]]:
    """The network's first weights: a hidden layer and two heads."""
    rng = np.random.default_rng(11)
    shapes = {"body": (toy.NUM_FEATURES, WIDTH)} | dict.fromkeys(
        ("head", "aux_head"), (WIDTH, toy.NUM_CLASSES)
    )
    return {
        name: {"kernel": rng.normal(size=shape), "bias": 0.3 * rng.normal(size=shape[1:])}
        for name, shape in shapes.items()
    }


def forward(params: Any, inputs: Any, xp: Any = np) -> models.Outputs:
    """The network, in NumPy or in JAX."""
    hidden = xp.tanh(inputs @ params["body"]["kernel"] + params["body"]["bias"])
    logits, aux = (
        hidden @ params[head]["kernel"] + params[head]["bias"] for head in ("head", "aux_head")
    )
    return models.Outputs(logits, hidden, aux)


def network() -> models.Model:
    """The network as a model of the package."""
    return models.Model(
        lambda key: (jax.tree.map(jnp.asarray, first_weights()), {}),
        lambda params, state, inputs, **how: (forward(params, inputs, jnp), state),
    )


def counting_network() -> models.Model:
    """The network, with the number of passes in training as its running batch statistics."""

    def apply(params: Any, state: Any, inputs: Any, *, train: bool, **how: Any) -> Any:
        return forward(params, inputs, jnp), {"passes": state["passes"] + float(train)}

    return models.Model(lambda key: (network().init(key)[0], {"passes": jnp.zeros(())}), apply)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Row by row."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def cross_entropy(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | float = CLASS_WEIGHTS
) -> np.ndarray:
    """Every row's -w_y log p_y; 0 where the label is -1."""
    chosen = softmax(scores)[np.arange(len(labels)), labels]
    per_class = np.broadcast_to(weights, scores.shape[-1:])[labels]
    return np.where(labels >= 0, -per_class * np.log(chosen), 0.0)


def slope_of(loss: Loss, params: Params) -> dict[str, dict[str, np.ndarray]]:
    """Return the gradient by central differences."""
    slopes: dict[str, dict[str, np.ndarray]] = {}
    for layer, parts in params.items():
        slopes[layer] = {}
        for name, values in parts.items():
            found = np.zeros_like(values)
            for place in np.ndindex(values.shape):
                sides = []
                for sign in (1, -1):
                    moved = values.copy()
                    moved[place] += sign * STEP
                    sides.append(loss({**params, layer: {**parts, name: moved}}))
                found[place] = (sides[0] - sides[1]) / (2 * STEP)
            slopes[layer][name] = found
    return slopes


def descended(loss: Loss, params: Params, rate: float = RATE) -> dict[str, dict[str, np.ndarray]]:
    """Return the parameters after a plain gradient step."""
    return jax.tree.map(lambda w, g: w - rate * g, dict(params), slope_of(loss, params))


def mean_of(trees: list[Any], weights: Any) -> Any:
    """Return the weighted mean of parameters."""
    shares = np.asarray(weights, float) / np.sum(weights)
    return jax.tree.map(lambda *own: sum(s * w for s, w in zip(shares, own, strict=True)), *trees)


def federated_step(
    losses: list[Loss], params: Params, logged: float, sizes: tuple[int, ...] = SIZES
) -> dict[str, dict[str, np.ndarray]]:
    """Return the next global network after one step of every client, whose mean loss is compared
    with the one that was logged.
    """
    np.testing.assert_allclose(logged, np.mean([loss(params) for loss in losses]), rtol=1e-9)
    return mean_of([descended(loss, params) for loss in losses], sizes)


def assert_step(
    run: "Rounds",
    losses: list[Loss],
    before: Params,
    *,
    round: int = 1,
    sizes: tuple[int, ...] = SIZES,
    atol: float = 2e-9,
) -> dict[str, dict[str, np.ndarray]]:
    """Compare a round with one step of every client, and return the network after it."""
    after = federated_step(losses, before, run.infos[round - 1]["loss"], sizes)
    assert_same(run.params(round), after, atol)
    return after


def supervised(examples: "Examples", factor: float = 1.0) -> Loss:
    """Mean cross-entropy on the class labels, weakly augmented; 0 without any."""
    known = examples.labelled

    def loss(params: Params) -> float:
        rows = cross_entropy(forward(params, known.view).logits, known.observed)
        return factor * float(np.sum(rows)) / max(len(rows), 1)

    return loss


def added(*losses: Loss) -> Loss:
    """The sum of losses."""
    return lambda params: sum(loss(params) for loss in losses)


def observed_loss(
    logits: np.ndarray, examples: "Examples", matrix: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """Every row's loss of what was observed: cross-entropy of a class label; -log Q_m of set m with
    Q_m = share_m sum_k matrix_mk eta_k / prior_k, normalized (FedUL, theorem 1); else 0.
    """
    q = share * ((softmax(logits) / PRIOR) @ matrix.T)
    q = (q / q.sum(axis=1, keepdims=True))[np.arange(len(q)), examples.weak]
    of_set = np.where(examples.weak >= 0, -np.log(np.where(examples.weak >= 0, q, 1)), 0)
    return np.where(examples.observed >= 0, cross_entropy(logits, examples.observed), of_set)


def with_teacher(
    loss_of: Callable[[Params, int], Loss], steps: int, decay: float
) -> tuple[Any, Any, list[float]]:
    """Return the student, its teacher and the losses after steps from the first weights.

    Args:
        loss_of: teacher and place of the step -> loss of the student.
        steps: of the student.
        decay: largest decay of the teacher.
    """
    student = teacher = first_weights()
    losses = []
    for step in range(steps):
        loss = loss_of(teacher, step)
        losses.append(loss(student))
        student = descended(loss, student)
        keep = min(1 - 1 / (step + 2), decay)
        teacher = mean_of([teacher, student], [keep, 1 - keep])
    return student, teacher, losses


def assert_taught(
    run: "Rounds", trained: list[tuple[Any, Any, list[float]]], term: str, sizes: tuple[int, ...]
) -> None:
    """Compare a round with clients of `with_teacher`."""
    students, teachers, losses = zip(*trained, strict=True)
    assert run.infos[0]["loss"] == pytest.approx(np.mean(losses), rel=1e-9)
    assert_same(run.params(), mean_of(list(students), sizes), atol=1e-8)
    found = run.states[-1].terms[term].params
    assert_same(found, mean_of(list(teachers), sizes), atol=1e-8)


def size_of(params: Params) -> float:
    """Sum of the parameters' absolute values."""
    return sum(float(np.abs(leaf).sum()) for leaf in jax.tree.leaves(dict(params)))


def mixup_share(alpha: float) -> float:
    """The share of the first of two in a mixture, by Johnk's method from `UNIFORM`."""
    first, second = (draw ** (1 / alpha) for draw in UNIFORM)
    assert first + second <= 1, "else the draw is repeated"
    return first / (first + second)


def assert_same(found: Any, expected: Any, atol: float = 2e-9) -> None:
    """Two trees of parameters agree."""
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, atol=atol), found, expected
    )


def adversarial(params: Params, seen: np.ndarray, radius: float) -> np.ndarray:
    """Perturbations of length `radius` after one power iteration: g = H u for every row, with H the
    Hessian of KL(p(x) || p(x + d)) at d = 0, which is J^T (diag p - p p^T) J.
    """
    start = normal_draws(seen.shape)
    start = start / (np.linalg.norm(start, axis=1, keepdims=True) + 1e-8)
    p = softmax(forward(params, seen).logits)
    columns = []
    for place in range(seen.shape[1]):
        moved = STEP * np.eye(seen.shape[1])[place]
        ahead, behind = (forward(params, seen + sign * moved).logits for sign in (1, -1))
        columns.append((ahead - behind) / (2 * STEP))
    slopes = np.stack(columns, axis=2)  # [n, K, d]
    pushed = np.einsum("nkd,nd->nk", slopes, start)
    inner = p * pushed - p * np.sum(p * pushed, axis=1, keepdims=True)
    direction = np.einsum("nkd,nk->nd", slopes, inner)
    return radius * direction / (np.linalg.norm(direction, axis=1, keepdims=True) + 1e-8)


def cycled(count: int, length: int) -> np.ndarray:
    """The places of an endless sequence of passes over examples, as `without_chance` has it; none
    where there is no example.
    """
    return (count - 1 - np.arange(length) % max(count, 1))[: length * (count > 0)]


def normal_draws(shape: tuple[int, ...]) -> np.ndarray:
    """What replaces normal draws."""
    return np.random.default_rng(1).normal(size=shape)


@contextlib.contextmanager
def without_chance() -> Iterator[None]:
    """Random bits count downwards, so that every permutation is the reversed order; uniform and
    normal draws are always the same.
    """

    def bits(key: jax.Array, shape: tuple[int, ...] = (), dtype: Any = jnp.uint32) -> jax.Array:
        return jnp.arange(prod(shape), dtype=dtype)[::-1].reshape(shape)

    def normal(key: jax.Array, shape: tuple[int, ...] = (), *rest: Any) -> jax.Array:
        return jnp.asarray(normal_draws(shape))

    def uniform(key: jax.Array, shape: tuple[int, ...] = (), *rest: Any, **named: Any) -> jax.Array:
        return jnp.broadcast_to(jnp.asarray(UNIFORM), shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "bits", bits)
        patch.setattr(jax.random, "normal", normal)
        patch.setattr(jax.random, "uniform", uniform)
        yield


class Examples(NamedTuple):
    """The examples of one client, those with a class label first."""

    raw: np.ndarray
    observed: np.ndarray  # class label, -1 = none
    weak: np.ndarray | None = None  # coarse label or set, -1 = none

    @property
    def plain(self) -> np.ndarray:
        """As the network sees them when it predicts."""
        return normalized(self.raw)

    @property
    def view(self) -> np.ndarray:
        """Weakly augmented, as the network sees them."""
        return normalized(weak(None, self.raw))

    @property
    def strong(self) -> np.ndarray:
        """Strongly augmented, as the network sees them."""
        return normalized(strong(None, self.raw))

    def at(self, places: Any) -> "Examples":
        """Those at some places."""
        return Examples(*(None if x is None else x[places] for x in self))

    @property
    def labelled(self) -> "Examples":
        """Those with a class label."""
        return self.at(self.observed >= 0)

    @property
    def others(self) -> "Examples":
        """Those without a class label."""
        return self.at(self.observed < 0)


def client_of(data: FederatedData, client: int) -> Examples:
    """The examples of a client."""
    size = int(data.num_examples[client])
    rows = np.asarray(data.index)[client, :size]
    weak_labels = None if data.weak is None else np.asarray(data.weak.labels)[client, :size]
    return Examples(np.asarray(data.inputs)[rows], np.asarray(data.observed)[rows], weak_labels)


def clients_of(data: FederatedData) -> list[Examples]:
    """The examples of all clients."""
    return [client_of(data, client) for client in range(data.num_clients)]


def server_of(data: FederatedData) -> Examples:
    """The labelled examples of the server."""
    rows = np.asarray(data.server_index)
    return Examples(np.asarray(data.inputs)[rows], np.asarray(data.observed)[rows])


def federation(labelled: tuple[int, ...] = LABELLED, **options: Any) -> FederatedData:
    """Clients of unequal sizes; options of `toy.federation` win."""
    given = {"sizes": SIZES, "labelled": labelled, "num_test": 1, "noise": 1.0, **options}
    with jax.enable_x64(True):
        return toy.federation(**given)


def with_sets() -> FederatedData:
    """A federation whose examples without a label are in sets, and whose test has a prior."""
    made = federation(weak="sets")
    with jax.enable_x64(True):
        return dataclasses.replace(made, weak=toy.changed(made.weak, prior=PRIOR))


def with_fewer_weak(data: FederatedData, numbers: tuple[int, ...]) -> FederatedData:
    """The same federation in which each client has so many weak labels, and knows nothing of the
    examples behind these.
    """
    labels = np.array(data.weak.labels)
    for client, number in enumerate(numbers):
        labels[client, int(data.num_labelled[client]) + number :] = -1
    weak_labels = toy.changed(data.weak, labels=labels, num_examples=numbers)
    return dataclasses.replace(data, weak=weak_labels)


def sets_of(data: FederatedData, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Class shares of every set of a client, and each set's share of its examples in sets."""
    return np.asarray(data.weak.matrix)[client], np.asarray(data.weak.share)[client]


class Rounds(NamedTuple):
    """Rounds that a method took."""

    method: federated.Method
    states: list[ServerState]  # before the first, and after each
    infos: list[dict[str, float]]

    def params(self, number: int = -1) -> Any:
        """The network's parameters in one of the states."""
        return jax.tree.map(np.asarray, self.states[number].params["model"])


def rounds_of(
    name: str,
    data: FederatedData,
    number: int = 1,
    *,
    start: Callable[[ServerState], ServerState] = lambda state: state,
    run: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Rounds:
    """Build a method as a run does, and take rounds.

    Args:
        name: of the method.
        data: the federation.
        number: of rounds.
        start: state before the first round -> the one to begin with.
        run: fields of `Setup` that differ.
        **settings: the method's own.
    """
    setup = toy.setup(
        data,
        **{
            "model": network(),
            "normalize": normalized,
            "augment": weak,
            "strong_augment": strong,
            "learning_rate": RATE,
            "loss": objectives.supervised_loss(class_weights=tuple(CLASS_WEIGHTS)),
            "weighting": "examples",
            "batch_size": BATCH,
            "local_epochs": 1,
            **(run or {}),
        },
    )
    with without_chance():
        method = methods.build(name, setup, **settings)
        first = start(jax.jit(method.init)(KEY, data))
        return Rounds(method, *toy.every_state(method, KEY, data, number, first))


def in_round(number: int) -> Callable[[ServerState], ServerState]:
    """Begin with a later round."""
    return lambda state: state._replace(round=jnp.asarray(number, state.round.dtype))
