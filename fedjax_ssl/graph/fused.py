"""Distances and the first round of their selection in one kernel, for GPUs (Triton) and TPUs (Mosaic).

A tile of distances is as large as all that is read for it, and is written only to be looked through once. So the
kernel keeps it: it multiplies signs and writes the minimum of every group of 128 consecutive points. Of every row the
nearest points lie in the groups with the smallest (minimum, group), as in `selection`; their distances are computed
again, from the packed codes.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int8, Int32, UInt32

from fedjax_ssl.backend import backend, compiles_kernels, triton_options
from fedjax_ssl.graph.hamming import paired_distances, signs_from_codes
from fedjax_ssl.graph.selection import smallest

_GROUP = 128
# Points are padded to whole blocks of the larger kind.
_PADDED = 1024
# Groups and rows of one block: a TPU reads the rows again for every block of points, a GPU has them in its cache.
_BLOCKS = {"gpu": (1, 256), "tpu": (8, 512)}
# Bits that a GPU multiplies at once; a TPU holds all of them.
_BITS_AT_ONCE = 128
ROWS = 4096  # of one tile at most; the minima of a tile are held in memory
_MOST_CANDIDATES = 2**27  # of all rows of a tile: points that are looked at again
# Offsets of entries are 32 bits wide.
_MOST_SIGNS = 2**31 - 1


class Signs:
    """All points as the kernel reads them, and how to select among them."""

    def __init__(self, codes: UInt32[Array, "n words"], valid: Bool[Array, " n"], num_bits: int):
        self._codes, self._valid, self._num_bits = codes, valid, num_bits
        self._signs = self._prepared(codes)
        padding = -codes.shape[0] % _PADDED
        self._signs = jnp.pad(self._signs, ((0, padding), (0, 0)))
        # Beyond every distance for points that are not neighbours.
        self._beyond = jnp.where(jnp.pad(valid, (0, padding)), 0, 4 * self._signs.shape[1])[:, None]

    @staticmethod
    def _prepared(codes: Array) -> Array:
        # Zeros add nothing to a product.
        return jnp.pad(signs_from_codes(codes), ((0, 0), (0, -32 * codes.shape[1] % _BITS_AT_ONCE)))

    def nearest(self, rows: Int32[Array, " r"], count: int) -> tuple[Int32[Array, "count r"], Int32[Array, "count r"]]:
        """The `count` nearest points of some rows, themselves included, by (distance, index): index and distance.

        Distances are `num_bits + 1` where there is no point.
        """
        bound = self._num_bits + 1
        padding = -rows.shape[0] % _block()[1]
        own = self._prepared(self._codes[jnp.pad(rows, (0, padding))])
        minima = group_minima(self._signs, self._beyond, own, 32 * self._codes.shape[1])
        minima = jnp.minimum(minima[:, : rows.shape[0]], bound)
        # In ascending order, so that positions among the candidates are in the order of points.
        chosen = jnp.sort(smallest(minima, count, bound), axis=0)
        members = jnp.arange(_GROUP, dtype=jnp.int32)[None, :, None]
        points = (chosen[:, None, :] * _GROUP + members).reshape(count * _GROUP, -1)
        there = points < self._codes.shape[0]
        points = jnp.minimum(points, self._codes.shape[0] - 1)
        there &= self._valid[points]
        codes = self._codes
        distance = paired_distances(lambda word: (codes[points, word], codes[rows, word]), codes.shape[1])
        distance = lax.optimization_barrier(jnp.where(there, distance, bound))
        found = smallest(distance, count, bound)
        return jnp.take_along_axis(points, found, axis=0), jnp.take_along_axis(distance, found, axis=0)


def rows_at_once(count: int) -> int:
    """Rows of one tile where `count` groups of points are looked at again for each."""
    blocks = _MOST_CANDIDATES // (count * _GROUP) // _BLOCKS["gpu"][1]
    return min(ROWS, max(blocks, 1) * _BLOCKS["gpu"][1])


def applies(num_points: int, num_words: int, count: int) -> bool:
    """Whether there is a kernel here that finds `count` nearest points among so many: of more groups than that."""
    if backend() == "gpu" and not compiles_kernels():
        return False
    bits = -(-32 * num_words // _BITS_AT_ONCE) * _BITS_AT_ONCE
    return num_points >= 2 * count * _GROUP and (num_points + _PADDED) * bits <= _MOST_SIGNS


def group_minima(
    signs: Int8[Array, "n bits"], beyond: Int32[Array, "n 1"], rows: Int8[Array, "r bits"], num_bits: int
) -> Int32[Array, "groups r"]:
    """The smallest distance of every row to each group of 128 points.

    Args:
        signs: +1 and -1, 0 where there is no bit; n in whole 1,024.
        beyond: what is added to the distances to a point.
        rows: as `signs`; r in whole blocks, 256 rows on a GPU and 512 on a TPU.
        num_bits: bits of a code that are not 0.
    """
    # Here, since it takes a while and nothing on a CPU needs it.
    from jax.experimental import pallas as pl

    groups, width = _block()
    bits = signs.shape[1]
    kernel = partial(_minima_of_block, num_bits=num_bits, at_once=bits if backend() == "tpu" else _BITS_AT_ONCE)
    return pl.pallas_call(
        kernel,
        # Rows run fastest: the block of points stays where it is.
        grid=(signs.shape[0] // (groups * _GROUP), rows.shape[0] // width),
        in_specs=[
            pl.BlockSpec((groups * _GROUP, bits), lambda point, row: (point, 0)),
            pl.BlockSpec((groups * _GROUP, 1), lambda point, row: (point, 0)),
            pl.BlockSpec((width, bits), lambda point, row: (row, 0)),
        ],
        out_specs=pl.BlockSpec((groups, width), lambda point, row: (point, row)),
        out_shape=jax.ShapeDtypeStruct((signs.shape[0] // _GROUP, rows.shape[0]), jnp.int32),
        name="group_minima",
        **({} if backend() == "tpu" else triton_options(warps=8)),
    )(signs, beyond, rows)


def _block() -> tuple[int, int]:
    """Groups of points and rows of one block."""
    return _BLOCKS["tpu" if backend() == "tpu" else "gpu"]


def _minima_of_block(signs, beyond, rows, out, *, num_bits: int, at_once: int) -> None:  # type: ignore[no-untyped-def]
    from jax.experimental import pallas as pl

    contract_bits = (((1,), (1,)), ((), ()))

    def agreement(start: int | Array) -> Array:
        some = (slice(None), pl.ds(start, at_once))
        return lax.dot_general(signs[some], rows[some], contract_bits, preferred_element_type=jnp.int32)

    num_parts = signs.shape[1] // at_once
    if num_parts == 1:
        total = agreement(0)
    else:
        start = jnp.zeros((signs.shape[0], rows.shape[0]), jnp.int32)
        total = lax.fori_loop(0, num_parts, lambda part, so_far: so_far + agreement(part * at_once), start)
    distance = lax.shift_right_arithmetic(num_bits - total, 1) + beyond[...]
    out[...] = jnp.min(distance.reshape(out.shape[0], _GROUP, out.shape[1]), axis=1)
