"""Hamming distances between packed codes, and the cosine that a distance stands for (XCLP, steps 4 and 5)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Int32, UInt32

from fedjax_ssl.checks import check_whole_numbers

# Sums over more words than this compile too slowly when written out; they are written out block by block.
_MOST_WORDS_AT_ONCE = 128
_WORDS_PER_BLOCK = 64


def hamming_matrix(
    codes_a: UInt32[Array, "n words"], codes_b: UInt32[Array, "m words"] | None = None
) -> Int32[Array, "n m"]:
    """Counts the differing bits of every pair of codes (XCLP, Algorithm 1 step 4, without the cryptography).

    This is the dense reference; `nearest_neighbors` never forms it.

    Args:
        codes_a: [n, words], packed codes.
        codes_b: [m, words], or None for `codes_a` itself.

    Returns:
        [n, m] distances in bits.

    Raises:
        ValueError: if the codes are not uint32 matrices of the same width.
    """
    codes_a = jnp.asarray(codes_a)
    codes_b = codes_a if codes_b is None else jnp.asarray(codes_b)
    for codes in (codes_a, codes_b):
        if codes.ndim != 2 or codes.dtype != jnp.uint32 or codes.shape[1] != codes_a.shape[1]:
            raise ValueError(
                f"codes have shapes {codes_a.shape} and {codes_b.shape} and dtypes {codes_a.dtype} and "
                f"{codes_b.dtype}; both must be uint32 [points, words] with the same number of words."
            )
    return jax.jit(popcount_distances, static_argnums=2)(codes_a, codes_b.T, jnp.int32)


def popcount_distances(
    codes: UInt32[Array, "n words"], words: UInt32[Array, "words m"], dtype: jnp.dtype
) -> Int[Array, "n m"]:
    """Distances in bits by exclusive or and population count, the fast way on a CPU; `words` are codes transposed.

    The dtype has to hold the number of bits. The sum over words is written out so that the compiler fuses it into one
    loop over the output, with the transposed codes contiguous along the vector: a reduction over an axis was ten times
    slower.
    """
    num_words = codes.shape[1]
    if num_words <= _MOST_WORDS_AT_ONCE:
        return _sum_of_popcounts(codes, words).astype(dtype)
    padding = (0, -num_words % _WORDS_PER_BLOCK)
    code_blocks = jnp.pad(codes, ((0, 0), padding)).reshape(codes.shape[0], -1, _WORDS_PER_BLOCK).swapaxes(0, 1)
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


def paired_distances(
    words_of_pair: Callable[[int | Array], tuple[UInt32[Array, "..."], UInt32[Array, "..."]]], num_words: int
) -> Int32[Array, "..."]:
    """Distances in bits of chosen pairs of codes, which are read word by word and never held side by side.

    `words_of_pair` maps the number of a word to that word of the first and of the second codes; shapes broadcast.
    """

    def differing(word: int | Array) -> Array:
        first, second = words_of_pair(word)
        return lax.population_count(first ^ second).astype(jnp.int32)

    total = differing(0)
    if num_words > _MOST_WORDS_AT_ONCE:
        return lax.fori_loop(1, num_words, lambda word, sum_so_far: sum_so_far + differing(word), total)
    for word in range(1, num_words):
        total = total + differing(word)
    return total


def signs_from_codes(codes: UInt32[Array, "n words"]) -> Int[Array, "n bits"]:
    """Unpacks codes to +1 and -1 in int8, one byte per bit, 32 for each word."""
    shifts = jnp.arange(32, dtype=jnp.uint32)
    bits = (codes[:, :, None] >> shifts) & jnp.uint32(1)
    return (2 * bits.astype(jnp.int8) - 1).reshape(codes.shape[0], -1)


def matmul_distances(
    signs_a: Int[Array, "n bits"], signs_b: Int[Array, "m bits"], dtype: jnp.dtype
) -> Int[Array, "n m"]:
    """Distances in bits by an integer matrix product, the fast way where there are matrix units.

    The dtype has to hold the number of bits. Bits that both codes leave unused agree and count as 0.
    """
    contract_bits = (((1,), (1,)), ((), ()))
    agreement = lax.dot_general(signs_a, signs_b, contract_bits, preferred_element_type=jnp.int32)
    return ((signs_a.shape[1] - agreement) // 2).astype(dtype)


def cosine_from_hamming(distance: Int[Array, "..."], num_bits: int) -> Float[Array, "..."]:
    """The cosine of the angle that a Hamming distance estimates, cos(pi H / L) (XCLP, Algorithm 1 step 5).

    Looked up in a table of num_bits + 1 values with exact 0 from a right angle on: a rounded cosine near 0
    would become an edge of weight 1 once degrees are normalized.

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
