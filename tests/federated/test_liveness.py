"""What a traced function takes of memory: counted by hand, and beside a compiler's own account."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.custom_derivatives import linear_call
from jax.experimental import pallas as pl
from jax.extend.core import Primitive

from fedjax_ssl.federated import liveness
from fedjax_ssl.federated.liveness import bytes_taken

X = jax.ShapeDtypeStruct((10,), jnp.float32)
M = jax.ShapeDtypeStruct((10, 10), jnp.float32)


def live(function: Callable, *arguments: jax.ShapeDtypeStruct, tiled: bool = False) -> int:
    return bytes_taken(jax.make_jaxpr(function)(*arguments), tiled).live


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


@pytest.mark.parametrize("layers", [3, 4, 12])
def test_a_residual_networks_sums_are_written_where_that_takes_less(layers: int) -> None:
    def network(m: jax.Array, *weights: jax.Array) -> jax.Array:
        for layer in weights:
            m = m + jnp.sin(m) @ layer
        return m

    # A sum, what becomes of it in the next layer, and that layer's product; not all products up to there.
    assert live(network, M, *[M] * layers) == 1200


def test_what_is_shared_is_computed_anew_where_that_takes_less() -> None:
    def shared(m: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = m @ m, jnp.sin(m) @ m
        total = first + second
        return first @ jnp.sin(total), second @ jnp.cos(total)

    # Both products are read later, so that their sum would be one value more: they, its sine and the first result.
    assert live(shared, M) == 1600


def test_what_nobody_asks_for_does_not_count() -> None:
    assert live(lambda m: (m @ m, m.sum())[1], M) == 4


# A call that no version of JAX has a name for.
CALL = Primitive("a call of another name")
CALL.multiple_results = True
CALL.def_abstract_eval(lambda *_, function: function.out_avals)


def cubed(m: jax.Array) -> jax.Array:
    return (m @ m) @ m


CUBED_WITH_A_DERIVATIVE = jax.custom_jvp(cubed)
CUBED_WITH_A_DERIVATIVE.defjvp(lambda primals, tangents: (cubed(*primals), *tangents))
CUBED_WITH_A_GRADIENT = jax.custom_vjp(cubed)
CUBED_WITH_A_GRADIENT.defvjp(lambda m: (cubed(m), None), lambda _, cotangent: (cotangent,))


@pytest.mark.parametrize(
    "call",
    [
        jax.jit(cubed),
        jax.checkpoint(cubed),
        CUBED_WITH_A_DERIVATIVE,
        CUBED_WITH_A_GRADIENT,
        lax.composite(cubed, "test.cubed"),
        lambda m: linear_call(lambda _, x: cubed(x), lambda _, x: x, (), m),
        lambda m: CALL.bind(m, function=jax.make_jaxpr(cubed)(M))[0],
    ],
    ids=["jit", "checkpoint", "custom_jvp", "custom_vjp", "composite", "linear_call", "another name"],
)
def test_a_function_that_is_called_takes_what_it_takes_written_out(call: Callable) -> None:
    assert live(lambda m: call(jnp.sin(m)).sum(), M) == live(lambda m: cubed(jnp.sin(m)).sum(), M) == 1200


def test_a_call_whose_operands_fit_none_of_its_functions_takes_the_largest_of_them() -> None:
    def call(m: jax.Array) -> jax.Array:
        return CALL.bind(jnp.sin(m), m, function=jax.make_jaxpr(cubed)(M))[0]

    assert live(call, M) == 1200  # its operand, its result and a square within
    # The factor and the product that it is made of are there while the solution is looked for.
    assert live(lambda m, b: jnp.linalg.solve(m @ m, b).sum(), M, X) > 800


def test_what_a_library_solves_is_in_memory() -> None:
    def solved(m: jax.Array) -> jax.Array:
        factor = jax.scipy.linalg.cho_factor(m @ m)
        return jax.scipy.linalg.cho_solve(factor, jnp.eye(10)).sum()

    assert live(solved, M) >= 1200  # the factor, what is right of it, and the solution
    assert live(lambda m: lax.linalg.cholesky(m, symmetrize_input=False).sum(), M) == 404
    assert live(lambda m: sum(part.sum() for part in jnp.linalg.eigh(m, symmetrize_input=False)), M) >= 440
    assert live(lambda m: lax.reduce(m, 1.0, lax.mul, (0,)), M) == 40
    assert live(lambda m: jnp.sin(lax.reduce(m, 1.0, lambda x, y: x * y + 1, (0,))).sum(), M) == 44


def test_a_barrier_is_another_name_of_what_is_written() -> None:
    barrier = lax.optimization_barrier
    assert live(lambda m: ((b := jnp.sin(m)).sum(0), b.max(1)), M) == 80
    assert live(lambda m: ((b := barrier(jnp.sin(m))).sum(0), b.max(1)), M) == 480
    assert live(lambda m: (barrier(m).sum(0), m.max(1)), M) == 80  # arguments stay as they are
    assert live(lambda m: ((p := m @ m).sum(), (barrier(p) @ m).sum()), M) == 800 + 4

    def two(m: jax.Array) -> jax.Array:
        first, second = barrier((jnp.sin(m), jnp.cos(m)))
        return (first * second).sum()

    def doubled(m: jax.Array) -> tuple[jax.Array, jax.Array]:
        start = barrier(jnp.sin(m))
        return jax.lax.fori_loop(0, 7, lambda _, m: 2 * m, start), start.sum(0)

    assert live(two, M) == 800 + 4
    assert live(doubled, M) == 800 + 40  # it is not computed again where it is wanted later


# Names of primitives that the installed JAX may lack: `core_map` is gone from JAX 0.11 on.
OF_OTHER_VERSIONS = {"core_map"}


def test_operations_are_known_by_the_names_that_jax_has_for_them() -> None:
    """So that a renamed one, which would count as computed element by element, is noticed."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("jax.") or name == "jax"]
    known = {one.name for module in modules for one in list(vars(module).values()) if isinstance(one, Primitive)}
    sets = {name: value for name, value in vars(liveness).items() if isinstance(value, set)}
    own = {liveness._ROW, liveness._UNKNOWN}
    assert len(known) > 200 and {"_READ", "_WRITTEN", "_VIEWS", "_MOVED"} <= {*sets}
    unknown = {name: value - known - OF_OTHER_VERSIONS - own for name, value in sets.items()}
    assert not any(unknown.values()), unknown


