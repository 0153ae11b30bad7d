"""Binary codes of points by random hyperplanes: how many bits differ tells the angle (XCLP, steps 1 to 3)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Key, UInt32

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.graph.checks import check_features

# Every product has the same shape, whatever the number of points: a row's code then does not depend on how many
# rows stand around it, since a matrix product may sum in another order when its shape changes.
_BITS_PER_BLOCK = 256
# An accelerator computes a product of 256 points in less time than it takes to start it.
FEW_POINTS, _MANY_POINTS = 256, 2048


@jax.jit
def has_angle(features: Float[Array, "n d"]) -> Bool[Array, " n"]:
    """Marks the rows that have a direction, finite and not zero: only these can have neighbours."""
    return jnp.isfinite(features).all(axis=1) & (features != 0).any(axis=1)


def lsh_codes(
    key: Key[Array, ""], features: Float[Array, "n d"], num_bits: int, *, points_at_once: int | None = None
) -> UInt32[Array, "n words"]:
    """Codes every row by the signs of Gaussian projections (XCLP, Algorithm 1 steps 2 and 3).

    Two rows at angle t differ in each bit with probability t / pi. Equal rows get equal codes, on every
    machine that runs the same program, and scaling a row by a power of two changes nothing. The first bits
    of a longer code are the shorter code. A zero row gets all ones and a row with NaN or infinity, which
    can only come in under a trace, the code of a zero row: mask both with `has_angle`.

    Args:
        key: typed key of the projections, the same for all clients of one call and unknown to the server.
        features: [n, d] floating.
        num_bits: bits per point, at least 1.
        points_at_once: of one product, to a multiple of which points are filled up; by default 256 on a CPU and 2,048
            elsewhere. With another number a bit whose projection is nearly 0 may differ.

    Returns:
        [n, ceil(num_bits / 32)], bit j of a code in word j // 32 at position j % 32; unused high bits are 0.

    Raises:
        ValueError: if the features are not [n, d] floats or are known and not finite, or a number is below 1.
    """
    features = jnp.asarray(features)
    if points_at_once is None:
        points_at_once = FEW_POINTS if backend() == "cpu" else _MANY_POINTS
    check_whole_numbers(num_bits=num_bits, points_at_once=points_at_once)
    check_features(features)
    return _lsh_codes(key, features, num_bits, points_at_once)


@partial(jax.jit, static_argnames=("num_bits", "points_at_once"))
def _lsh_codes(key: Key[Array, ""], features: Array, num_bits: int, points_at_once: int) -> Array:
    num_points, num_features = features.shape
    num_words = -(-num_bits // 32)
    finite = jnp.isfinite(features).all(axis=1, keepdims=True)
    features = jnp.where(finite, features, 0)
    # A power of two is exact, and keeps sums of very large or very small features within range.
    _, exponent = jnp.frexp(jnp.max(jnp.abs(features), axis=1, keepdims=True, initial=0))
    features = jnp.ldexp(features, -exponent)
    padding = -num_points % points_at_once
    rows = jnp.pad(features, ((0, padding), (0, 0))).reshape(-1, points_at_once, num_features)
    bit_values = jnp.asarray(1 << np.arange(32, dtype=np.uint32))

    def code_bits(block: Array) -> Array:
        # Drawn in float32 also where the features are float64, so that both see the same hyperplanes.
        shape = (num_features, _BITS_PER_BLOCK)
        directions = jax.random.normal(jax.random.fold_in(key, block), shape, jnp.float32)
        directions = directions.astype(features.dtype)

        def code_rows(some_rows: Array) -> Array:
            projection = jnp.matmul(some_rows, directions, precision=lax.Precision.HIGHEST)
            bits = (projection >= 0).reshape(points_at_once, _BITS_PER_BLOCK // 32, 32)
            return jnp.sum(jnp.where(bits, bit_values, jnp.uint32(0)), axis=-1, dtype=jnp.uint32)

        return lax.map(code_rows, rows)

    num_blocks = -(-num_bits // _BITS_PER_BLOCK)
    words = lax.map(code_bits, jnp.arange(num_blocks, dtype=jnp.int32))
    words = words.reshape(num_blocks, num_points + padding, _BITS_PER_BLOCK // 32)
    codes = jnp.moveaxis(words, 0, 1).reshape(num_points + padding, num_blocks * words.shape[-1])
    codes = codes[:num_points, :num_words]
    used = np.full(num_words, 0xFFFFFFFF, np.uint32)
    if num_bits % 32:
        used[-1] = (1 << (num_bits % 32)) - 1
    return codes & jnp.asarray(used)
