import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import runs
from fedjax_ssl.config import ConfigNote, load, resolve
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import OPTIMIZERS, SCHEDULES, learning_rate_schedule, local_optimizer
from fedjax_ssl.federated.local_optimizer import LocalOptimizer, at_rate, descend, over_layers
from fedjax_ssl.federated.packing import packing
from tests import toy
from tests.federated.test_average_optimizer import after, method_of, own_id, pull

GRADIENTS = np.array([[1.0, -2.0, 0.5], [0.3, 0.1, -0.2], [-1.0, 4.0, 0.0]])
START = np.array([0.5, -1.0, 2.0])
RATE = 0.1


def run(optimizer: LocalOptimizer) -> np.ndarray:
    """Three steps the way the client takes them: parameters minus rate times the update."""
    weights = {"model": jnp.asarray(START, jnp.result_type(float))}
    state = optimizer.init(weights)
    for gradient in GRADIENTS:
        gradient = {"model": jnp.asarray(gradient, weights["model"].dtype)}
        weights, state = descend(optimizer, gradient, state, weights, jnp.asarray(RATE))
    return np.asarray(weights["model"])


def test_sgd_is_a_plain_step_with_l2_added_to_the_gradient(float64) -> None:
    weights = START.copy()
    for gradient in GRADIENTS:
        weights = weights - RATE * (gradient + 0.01 * weights)
    np.testing.assert_allclose(run(local_optimizer("sgd", weight_decay=0.01)), weights, rtol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(float64, nesterov: bool) -> None:
    weights = START.copy()
    velocity = np.zeros(3)
    for gradient in GRADIENTS:
        gradient = gradient + 0.02 * weights
        velocity = 0.9 * velocity + gradient
        weights = weights - RATE * (gradient + 0.9 * velocity if nesterov else velocity)
    optimizer = local_optimizer("sgd", momentum=0.9, nesterov=nesterov, weight_decay=0.02)
    np.testing.assert_allclose(run(optimizer), weights, rtol=1e-12)


def test_clipping_then_decay_then_nesterov_worked_example(float64) -> None:
    """SemiFL, section 4 (order of the step): rate 0.03, momentum 0.9, weight decay 5e-4, largest
    norm 1.
    """
    optimizer = local_optimizer(
        "sgd", momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0
    )
    weights = {"model": jnp.asarray([3.0, -4.0])}
    state = optimizer.init(weights)
    expected = [[2.9657145, -4.0454860], [2.91681354, -4.11036209]]
    for number, result in enumerate(expected):
        gradient = {"model": jnp.asarray([6.0, 8.0])}
        weights, state = descend(optimizer, gradient, state, weights, jnp.asarray(0.03))
        np.testing.assert_allclose(weights["model"], result, atol=5e-8 if number == 0 else 5e-9)


def test_short_gradients_are_not_clipped(float64) -> None:
    plain = local_optimizer("sgd", weight_decay=0.01)
    clipped = local_optimizer("sgd", weight_decay=0.01, clip_norm=9.0)
    np.testing.assert_array_equal(run(plain), run(clipped))
    factor = 0.5 / (np.linalg.norm(GRADIENTS[0]) + 1e-6)
    optimizer = local_optimizer("sgd", clip_norm=0.5)
    weights = {"model": jnp.asarray(START)}
    gradient = {"model": jnp.asarray(GRADIENTS[0])}
    added, _ = optimizer.update(gradient, optimizer.init(weights), weights, jnp.asarray(1.0))
    np.testing.assert_allclose(added["model"], -factor * GRADIENTS[0], rtol=1e-14)


def test_rmsprop_is_the_formula_of_protofssl(float64) -> None:
    """v <- 0.9 v + 0.1 g^2, w <- w - rate * g / (sqrt(v) + 1e-7), v starts at 0 (ProtoFSSL
    section 7).
    """
    weights = START.copy()
    square = np.zeros(3)
    for gradient in GRADIENTS:
        square = 0.9 * square + 0.1 * gradient**2
        weights = weights - RATE * gradient / (np.sqrt(square) + 1e-7)
    np.testing.assert_allclose(run(local_optimizer("rmsprop")), weights, rtol=1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_adam_is_the_published_formula(wide: bool) -> None:
    """Kingma and Ba, ICLR 2015, with bias correction."""
    weights = START.copy()
    first = np.zeros(3)
    second = np.zeros(3)
    for step, gradient in enumerate(GRADIENTS, 1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        weights = weights - RATE * (first / (1 - 0.9**step)) / (
            np.sqrt(second / (1 - 0.999**step)) + 1e-8
        )
    with jax.enable_x64(wide):
        np.testing.assert_allclose(
            run(local_optimizer("adam")), weights, rtol=1e-7 if wide else 1e-5
        )


# one is large
LAYERS = {"a": {"kernel": (70, 64), "bias": (64,)}, "b": {"kernel": (64, 3), "bias": (3,)}}


def arrays(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape)),
        LAYERS,
        is_leaf=lambda x: type(x) is tuple,
    )


@pytest.mark.parametrize(
    "name",
    [
        "optax:adamw",
        "optax:lamb",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("optax:adafactor", "optax:lion", "optax.contrib:muon", "optax.contrib:dog")
        ),
    ],
)
def test_optimizers_of_optax_take_its_steps_on_packed_parameters(float64, name: str) -> None:
    start = arrays(0)
    pack = packing(start)
    optimizer = over_layers(local_optimizer(name), lambda: {"model": start})
    theirs = OPTIMIZERS.builder(name)(learning_rate=RATE)
    found = {"model": pack.pack(start)}
    expected = start
    state = optimizer.init(found)
    their_state = theirs.init(start)
    step = jax.jit(lambda *given: descend(optimizer, *given))  # the rate is traced
    for seed in (1, 2, 3):
        found, state = step({"model": pack.pack(arrays(seed))}, state, found, jnp.asarray(RATE))
        with jax.numpy_dtype_promotion("standard"):
            updates, their_state = theirs.update(arrays(seed), their_state, expected)
        expected = optax.apply_updates(expected, updates)
    moved = jax.tree.map(jnp.subtract, expected, start)
    assert all(float(jnp.abs(leaf).max()) > 1e-9 for leaf in jax.tree.leaves(moved))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9),
        pack.unpack(found["model"]),
        expected,
    )


