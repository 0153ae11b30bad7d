"""FixMatch, UDA, MixMatch, mean teacher, VAT, Pi-model and Pseudo-label against softmax regression
in NumPy.

A batch holds all examples of the one client, and augmentations multiply all rows alike, so that no
order is left.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import federated, methods, presets
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.consistency import shuffled
from fedjax_ssl.objectives import fixmatch_loss, mixup_share
from tests import toy
from tests.methods import cases

KEY = jax.random.key(3)
RATE = 0.1
STEPS = 2
PLAIN = ("fixmatch", "uda", "pseudo_label")  # with batches of four; the others take one and one
# What is fixed when a program is compiled; all other settings are arguments of it.
FIXED: dict[str, dict[str, Any]] = {
    "fixmatch": {"unlabelled_ratio": 1},
    "uda": {"unlabelled_ratio": 1, "tsa_rounds": 4},
    "pseudo_label": {"unlabelled_ratio": 1, "ramp_start": 0, "ramp_end": 2},
    "pi_model": {"labelled_too": False, "ramp_rounds": 1},
    "mean_teacher": {"labelled_too": False, "unlabelled_ratio": 1, "ramp_rounds": 1},
    "vat": {"labelled_too": False, "unlabelled_ratio": 1},
    "mixmatch": {"ramp_rounds": 1},
}
NUMBERS: dict[str, dict[str, float]] = {
    "fixmatch": {"threshold": 0.5, "ema_decay": 0.4},
    "uda": {"threshold": 0.5, "temperature": 0.4},
    "pseudo_label": {"threshold": 0.0},
    "pi_model": {"unlabelled_weight": 20.0},
    "mean_teacher": {"unlabelled_weight": 20.0, "decay": 0.3},
    "vat": {"radius": 0.7, "entropy_weight": 0.5},
    "mixmatch": {"unlabelled_weight": 20.0, "temperature": 0.5},
}


def louder(key: jax.Array, inputs: jax.Array) -> jax.Array:
    return inputs * (1 + 0.3 * jax.random.normal(key, (), inputs.dtype))


def halved(key: jax.Array, inputs: jax.Array) -> jax.Array:
    return 0.5 * inputs


@functools.cache
def program(name: str, fixed: tuple[tuple[str, Any], ...] = ()) -> Callable[..., Any]:
    """(data, numbers) -> start, (states, infos) of two rounds; compiled once for all numbers."""

    @jax.jit
    def train(data: Any, numbers: dict[str, jax.Array]) -> tuple[Any, tuple[Any, Any]]:
        plain = name in PLAIN
        run = toy.setup(data, model=toy.linear_model(), learning_rate=RATE, local_epochs=STEPS)
        run = run._replace(
            batch_size=4 if plain else 1,
            augment=toy.same if plain else louder,
            strong_augment=halved,
            max_labelled=4,
        )
        method = methods.build(name, run, **{**FIXED[name], **dict(fixed), **numbers})

        def one_round(state: Any, _: None) -> tuple[Any, Any]:
            after, info = method.round(KEY, state, data)
            return after, (after, info)

        start = method.init(KEY, data)
        return start, jax.lax.scan(one_round, start, length=2)[1]

    return train


@functools.cache
def data_for(name: str) -> Any:
    """Four labelled and four other examples, or one and one."""
    size = 4 if name in PLAIN else 1
    with jax.enable_x64(True):
        return toy.federation(sizes=(2 * size,), labelled=(size,))


def train(name: str, fixed: tuple[tuple[str, Any], ...] = (), **changed: float) -> Any:
    """States at the start and after each of two rounds, and their infos, in float64."""
    numbers = {"labelled_weight": 1.0, "unlabelled_weight": 1.0, **NUMBERS[name], **changed}
    with jax.enable_x64(True):
        found = program(name, fixed)(
            data_for(name), {key: jnp.asarray(x) for key, x in numbers.items()}
        )
        start, after = jax.device_get(found)
    rounds = [jax.tree.map(lambda leaf, at=number: leaf[at], after) for number in range(2)]
    return [start, *(state for state, _ in rounds)], [info for _, info in rounds]


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def square_slope(probs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Of mean (p - t)^2 over rows and classes with respect to the scores."""
    slope = 2 * (probs - targets) / probs.size
    return probs * (slope - (probs * slope).sum(1, keepdims=True))


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(toy.NUM_CLASSES)[labels]


