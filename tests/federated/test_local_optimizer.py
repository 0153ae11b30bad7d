import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl.federated import learning_rate_schedule, local_optimizer

GRADIENTS = np.array([[1.0, -2.0, 0.5], [0.3, 0.1, -0.2], [-1.0, 4.0, 0.0]])
START = np.array([0.5, -1.0, 2.0])
RATE = 0.1


def run(optimizer: optax.GradientTransformation) -> np.ndarray:
    """Three steps the way the client takes them: parameters minus rate times the update."""
    weights = {"model": jnp.asarray(START, jnp.result_type(float))}
    state = optimizer.init(weights)
    for gradient in GRADIENTS:
        updates, state = optimizer.update({"model": jnp.asarray(gradient, weights["model"].dtype)}, state, weights)
        weights = jax.tree.map(lambda w, u: w - RATE * u, weights, updates)
    return np.asarray(weights["model"])


def test_sgd_is_a_plain_step_with_l2_added_to_the_gradient(float64) -> None:
    weights = START.copy()
    for gradient in GRADIENTS:
        weights = weights - RATE * (gradient + 0.01 * weights)
    np.testing.assert_allclose(run(local_optimizer("sgd", weight_decay=0.01)), weights, rtol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(float64, nesterov: bool) -> None:
    weights, velocity = START.copy(), np.zeros(3)
    for gradient in GRADIENTS:
        gradient = gradient + 0.02 * weights
        velocity = 0.9 * velocity + gradient
        weights = weights - RATE * (gradient + 0.9 * velocity if nesterov else velocity)
    optimizer = local_optimizer("sgd", momentum=0.9, nesterov=nesterov, weight_decay=0.02)
    np.testing.assert_allclose(run(optimizer), weights, rtol=1e-12)


def test_clipping_then_decay_then_nesterov_worked_example(float64) -> None:
    """SemiFL, section 4 (order of the step): rate 0.03, momentum 0.9, weight decay 5e-4, largest norm 1."""
    optimizer = local_optimizer("sgd", momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0)
    weights = {"model": jnp.asarray([3.0, -4.0])}
    state = optimizer.init(weights)
    expected = [[2.9657145, -4.0454860], [2.91681354, -4.11036209]]
    for number, result in enumerate(expected):
        updates, state = optimizer.update({"model": jnp.asarray([6.0, 8.0])}, state, weights)
        weights = jax.tree.map(lambda w, u: w - 0.03 * u, weights, updates)
        np.testing.assert_allclose(weights["model"], result, atol=5e-8 if number == 0 else 5e-9)


def test_short_gradients_are_not_clipped(float64) -> None:
    plain, clipped = local_optimizer("sgd", weight_decay=0.01), local_optimizer("sgd", weight_decay=0.01, clip_norm=9.0)
    np.testing.assert_array_equal(run(plain), run(clipped))
    factor = 0.5 / (np.linalg.norm(GRADIENTS[0]) + 1e-6)
    optimizer = local_optimizer("sgd", clip_norm=0.5)
    weights = {"model": jnp.asarray(START)}
    updates, _ = optimizer.update({"model": jnp.asarray(GRADIENTS[0])}, optimizer.init(weights), weights)
    np.testing.assert_allclose(updates["model"], factor * GRADIENTS[0], rtol=1e-14)


def test_rmsprop_is_the_formula_of_protofssl(float64) -> None:
    """v <- 0.9 v + 0.1 g^2, w <- w - rate * g / (sqrt(v) + 1e-7), v starts at 0 (ProtoFSSL section 7)."""
    weights, square = START.copy(), np.zeros(3)
    for gradient in GRADIENTS:
        square = 0.9 * square + 0.1 * gradient**2
        weights = weights - RATE * gradient / (np.sqrt(square) + 1e-7)
    np.testing.assert_allclose(run(local_optimizer("rmsprop")), weights, rtol=1e-12)


@pytest.mark.parametrize("wide", [False, True])
def test_adam_is_the_published_formula(wide: bool) -> None:
    """Kingma and Ba, ICLR 2015, with bias correction."""
    weights, first, second = START.copy(), np.zeros(3), np.zeros(3)
    for step, gradient in enumerate(GRADIENTS, 1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        weights = weights - RATE * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    with jax.enable_x64(wide):
        np.testing.assert_allclose(run(local_optimizer("adam")), weights, rtol=1e-7 if wide else 1e-5)


def test_cosine_schedule_of_the_paper() -> None:
    """XCLP section 5.3: 2,000 schedule rounds for 1,500 rounds; the last factor is 0.1470."""
    schedule = learning_rate_schedule("cosine", 1.0, 2000)
    factors = [float(schedule(jnp.asarray(number, jnp.int32))) for number in (0, 500, 1000, 1499)]
    expected = [0.5 * (1 + math.cos(math.pi * number / 2000)) for number in (0, 500, 1000, 1499)]
    np.testing.assert_allclose(factors, expected, atol=1e-6)
    assert round(factors[-1], 4) == 0.1470
    assert factors[0] == 1.0


def test_cosine_schedule_ends_at_zero_and_scales_with_the_rate() -> None:
    schedule = learning_rate_schedule("cosine", 0.3, 10)
    assert float(schedule(jnp.asarray(0, jnp.int32))) == pytest.approx(0.3)
    assert float(schedule(jnp.asarray(10, jnp.int32))) == pytest.approx(0.0, abs=1e-7)
    assert float(schedule(jnp.asarray(25, jnp.int32))) == pytest.approx(0.0, abs=1e-7)


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
        (lambda: local_optimizer("lamb"), "'lamb'.*sgd, adam, rmsprop"),
        (lambda: local_optimizer("sgd", momentum=1.0), r"momentum is 1.0.*\[0, 1\)"),
        (lambda: local_optimizer("sgd", momentum=-0.1), "momentum is -0.1"),
        (lambda: local_optimizer("sgd", clip_norm=0.0), "clip_norm is 0.0; it must be a number above 0"),
        (lambda: learning_rate_schedule("linear", 0.1), "'linear'.*constant, cosine"),
        (lambda: learning_rate_schedule("cosine", 0.1, 0), "schedule_rounds is 0"),
    ],
)
def test_bad_settings_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