def test_options_reach_optax(float64) -> None:
    weights = jnp.asarray(START)
    gradient = jnp.asarray(GRADIENTS[0])

    def moved(found, theirs, gradient_of_theirs) -> None:
        for optimizer, slope in ((at_rate(found, RATE), gradient), (theirs, gradient_of_theirs)):
            with jax.numpy_dtype_promotion("standard"):
                added.append(optimizer.update(slope, optimizer.init(weights), weights)[0])
        np.testing.assert_allclose(*added[-2:], rtol=1e-12)

    added: list = []
    assert OPTIMIZERS.options("optax:lion")["b1"].type is float
    lion = local_optimizer("optax:lion", b1=0.8, weight_decay=0.1)
    moved(lion, optax.lion(RATE, b1=0.8, weight_decay=0.1), gradient)
    moved(local_optimizer("sgd", momentum=0.9), optax.sgd(RATE, 0.9), gradient)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("optax:adamw", {"keep_optimizer": True}),
        pytest.param(
            "optax.contrib:prodigy", {"average_optimizer": True}, marks=pytest.mark.thorough
        ),
    ],
)
def test_any_state_is_kept_and_averaged(name: str, kept: dict) -> None:
    data = toy.federation()
    local = {"local_optimizer": local_optimizer(name), "learning_rate": 0.1, **kept}
    states = [
        after(
            toy.executed(method_of(data, pull("id", own_id), steps=2, **local), placement=how),
            data,
            2,
        )[0]
        for how in ("sequential", "lanes")
    ]
    one, other = (
        [np.asarray(leaf) for leaf in jax.tree.leaves((s.params, s.clients, s.local_optimizer))]
        for s in states
    )
    assert len(one) > 3 and all(np.isfinite(leaf).all() for leaf in one)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), one, other)


def test_schedules_are_those_of_optax() -> None:
    length = 20
    rate = 0.3
    theirs = {
        "constant": optax.constant_schedule(rate),
        "cosine": optax.cosine_decay_schedule(rate, length),
        "exponential": optax.exponential_decay(rate, length, 0.1),
        "piecewise": optax.piecewise_constant_schedule(rate, {10: 0.1, 15: 0.1}),
        "linear": optax.linear_schedule(rate, 0.0, length),
        "warmup": optax.warmup_constant_schedule(rate / 3, rate, 2),
        "warmup_cosine": optax.warmup_cosine_decay_schedule(rate / 3, rate, 2, length),
    }
    assert set(theirs) == set(SCHEDULES)
    for name, schedule in theirs.items():
        own = jax.jit(learning_rate_schedule(name, rate, length))
        for number in (0, 1, 2, 9, 10, 14, 15, 19, 20, 30):
            expected = float(schedule(number))
            assert float(own(jnp.int32(number))) == pytest.approx(expected, rel=1e-6, abs=1e-7), (
                name,
                number,
            )


def settings_of(**fields):
    given = {"rounds": 4, "eval_every": 2, "optimizer.learning_rate": 0.3}
    given |= {name.replace("__", "."): value for name, value in fields.items()}
    return load("digits_fedavg", given)