class Oracle:
    """Gradient descent of softmax regression whose loss is given by its slopes with respect to
    scores.
    """

    def __init__(self, name: str, states: Any):
        params = states[0].params["model"]
        data = data_for(name)
        seen = 4 if name in PLAIN else 1
        self.w = np.array(params["w"])
        self.b = np.array(params["b"])
        inputs = np.asarray(data.inputs)
        labels = np.asarray(data.labels)
        self.labelled = inputs[:seen]
        self.targets = one_hot(labels[:seen])
        self.unlabelled = inputs[seen : 2 * seen]
        self.truth = labels[seen : 2 * seen]
        self.teacher: tuple[np.ndarray, np.ndarray] | None = None
        self.coverage: float | None = None  # of the pseudo-labels of the last step
        self.accuracy: float | None = None

    def scores(self, inputs: np.ndarray) -> np.ndarray:
        return inputs @ self.w + self.b

    def supervised(self, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        inputs = scale * self.labelled
        return inputs, (softmax(self.scores(inputs)) - self.targets) / len(inputs)

    def step(self, *pieces: tuple[np.ndarray, np.ndarray]) -> None:
        """Pieces: inputs, and slopes of the loss with respect to their scores."""
        slope_w = sum(inputs.T @ slope for inputs, slope in pieces)
        slope_b = sum(slope.sum(0) for _, slope in pieces)
        self.w = self.w - RATE * slope_w
        self.b = self.b - RATE * slope_b

    def check(self, state: Any, rtol: float = 1e-9) -> None:
        np.testing.assert_allclose(state.params["model"]["w"], self.w, rtol=rtol, atol=1e-12)
        np.testing.assert_allclose(state.params["model"]["b"], self.b, rtol=rtol, atol=1e-12)


VIEWS = ("labelled/weak", "unlabelled/weak", "unlabelled/weak/1")


@jax.jit
def all_draws() -> dict[str, jax.Array]:
    """The random numbers of client 0, by round and step."""

    def draw(number: jax.Array, step: jax.Array) -> dict[str, jax.Array]:
        client = jax.random.fold_in(
            named_key(jax.random.fold_in(named_key(KEY, "round"), number), "client"), 0
        )
        phase = named_key(jax.random.fold_in(named_key(client, "step"), step), "model")
        term = named_key(phase, "consistency")
        one = jnp.ones(())
        return {
            **{view: louder(named_key(phase, view), one) for view in VIEWS},
            "second": louder(named_key(term, "second view"), one),
            "own": louder(named_key(term, "view"), one),
            "start": jax.random.normal(named_key(term, "direction"), (1, toy.NUM_FEATURES)),
            "partner": shuffled(named_key(term, "partners"), jnp.ones(3, bool)),
            "share": jax.vmap(lambda key: mixup_share(key, 0.75))(
                jax.random.split(named_key(term, "shares"), 3)
            ),
        }

    steps = jnp.arange(STEPS)
    return jax.vmap(lambda number: jax.vmap(lambda step: draw(number, step))(steps))(jnp.arange(2))


def draws(number: int, step: int) -> dict[str, Any]:
    with jax.enable_x64(True):
        return {name: np.asarray(values)[number, step] for name, values in all_draws().items()}


def fixmatch(oracle: Oracle, number: int, step: int) -> list[Any]:
    weak = softmax(oracle.scores(oracle.unlabelled))
    inputs = 0.5 * oracle.unlabelled
    confident = weak.max(1) >= 0.5
    assert 0 < confident.sum() < 4, "the example shows both"
    oracle.coverage = confident.mean()
    right = (weak.argmax(1) == oracle.truth)[confident]
    oracle.accuracy = right.mean()
    slope = (softmax(oracle.scores(inputs)) - one_hot(weak.argmax(1))) * confident[:, None] / 4
    known, known_slope = oracle.supervised()
    return [(known, 3 * known_slope), (inputs, 2 * slope)]


def uda(oracle: Oracle, number: int, step: int) -> list[Any]:
    ceiling = np.exp(5 * (number / 4 - 1)) * (1 - 1 / 3) + 1 / 3
    scores = oracle.scores(oracle.unlabelled)
    inputs = 0.5 * oracle.unlabelled
    counted = (softmax(scores).max(1) > 0.5)[:, None]
    slope = (softmax(oracle.scores(inputs)) - softmax(scores / 0.4)) * counted / 4
    known, known_slope = oracle.supervised()
    kept = (softmax(oracle.scores(known)) * oracle.targets).sum(1) <= ceiling
    return [(known, known_slope * kept[:, None] * len(known) / max(kept.sum(), 1)), (inputs, slope)]


def pseudo_label(oracle: Oracle, number: int, step: int) -> list[Any]:
    probs = softmax(oracle.scores(oracle.unlabelled))
    oracle.coverage = 1.0
    slope = 3.0 * (number + 1) / 2 * (probs - one_hot(probs.argmax(1))) / 4
    return [oracle.supervised(), (oracle.unlabelled, slope)]


def mean_teacher(oracle: Oracle, number: int, step: int) -> list[Any]:
    if oracle.teacher is None:
        oracle.teacher = oracle.w, oracle.b
    elif number or step:  # it follows the student of the step before
        keep = min(1 - 1 / (STEPS * number + step + 1), 0.3)
        w, b = oracle.teacher
        oracle.teacher = keep * w + (1 - keep) * oracle.w, keep * b + (1 - keep) * oracle.b
    drawn = draws(number, step)
    inputs = drawn["unlabelled/weak"] * oracle.unlabelled
    targets = softmax(drawn["second"] * oracle.unlabelled @ oracle.teacher[0] + oracle.teacher[1])
    slope = 20 * square_slope(softmax(oracle.scores(inputs)), targets)
    return [oracle.supervised(drawn["labelled/weak"]), (inputs, slope)]


def pi_model(oracle: Oracle, number: int, step: int) -> list[Any]:
    """The gradient moves both passes."""
    drawn = draws(number, step)
    one, other = (drawn[name] * oracle.unlabelled for name in ("unlabelled/weak", "second"))
    p = softmax(oracle.scores(one))
    q = softmax(oracle.scores(other))
    pieces = (one, 20 * square_slope(p, q)), (other, 20 * square_slope(q, p))
    return [oracle.supervised(drawn["labelled/weak"]), *pieces]


def vat(oracle: Oracle, number: int, step: int) -> list[Any]:
    drawn = draws(number, step)
    inputs = drawn["own"] * oracle.unlabelled
    p = softmax(oracle.scores(inputs))
    start = drawn["start"][0] / np.linalg.norm(drawn["start"])
    worst = oracle.w @ (np.diag(p[0]) - np.outer(p[0], p[0])) @ oracle.w.T @ start
    moved = inputs + 0.7 * worst / np.linalg.norm(worst)
    divergence = softmax(oracle.scores(moved)) - p
    entropy = -0.5 * p * (np.log(p) - (p * np.log(p)).sum(1, keepdims=True))
    return [oracle.supervised(drawn["labelled/weak"]), (moved, divergence), (inputs, entropy)]


def mixmatch(oracle: Oracle, number: int, step: int, mixes: bool = True) -> list[Any]:
    drawn = draws(number, step)
    scaled = [drawn[view] * oracle.unlabelled for view in VIEWS[1:]]
    guess = np.mean([softmax(oracle.scores(inputs)) for inputs in scaled], axis=0) ** 2
    guess /= guess.sum()
    inputs = np.concatenate([drawn["labelled/weak"] * oracle.labelled, *scaled])
    targets = np.concatenate([oracle.targets, guess, guess])
    share = np.maximum(drawn["share"], 1 - drawn["share"])[:, None] if mixes else np.ones((3, 1))
    inputs = share * inputs + (1 - share) * inputs[drawn["partner"]]
    targets = share * targets + (1 - share) * targets[drawn["partner"]]
    probs = softmax(oracle.scores(inputs))
    return [
        (inputs[:1], probs[:1] - targets[:1]),
        (inputs[1:], 20 * square_slope(probs[1:], targets[1:])),
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slopes", "weights", "fixed", "rounds"),
    [
        (fixmatch, {"unlabelled_weight": 2.0, "labelled_weight": 3.0}, {}, 2),
        (uda, {}, {}, 2),
        (pseudo_label, {"unlabelled_weight": 3.0}, {}, 2),
        (mean_teacher, {}, {}, 2),
        (pi_model, {}, {}, 1),
        (vat, {}, {}, 1),
        (mixmatch, {}, {}, 1),
        # squared distance to guesses
        (functools.partial(mixmatch, mixes=False), {}, {"mixup_alpha": 1e-3}, 1),
    ],
)
def test_rounds_follow_the_formula(slopes: Any, weights: dict, fixed: dict, rounds: int) -> None:
    name = getattr(slopes, "func", slopes).__name__
    states, infos = train(name, fixed=tuple(fixed.items()), **weights)
    oracle = Oracle(name, states)
    for number in range(rounds):
        for step in range(STEPS):
            oracle.step(*slopes(oracle, number, step))
        # In `vat` unit vectors are divided by their norm plus 1e-8.
        oracle.check(states[number + 1], rtol=1e-6 if name == "vat" else 1e-9)
        for metric in ("coverage", "accuracy"):  # of the pseudo-labels, as they are logged
            if (value := getattr(oracle, metric)) is not None:
                assert infos[number][f"pseudo_label_{metric}"] == pytest.approx(value)


@pytest.mark.thorough
def test_predictions_by_the_moving_average_leave_training_alone() -> None:
    """d = min(1 - 1/t, decay): the first network alone, then 0.4 of it."""
    states, _ = train("fixmatch")
    average = states[2].terms["moving_average"]
    one = states[1].params["model"]["w"]
    two = states[2].params["model"]["w"]
    np.testing.assert_allclose(states[1].terms["moving_average"].params["w"], one, rtol=1e-12)
    np.testing.assert_allclose(average.params["w"], 0.4 * one + 0.6 * two, rtol=1e-12)
    off, _ = train("fixmatch", ema_decay=0.0)
    np.testing.assert_array_equal(off[2].params["model"]["w"], two)
    np.testing.assert_array_equal(off[2].terms["moving_average"].params["w"], two)


@pytest.mark.thorough
def test_a_teacher_without_memory_is_the_pi_model_with_constant_targets() -> None:
    taught, _ = train("mean_teacher", decay=0.0)
    pi, _ = train("pi_model", fixed=(("stop_gradient", True),))
    np.testing.assert_allclose(
        taught[2].params["model"]["w"], pi[2].params["model"]["w"], rtol=1e-12
    )
    supervised, _ = train("mean_teacher", unlabelled_weight=0.0)
    assert np.abs(pi[2].params["model"]["w"] - supervised[2].params["model"]["w"]).max() > 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["fixmatch", "mean_teacher", "pi_model", "vat", "pseudo_label"])
