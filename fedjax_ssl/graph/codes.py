"""Binary codes of points by random hyperplanes, and the Hamming distances that estimate angles
(XCLP, steps 1 to 5).
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32, Key, UInt32

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.graph.graph_settings import check_features

# A matrix product may sum in another order when its shape changes. So every product has the same
# shape, and a row's code does not depend on the number of other rows.
_BITS_PER_BLOCK = 256
# On an accelerator, a product of 256 points takes less time than its start.
_FEW_POINTS = 256
_MANY_POINTS = 2048
# Sums over more words than this compile too slowly when written out at once; they are written out
# in blocks.
_MOST_WORDS_AT_ONCE = 128
_WORDS_PER_BLOCK = 64


@jax.jit
def has_angle(features: Float[Array, "n d"]) -> Bool[Array, " n"]:
    """Return the mask of rows with a direction, finite and not zero: only these can have
    neighbours.
    """
    return jnp.isfinite(features).all(axis=1) & (features != 0).any(axis=1)


def lsh_codes(
    key: Key[Array, ""],
    features: Float[Array, "n d"],
    num_bits: int,
    *,
    points_at_once: int | None = None,
) -> UInt32[Array, "n words"]:
    """Code every row by the signs of Gaussian projections (XCLP, Algorithm 1 steps 2 and 3).

    Two rows at angle t differ in each bit with probability t / pi. Equal rows get equal codes, on
    every machine that runs the same program, and scaling a row by a power of two changes nothing.
    The first bits of a longer code are the shorter code. A zero row gets all ones, and so does a
    row with NaN or infinity, which is possible under a trace only: mask both with `has_angle`.

    Args:
        key: typed key of the projections, the same for all clients of one call and unknown to the
            server.
        features: [n, d] floating.
        num_bits: bits per point, at least 1.
        points_at_once: points of one product; rows are padded to a multiple of it. By default 256
            on a CPU and for up to 2,048 rows, otherwise 2,048. Another number may change bits whose
            projection is nearly 0.

    Returns:
        [n, ceil(num_bits / 32)], bit j of a code in word j // 32 at position j % 32; unused high
        bits are 0.

    Raises:
        ValueError: if the features are not [n, d] floats or are known and not finite, or a number
            is below 1.
    """
    features = jnp.asarray(features)
    if points_at_once is None:
        few = backend() == "cpu" or features.shape[0] <= _MANY_POINTS
        points_at_once = _FEW_POINTS if few else _MANY_POINTS
    check_whole_numbers(num_bits=num_bits, points_at_once=points_at_once)
    check_features(features)
    return _lsh_codes(key, features, num_bits, points_at_once)


@partial(jax.jit, static_argnames=("num_bits", "points_at_once"))
def _lsh_codes(key: Key[Array, ""], features: Array, num_bits: int, points_at_once: int) -> Array:
    num_points, num_features = features.shape
    num_words = -(-num_bits // 32)
    finite = jnp.isfinite(features).all(axis=1, keepdims=True)
    features = jnp.where(finite, features, 0)
    # Dividing by a power of two is exact, and keeps sums of very large or very small features
    # within range.
    _, exponent = jnp.frexp(jnp.max(jnp.abs(features), axis=1, keepdims=True, initial=0))
    features = jnp.ldexp(features, -exponent)
    padding = -num_points % points_at_once
    rows = jnp.pad(features, ((0, padding), (0, 0))).reshape(-1, points_at_once, num_features)
    bit_values = jnp.asarray(1 << np.arange(32, dtype=np.uint32))

    def code_bits(block: Array) -> Array:
        # Drawn in float32 even if features are float64, so that both types use the same
        # hyperplanes.
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


def popcount_distances(
    codes: UInt32[Array, "n words"], words: UInt32[Array, "words m"], dtype: jnp.dtype
) -> Int[Array, "n m"]:
    """Return distances in bits by exclusive or and population count, the fast way on a CPU; `words`
    are transposed codes.

    XCLP, Algorithm 1 step 4, without the cryptography.

    The dtype must hold the number of bits. The sum over words is written out so that the compiler
    fuses it into one loop over the output, with the transposed codes contiguous along the vector: a
    reduction over an axis was ten times slower.
    """
    num_words = codes.shape[1]
    if num_words <= _MOST_WORDS_AT_ONCE:
        return _sum_of_popcounts(codes, words).astype(dtype)
    padding = (0, -num_words % _WORDS_PER_BLOCK)
    code_blocks = (
        jnp.pad(codes, ((0, 0), padding))
        .reshape(codes.shape[0], -1, _WORDS_PER_BLOCK)
        .swapaxes(0, 1)
    )
    word_blocks = jnp.pad(words, (padding, (0, 0))).reshape(-1, _WORDS_PER_BLOCK, words.shape[1])

    def add_block(total: Array, blocks: tuple[Array, Array]) -> tuple[Array, None]:
        return total + _sum_of_popcounts(*blocks), None

    start = jnp.zeros((codes.shape[0], words.shape[1]), jnp.int32)
    return lax.scan(add_block, start, (code_blocks, word_blocks))[0].astype(dtype)


def _sum_of_popcounts(codes: Array, words: Array) -> Array:
    total = jnp.zeros((codes.shape[0], words.shape[1]), jnp.int32)
    for word in range(codes.shape[1]):
        differing = lax.population_count(codes[:, word, None] ^ words[None, word, :])
        total = total + differing.astype(jnp.int32)
    return total


def signs_from_codes(codes: UInt32[Array, "n words"]) -> Int[Array, "n bits"]:
    """Unpack codes to +1 and -1 in int8, one byte per bit, 32 for each word."""
    shifts = jnp.arange(32, dtype=jnp.uint32)
    bits = (codes[:, :, None] >> shifts) & jnp.uint32(1)
    return (2 * bits.astype(jnp.int8) - 1).reshape(codes.shape[0], -1)


def matmul_distances(
    signs_a: Int[Array, "n bits"], signs_b: Int[Array, "m bits"], dtype: jnp.dtype
) -> Int[Array, "n m"]:
    """Return distances in bits by an integer matrix product, the fast way if there are matrix
    units.

    The dtype must hold the number of bits. Unused bits of the codes agree and count as 0.
    """
    contract_bits = (((1,), (1,)), ((), ()))
    agreement = lax.dot_general(signs_a, signs_b, contract_bits, preferred_element_type=jnp.int32)
    return ((signs_a.shape[1] - agreement) // 2).astype(dtype)


def fastest_kernel(platform: str) -> str:
    """Return the name of the fastest kernel for distances on "cpu", "gpu" or "tpu"."""
    return "popcount" if platform == "cpu" else "matmul"


@jax.jit
def hamming_matrix(codes: UInt32[Array, "n words"]) -> Int32[Array, "n n"]:
    """Count the bits in which every two codes differ (XCLP, Algorithm 1 step 4).

    The result has all pairs at once, in 4 n^2 bytes, like the server in the paper.
    `nearest_neighbors` finds the same neighbours without it.

    Args:
        codes: [n, words] as `lsh_codes` returns them.

    Returns:
        [n, n], symmetric, 0 on the diagonal.

    Example:
        >>> codes = jnp.array([[0b000], [0b111], [0b101]], jnp.uint32)
        >>> fs.graph.hamming_matrix(codes).tolist()
        [[0, 3, 2], [3, 0, 1], [2, 1, 0]]
    """
    codes = jnp.asarray(codes)
    if fastest_kernel(backend()) == "popcount":
        return popcount_distances(codes, codes.T, jnp.dtype(jnp.int32))
    signs = signs_from_codes(codes)
    return matmul_distances(signs, signs, jnp.dtype(jnp.int32))


def cosine_from_hamming(distance: Int[Array, "..."], num_bits: int) -> Float[Array, "..."]:
    """Return the cosine of the angle that a Hamming distance estimates, cos(pi H / L) (XCLP,
    Algorithm 1 step 5).

    The cosine comes from a table of num_bits + 1 values, with exact 0 from a right angle on: a
    rounded cosine near 0 would become an edge of weight 1 after normalization by degrees.

    Args:
        distance: integers, bits that differ, 0..num_bits; larger ones count as num_bits.
        num_bits: bits per code.

    Returns:
        Same shape, in [0, 1], of the default floating dtype.

    Raises:
        ValueError: if num_bits < 1.
    """
    check_whole_numbers(num_bits=num_bits)
    bits = np.arange(num_bits + 1)
    table = np.where(2 * bits >= num_bits, 0.0, np.cos(np.pi * bits / num_bits))
    return jnp.asarray(table, jnp.result_type(float))[jnp.clip(distance, 0, num_bits)]