MINE = """import optax

def optimizer(learning_rate, power: float = 0.9):
    return optax.chain(optax.trace(power), optax.scale_by_learning_rate(learning_rate))

def fixed():
    return optax.sgd(0.3)

def number(learning_rate):
    return 3.0

def losses(learning_rate):
    return optax.polyak_sgd()

def step_decay(round):
    return 0.3 if round < 2 else optax.constant_schedule(0.1)(round) * optax.linear_schedule(1.0, 1.0, 2)(round)

def negative(round):
    return 0.1 - 0.06 * round
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> None:
    (tmp_path / "mine_here.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "name",
            "mine_here:number",
            r"returned float; it has to return a GradientTransformation \(.*py, line 9\)",
        ),
        (
            "name",
            "mine_here:losses",
            r"cannot take a local step: .*'value'.* \(.*mine_here.py, line 12\)",
        ),
        (
            "schedule",
            "mine_here:negative",
            r"returned -0.0.* in round 2; .* \(.*mine_here.py, line 18\)",
        ),
        (
            "schedule",
            "exponental",
            r"config.optimizer.schedule is 'exponental'. Did you mean 'exponential'",
        ),
    ],
)
def test_what_is_wrong_with_code_of_ones_own_is_a_line(
    mine, field: str, value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(settings_of(**{f"optimizer__{field}": value}))
    assert "\n" not in str(caught.value)


@pytest.mark.thorough
def test_the_rate_of_a_run_is_a_column_and_a_function_of_ones_own_says_it(mine, tmp_path) -> None:
    def trained(folder: str, **fields) -> tuple[list[float], float]:
        fields = {f"optimizer__{field}": value for field, value in fields.items()}
        summary = runs.run(settings_of(**fields), tmp_path / folder, quiet=True)
        lines = (tmp_path / folder / "metrics.csv").read_text().splitlines()
        at = lines[0].split(",").index("learning_rate")
        return [float(line.split(",")[at]) for line in lines[1:]], summary["test_accuracy"]

    piecewise = {
        "schedule": "piecewise_constant",
        "schedule_boundaries": (2,),
        "schedule_factor": 1 / 3,
    }
    rates, accuracy = trained("a", **piecewise, momentum=0.9)
    assert rates == pytest.approx([0.3, 0.1])
    with pytest.warns(
        ConfigNote, match=r"learning_rate=0.3 has no effect: .*=mine_here:step_decay"
    ):
        own_rates, own_accuracy = trained(
            "b", name="mine_here:optimizer", schedule="mine_here:step_decay"
        )
    assert own_rates == pytest.approx(rates) and own_accuracy == pytest.approx(accuracy, abs=0.01)
    with pytest.warns(ConfigNote, match="has no effect: optimizer 'mine_here:fixed' has its own"):
        assert np.isnan(trained("c", name="mine_here:fixed")[0]).all()


def test_a_sweep_over_rates_of_adamw_is_one_program(tmp_path) -> None:
    shared = runs.Shared()
    codes = {
        shared.program(
            resolve(settings_of(optimizer__name="optax:adamw", optimizer__learning_rate=rate))
        ).code
        for rate in (0.1, 0.2)
    }
    assert len(codes) == 1


def test_cosine_schedule_of_the_paper() -> None:
    """XCLP section 5.3: 2,000 schedule rounds for 1,500 rounds; the last factor is 0.1470."""
    schedule = learning_rate_schedule("cosine", 1.0, 2000)
    factors = [float(schedule(jnp.asarray(number, jnp.int32))) for number in (0, 500, 1000, 1499)]
    expected = [0.5 * (1 + math.cos(math.pi * number / 2000)) for number in (0, 500, 1000, 1499)]
    np.testing.assert_allclose(factors, expected, atol=1e-6)
    assert round(factors[-1], 4) == 0.1470
    assert factors[0] == 1.0


def test_the_rate_may_be_traced() -> None:
    number = jnp.asarray(5, jnp.int32)
    for name in ("constant", "cosine"):
        rates = jax.vmap(lambda rate, name=name: learning_rate_schedule(name, rate, 10)(number))(
            jnp.asarray([0.1, 0.2], jnp.float32)
        )
        assert float(rates[1]) == pytest.approx(2 * float(rates[0]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: local_optimizer("optax.contrib:rprop"),
            "'optax.contrib:rprop' cannot be used: its steps do not follow the learning rate",
        ),
        (
            lambda: local_optimizer("optax:polyak_sgd"),
            "optimizer 'optax:polyak_sgd' cannot take a local step: .*value",
        ),
        (
            lambda: learning_rate_schedule("warmup_cosine", 0.1, 5, schedule_warmup=5),
            "leave rounds for the cosine",
        ),
    ],
)
def test_bad_settings_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