def test_without_weight_on_unlabelled_examples_only_labels_are_learned(name: str) -> None:
    """UDA would still anneal, and MixMatch mix labelled examples with the others."""
    states, _ = train(name, unlabelled_weight=0.0)
    oracle = Oracle(name, states)
    for number in (1, 2):
        for step in range(STEPS):
            oracle.step(
                oracle.supervised(
                    1.0 if name in PLAIN else draws(number - 1, step)["labelled/weak"]
                )
            )
        oracle.check(states[number])


@pytest.mark.thorough
def test_labels_at_the_server() -> None:
    """One step at the server with the weight of labels, two at a client without any."""
    with jax.enable_x64(True):
        data = toy.federation(sizes=(4,), labelled=(0,), server=4)
        run = toy.setup(
            data,
            model=toy.linear_model(),
            local_epochs=STEPS,
            strong_augment=halved,
            max_labelled=0,
        )
        method = methods.build(
            "fixmatch",
            run,
            threshold=0.5,
            labelled_weight=3.0,
            unlabelled_ratio=1,
            ema_decay=0.4,
        )
        start = method.init(KEY, data)
        state, info = jax.device_get(jax.jit(method.round)(KEY, start, data))
    oracle = Oracle("fixmatch", [start])
    inputs = np.asarray(data.inputs)
    labels = np.asarray(data.labels)
    unlabelled = inputs[:4]
    known = inputs[-4:]
    targets = one_hot(labels[-4:])

    oracle.step((known, 3 * (softmax(oracle.scores(known)) - targets) / 4))
    for _ in range(STEPS):
        weak = softmax(oracle.scores(unlabelled))
        strong = 0.5 * unlabelled
        confident = (weak.max(1) >= 0.5)[:, None]
        oracle.step(
            (strong, (softmax(oracle.scores(strong)) - one_hot(weak.argmax(1))) * confident / 4)
        )
    oracle.check(state)
    np.testing.assert_allclose(state.terms["moving_average"].params["w"], oracle.w, rtol=1e-9)
    assert info["local_steps"] == 1 + STEPS and info["clients"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*FIXED])