def test_a_loop_takes_its_results_and_its_body_once() -> None:
    def looped(m: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.scan(lambda total, _: (total @ total, total.sum()), m, length=7)

    assert live(looped, M) == 400 + 28 + (400 + 4)


def test_a_loop_of_one_turn_is_none() -> None:
    def turn(total: jax.Array, one: jax.Array) -> tuple[jax.Array, jax.Array]:
        return total @ jnp.sin(one), total.sum()

    looped = live(lambda m: jax.lax.scan(turn, m, m[None]), M)
    assert looped == live(lambda m: turn(m, m), M)


def test_a_loop_goes_on_in_the_place_of_what_it_starts_from() -> None:
    def doubled(start: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, m: 2 * m, start)

    counter = 4
    assert live(lambda m: doubled(m @ m), M) == 400 + counter
    assert live(lambda m: (doubled(first := m @ m), first), M) == 800 + counter  # what it starts from is wanted later
    assert live(lambda m: (doubled(first := jnp.sin(m)), first), M) == 800 + counter
    assert live(doubled, M) == 400 + counter  # arguments stay as they are
    # A turn that reads everything before it writes needs a second place.
    assert live(lambda m: jax.lax.fori_loop(0, 7, lambda _, x: x @ x, m @ m), M) == 800 + counter


def test_of_two_results_that_start_from_one_value_one_gets_its_place() -> None:
    def twice(start: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.lax.fori_loop(0, 7, lambda _, both: (both[0] + 1, both[1] - 1), (start, start))

    def with_a_constant(start: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda m, _: (m @ start, None), start, None, length=7)[0]

    counter = 4
    assert live(lambda m: twice(m @ m), M) == 800 + counter
    # Every turn reads where it started from, and its own product before it is written over.
    assert live(lambda m: with_a_constant(m @ m), M) == 1200


def test_the_largest_value_is_one_that_a_loop_goes_on_with_at_the_peak() -> None:
    wide = jax.ShapeDtypeStruct((10, 1000), jnp.float32)

    def small_after_large(m: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, m: m @ (m @ m), m * jnp.sum(m @ x))

    def large_after_small(m: jax.Array, x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 7, lambda _, x: 2 * x, m @ x)

    found = bytes_taken(jax.make_jaxpr(small_after_large)(M, wide))
    assert found.largest == 0 and found.live >= 40_000
    found = bytes_taken(jax.make_jaxpr(large_after_small)(M, wide))
    assert found.largest == 40_000 and found.live >= 40_000
    assert bytes_taken(jax.make_jaxpr(lambda m: (m @ m) @ m)(M)).largest == 0


def test_rows_are_written_into_what_a_turn_goes_on_from() -> None:
    def turn(_: int, table: jax.Array) -> jax.Array:
        return table.at[jnp.array([3, 1])].set(table[:2] @ jnp.ones((10, 10)))

    rows, counter = 2 * 40, 4
    assert live(lambda m: jax.lax.fori_loop(0, 7, turn, m @ m), M) < 400 + 400 + rows + counter + 100
    donated = bytes_taken(jax.make_jaxpr(lambda m: jax.lax.fori_loop(0, 7, turn, m))(M), carried=1)
    assert donated.live < 400 + rows + counter + 100  # the ones; the table lies where it was


def test_a_conditional_writes_its_results_once() -> None:
    which = jax.ShapeDtypeStruct((), jnp.int32)
    assert (
        live(lambda place, m: jax.lax.switch(place, [lambda x: x @ x, jnp.sin], m), which, M)
        == 400 + which.dtype.itemsize
    )


def test_results_may_take_the_places_of_arguments() -> None:
    jaxpr = jax.make_jaxpr(lambda m, factor: (2 * m, m @ factor))(M, M)
    assert (
        bytes_taken(jaxpr).live == 800 and bytes_taken(jaxpr, carried=1).live == 800
    )  # m is read later, by the product
    last = jax.make_jaxpr(lambda m, factor: (m - m @ factor,))(M, M)
    assert bytes_taken(last).live == 800 and bytes_taken(last, carried=1).live == 400


KIB = 1 << 10


def array(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def test_tiles_of_a_tpu_pad_small_axes_and_a_buffer_takes_at_least_16_kib() -> None:
    assert live(lambda x: x + 1, array(64, 64), tiled=True) == 64 * 128 * 4
    assert live(lambda x: x + 1, array(64, 65), tiled=True) == 64 * 128 * 4
    assert live(lambda x: x + 1, array(1024, 2), tiled=True) == 48 * KIB  # not more than five times, in whole buffers
    assert live(lambda x: (x + 1, x + 2), array(16, 2), tiled=True) == 2 * 16 * KIB


def test_so_many_images_as_fill_the_lanes_of_a_tpu_lie_along_them() -> None:
    assert live(lambda x: x + 1, array(128, 24, 24, 64), tiled=True) == 128 * 24 * 24 * 64 * 4
    assert live(lambda x: x + 1, array(100, 24, 24, 64), tiled=True) == 100 * 24 * 24 * 128 * 4
    # Another image more would take another 127, and with them more than channels in the lanes take.
    assert live(lambda x: x + 1, array(129, 24, 24, 96), tiled=True) == 129 * 24 * 24 * 128 * 4


def test_a_row_is_read_as_it_is_computed_with() -> None:
    def least(m: jax.Array) -> jax.Array:
        return jnp.minimum(jax.lax.slice(m, (0, 0), (256, 1)), jax.lax.slice(m, (0, 1), (256, 2)))

    assert live(least, array(256, 128), tiled=True) == 16 * KIB  # the result alone


def test_a_tpu_computes_with_a_product_of_whole_numbers_before_it_writes() -> None:
    def small(x: jax.Array, y: jax.Array) -> jax.Array:
        return (jnp.dot(x, y, preferred_element_type=jnp.int32) // 2).astype(jnp.int16)

    assert live(small, array(256, 256, dtype="int8"), array(256, 256, dtype="int8"), tiled=True) == 256 * 256 * 2


def test_what_only_products_of_a_tpu_read_is_half_as_wide() -> None:
    def patches(x: jax.Array, w: jax.Array, precision: str | None = None) -> jax.Array:
        return jnp.dot(jnp.concatenate([x, x + 1]), w, precision=precision).sum()

    wide = live(lambda x, w: patches(x, w, "highest"), array(256, 256), array(256, 8), tiled=True)
    assert wide - live(patches, array(256, 256), array(256, 8), tiled=True) == 512 * 256 * 2


def test_barriers_do_not_widen_what_only_products_of_a_tpu_read() -> None:
    def product(x: jax.Array, w: jax.Array, way: Callable = lax.optimization_barrier) -> jax.Array:
        return jnp.dot(way(jnp.sin(x)), w).sum()

    given = array(256, 256), array(256, 8)
    assert live(product, *given, tiled=True) == live(partial(product, way=jnp.cos), *given, tiled=True)


def test_a_tpu_puts_together_and_takes_apart_in_memory() -> None:
    def stacked(x: jax.Array) -> jax.Array:
        return jnp.stack([jnp.sin(x), jnp.cos(x)]).sum()

    def concatenated(x: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.sin(x)[None], jnp.cos(x)[None]]).sum()

    def apart(x: jax.Array) -> jax.Array:
        first, second = jnp.unstack(x)
        return (first * second).sum()

    assert live(stacked, array(256, 256), tiled=True) == live(concatenated, array(256, 256), tiled=True)
    assert live(apart, array(2, 256, 256), tiled=True) == 2 * (256 * 256 * 4) + 16 * KIB


def test_what_a_barrier_holds_on_a_tpu_stays_where_it_is_in_another_shape_of_the_same_tiles() -> None:
    def groups(x: jax.Array, rows: int) -> jax.Array:
        return lax.optimization_barrier(jnp.sin(x)).reshape(-1, rows, x.shape[1]).sum(1)

    whole, sums = 256 * 128 * 4, 16 * 128 * 4
    assert live(partial(groups, rows=16), array(256, 128), tiled=True) == whole + 16 * KIB >= whole + sums
    assert live(partial(groups, rows=4), array(256, 128), tiled=True) > 2 * whole


def test_parts_along_the_lanes_of_a_tpu_take_another_layout() -> None:
    def parts(x: jax.Array) -> list[jax.Array]:
        return jax.lax.split(x, (32, 32), axis=2)

    # The parts take as much as they do in their own layout, or more.
    assert live(parts, array(8, 48, 64), tiled=True) == 2 * (8 * 48 * 128 * 4)
    # In the copy of the whole, 8192 lies along the lanes; of it and the parts, 64 MiB are on the chip.
    on_chip = 64 * 1024 * KIB
    assert live(parts, array(8192, 48, 64), tiled=True) == 8192 * 48 * (64 + 2 * 128) * 4 - on_chip
    # What takes half of the lanes stays where it is.
    halves = live(lambda x: jax.lax.split(x, (64, 64), axis=2), array(8, 48, 128), tiled=True)
    assert halves == 2 * (8 * 48 * 128 * 4)
    assert live(lambda x: jax.lax.sort(x), array(8, 48, 64), tiled=True) == 8 * 128 * 64 * 4


def test_a_tpu_copies_what_is_large_to_read_some_of_it_by_index() -> None:
    def taken(length: int, tiled: bool = True) -> int:
        given = array(length, 1 << 19), array(8, dtype="int32")
        return live(lambda x, i: (x[i], x[i + 1]), *given, tiled=tiled)

    rows = 2 * 8 << 21
    assert taken(256) == rows
    assert taken(257) == rows + (257 << 21)
    assert taken(257, tiled=False) == rows


def test_a_tpu_copies_images_that_are_read_by_index_unless_they_become_rows_or_are_grey_and_many() -> None:
    rows = array(7, dtype="int32")

    def copied(function: Callable, *shape: int, rows: jax.ShapeDtypeStruct = rows) -> int:
        return bytes_taken(jax.make_jaxpr(function)(array(*shape, dtype="uint8"), rows), tiled=True).images

    def batch(images: jax.Array, rows: jax.Array) -> jax.Array:
        return images[rows].astype(jnp.float32) / 255

    def parts(images: jax.Array, rows: jax.Array) -> jax.Array:
        return batch(images, rows)[:, 1:]

    def flat(images: jax.Array, rows: jax.Array) -> jax.Array:
        return batch(images, rows).reshape(7, -1)

    def sometimes(images: jax.Array, rows: jax.Array) -> jax.Array:
        return jax.lax.switch(rows[0], [lambda: flat(images, rows), lambda: jnp.zeros((7, 3072))])

    in_tiles = 1000 * 32 * 128 * 3
    assert copied(parts, 1000, 32, 32, 3) == in_tiles
    assert copied(lambda x, i: (parts(x, i), parts(x, i + 1)), 1000, 32, 32, 3) == in_tiles
    assert (
        copied(lambda x, i: jax.lax.map(partial(parts, x), i), 1000, 32, 32, 3, rows=array(2, 7, dtype="int32"))
        == in_tiles
    )
    assert copied(flat, 1000, 32, 32, 3) == 0 and copied(sometimes, 1000, 32, 32, 3) == in_tiles
    assert copied(parts, 1000, 28, 28, 1) == copied(flat, 1000, 28, 28, 1) == 1000 * 32 * 128
    assert copied(parts, 100_000, 28, 28, 1) == 0


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
    assert live(lambda x: x + 1, array(*shape)) == (4 if shape == () else 0)
    assert live(lambda x: x + 1, array(*shape), tiled=True) == (16 * KIB if shape == () else 0)


def test_a_kernel_takes_its_operands_and_results_alone() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = jnp.sum(x[...][:, None] * x[...][None, :], axis=0)

    def call(x: jax.Array) -> jax.Array:
        return pl.pallas_call(kernel, out_shape=X, interpret=True)(jnp.sin(x))

    assert live(call, X) == 80
