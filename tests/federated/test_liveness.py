"""What a traced function takes of memory: counted by hand, and beside a compiler's own account."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from fedjax_ssl.federated.liveness import live_bytes

X = jax.ShapeDtypeStruct((10,), jnp.float32)
M = jax.ShapeDtypeStruct((10, 10), jnp.float32)


def live(function: Callable, *arguments: jax.ShapeDtypeStruct, tiled: bool = False) -> int:
    return live_bytes(jax.make_jaxpr(function)(*arguments), tiled)


def test_what_is_computed_element_by_element_takes_nothing_between() -> None:
    assert live(lambda x: jnp.sin(x) * jnp.cos(x) + 1, X) == 40  # the result
    assert live(lambda x: jax.jit(jnp.sin)(x) * x, X) == 40
    assert live(lambda x: jnp.sum(jnp.exp(x)), X) == 4


def test_products_read_and_write_memory() -> None:
    assert live(lambda m: m @ m, M) == 400
    assert live(lambda m: m @ jnp.sin(m), M) == 800
    # The first product lives until its sine is there, the sine until the second product is.
    assert live(lambda m: m @ jnp.sin(m @ m), M) == 800


def test_equal_values_are_one_and_live_until_their_last_use() -> None:
    def twice(m: jax.Array) -> jax.Array:
        first = (m @ jnp.sin(m)).sum()
        return first * (m @ jnp.sin(m)).sum() + (m @ m @ m).sum()

    def once(m: jax.Array) -> jax.Array:
        first = (m @ jnp.sin(m)).sum()
        return first * first + (m @ m @ m).sum()

    assert live(twice, M) == live(once, M)


def test_what_nobody_asks_for_does_not_count() -> None:
    assert live(lambda m: (m @ m, m.sum())[1], M) == 4


def test_a_loop_takes_its_results_and_its_body_once() -> None:
    def looped(m: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(lambda total, _: (total @ total, total.sum()), m, length=7)

    assert live(looped, M) == 400 + 28 + (400 + 4)


def test_tiles_of_a_tpu_pad_small_axes() -> None:
    wide = jax.ShapeDtypeStruct((16, 64), jnp.float32)
    assert live(lambda x: x + 1, wide, tiled=True) == 16 * 128 * 4
    assert live(lambda x: x + 1, jax.ShapeDtypeStruct((16, 2), jnp.float32), tiled=True) == 5 * 16 * 2 * 4


@pytest.mark.thorough
def test_beside_the_account_of_a_compiler() -> None:
    """Temporary memory and results of a compiled gradient step: within a margin, at most twice above."""
    width = 512
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((256, width), (width, width), (width, width))]

    def step(x: jax.Array, first: jax.Array, second: jax.Array) -> list[jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            return jnp.sum(jnp.tanh(jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

        gradients = jax.grad(loss)([first, second])
        return [weights - jnp.float32(0.1) * change for weights, change in zip([first, second], gradients, strict=True)]

    analysis = jax.jit(step).lower(*shapes).compile().memory_analysis()
    took = analysis.temp_size_in_bytes + analysis.output_size_in_bytes
    assert took <= 1.1 * live(step, *shapes) <= 2 * took


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_arrays(shape: tuple[int, ...]) -> None:
    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    plain = live(lambda x: x + 1, array)
    assert plain == (4 if shape == () else 0) and live(lambda x: x + 1, array, tiled=True) == plain


def test_a_kernel_takes_its_operands_and_results_alone() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = jnp.sum(x[...][:, None] * x[...][None, :], axis=0)

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=X, interpret=True)(jnp.sin(x))

    assert live(call, X) == 80