def test_learns_from_labels_at_the_server(name: str) -> None:
    """With a step or two at the server in a round, most of them drift away on their own
    predictions.
    """
    data = toy.weak_federation("server")
    settings = {**cases.of(name).settings, "server_batch_size": 3, "server_epochs": 10}
    method = methods.build(name, cases.setup(name, data), **settings)
    state, _ = toy.train(method, KEY, data, 16)
    chosen = np.argmax(jax.jit(method.predict)(state, data.inputs), axis=1)[data.test_index]
    assert np.mean(chosen == data.labels[data.test_index]) > 0.8  # chance: 1/3


def test_clients_train_on_what_there_is() -> None:
    """Without unlabelled examples labels are learned alone; without any label there is nothing
    to learn.
    """
    data = toy.federation()
    everything = toy.setup(data, max_unlabelled=0)
    method = methods.build("fixmatch", everything)
    _, info = jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)
    assert "pseudo_label_accuracy" not in info
    with pytest.raises(ValueError, match=r"nothing to learn from.*unlabelled_weight 0\.0"):
        methods.build("fixmatch", toy.setup(data, max_labelled=0), unlabelled_weight=0.0)


@pytest.mark.parametrize("name", [*FIXED])
def test_clients_alone(name: str) -> None:
    """FedMatch's Local-X: what needs a server is refused."""
    run = toy.setup(toy.federation(), federated_optimizer=federated.local(), rounds=8)
    if name == "mean_teacher":
        with pytest.raises(ValueError, match="no server"):
            methods.build(name, run)
    else:
        methods.build(name, run)
        with pytest.raises(ValueError, match="'moving_average' needs one"):
            methods.build(name, run, ema_decay=0.5)


