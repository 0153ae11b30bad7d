"""How many of the nearest neighbours a search found, measured on a sample of the points."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.graph.checks import check_codes, check_rows
from fedjax_ssl.graph.hamming import paired_distances
from fedjax_ssl.graph.neighbors import Neighbors, fastest_kernel, nearest_to_rows

# Products of two places must fit 32 bits.
_MOST_SAMPLES = 2**15


def neighbor_recall(
    neighbors: Neighbors,
    codes: UInt32[Array, "n words"],
    num_bits: int,
    valid: Bool[Array, " n"] | None = None,
    sample: int = 1000,
) -> Float[Array, ""]:
    """The share of the nearest neighbours that lists hold, by an exact search for a sample of the points.

    A listed neighbour counts if it is no farther than the k-th nearest; equally near ones are as good.

    Args:
        neighbors: [n, k] each.
        codes: [n, ceil(num_bits / 32)].
        num_bits: bits per code.
        valid: [n], as in the search. None: all are valid.
        sample: how many points are searched for, spread evenly over the valid ones; all if there are fewer.

    Returns:
        In [0, 1]; 1 where there is nothing to find.

    Raises:
        ValueError: if shapes or dtypes do not fit together, a count is below 1, or the sample is above 32,768.
    """
    codes = jnp.asarray(codes)
    check_codes(codes, num_bits)
    check_whole_numbers(sample=sample)
    if sample > _MOST_SAMPLES:
        raise ValueError(f"sample is {sample}; at most {_MOST_SAMPLES} points can be searched for.")
    check_rows("valid", valid, codes.shape[0])
    if neighbors.index.ndim != 2 or neighbors.index.shape[0] != codes.shape[0]:
        raise ValueError(
            f"neighbours have shape {neighbors.index.shape}; for these codes it must be ({codes.shape[0]}, k)."
        )
    if codes.shape[0] < 2:
        return jnp.ones((), jnp.result_type(float))
    valid = jnp.ones(codes.shape[0], bool) if valid is None else jnp.asarray(valid)
    return _neighbor_recall(neighbors.index, codes, valid, num_bits, min(sample, codes.shape[0]))


@partial(jax.jit, static_argnames=("num_bits", "sample"))
def _neighbor_recall(index: Array, codes: Array, valid: Array, num_bits: int, sample: int) -> Array:
    places = jnp.arange(sample, dtype=jnp.int32)
    num_valid = jnp.sum(valid, dtype=jnp.int32)
    # places * num_valid // sample, which could be too large for 32 bits.
    stride = places * (num_valid // sample) + places * (num_valid % sample) // sample
    # With fewer valid rows than places all are taken, and rows that are not valid, which have nothing to find.
    stride = jnp.where(num_valid < sample, places, stride)
    rows = jnp.argsort(~valid, stable=True)[stride].astype(jnp.int32)
    kernel = fastest_kernel(jax.default_backend())
    count = index.shape[1]
    _, exact = nearest_to_rows(codes, valid, rows, num_bits, count, kernel)
    listed = index[rows]
    distance = paired_distances(lambda word: (codes[listed, word], codes[rows, word, None]), codes.shape[1])
    earlier = jnp.tril(jnp.ones((count, count), bool), -1)
    repeated = jnp.any((listed[:, :, None] == listed[:, None, :]) & earlier, axis=2)
    exact = jnp.minimum(exact.astype(jnp.int32), num_bits + 1)
    true = jnp.sum(exact <= num_bits, axis=1)
    farthest = jnp.max(jnp.where(exact <= num_bits, exact, -1), axis=1)
    counts = (listed != rows[:, None]) & valid[listed] & ~repeated & (distance <= farthest[:, None])
    found = jnp.minimum(jnp.sum(counts, axis=1), true)
    return jnp.where(jnp.sum(true) > 0, jnp.sum(found) / jnp.maximum(jnp.sum(true), 1), 1)