def test_partners_are_a_permutation_of_the_real_rows() -> None:
    real = np.array([True, False, True, True, False])
    draw = jax.jit(shuffled)
    for seed in range(5):
        found = np.asarray(draw(jax.random.key(seed), real))
        assert sorted(found[real]) == [0, 2, 3]


def test_mean_over_confident_rows() -> None:
    """ProtoFSSL's FixMatch; without a confident row the loss is 0."""
    weak = jnp.array([[3.0, 0], [0.1, 0], [0, 4.0]])
    strong = jnp.array([[1.0, 0], [0, 5.0], [0.5, 0]])
    rows = -np.log(softmax(np.asarray(strong)))[[0, 2], [0, 1]]
    everything = jnp.ones(3, bool)
    loss = jax.jit(functools.partial(fixmatch_loss, mask_mean="confident"))
    assert float(loss(weak, strong, everything, 0.9)) == pytest.approx(rows.mean())
    assert float(loss(weak, strong, everything, 0.999)) == 0.0


@pytest.mark.parametrize("name", [*FIXED])
def test_the_digits_have_labels_at_the_writers_or_at_the_server(name: str) -> None:
    at_writers, at_server = (
        configs.resolve(presets.digits_consistency(name, *given))
        for given in ((10,), ("server", 30))
    )
    assert (at_writers.supervision.name, at_writers.supervision.labels) == ("per_client", 10)
    assert (at_server.supervision.name, at_server.supervision.labels) == ("server", 30)
    with pytest.raises(configs.ConfigError, match="labels of writers and of the server"):
        presets.digits_consistency(name, 10, 30)
