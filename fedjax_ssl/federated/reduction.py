"""Sums over the clients of a cohort that are spread over devices, with the same bits for every number of devices.

Floating-point sums depend on their order, and a sum over devices comes in an order of its own. Two ways around it:
gather everything and add in client order, or add integers.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

PyTree = Any
REDUCTIONS = ("ordered", "fixed", "fast")
# Clients whose values one turn of the loop over them adds: they become one kernel on accelerators.
_AT_ONCE = 16
# Bits of the integers that a sum may take, of which those of the number of clients are left free for adding.
_BITS = 30


def add_one(total: PyTree, entry: PyTree, counts: Bool[Array, ""]) -> PyTree:
    """The sum with one more client in it, if it counts; NaN of one that does not stays out."""
    return jax.tree.map(lambda t, x: t + jnp.where(counts, x, jnp.zeros_like(x)), total, entry)


def add_in_order(
    values: PyTree, valid: Bool[Array, " p"], start: PyTree | None = None, order: Int[Array, " p"] | None = None
) -> PyTree:
    """Adds up the entries of a cohort in client order, one after another for every element.

    The order is kept within a turn of the loop too, so that the bits depend neither on how many clients a turn adds nor
    on how many devices hold them.

    Args:
        values: leading axis p.
        valid: False on slots that add nothing.
        start: the sum over the clients before; None: there are none.
        order: where the first client's entry is, the second one's, and so on; None: as they lie.

    Returns:
        The sums, without that axis.
    """
    if start is None:
        start = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), values)
    entries = (values, valid)
    if order is None:
        return jax.lax.scan(lambda total, one: (add_one(total, *one), None), start, entries, unroll=_AT_ONCE)[0]

    def add_entry(total: PyTree, place: Array) -> tuple[PyTree, None]:
        return add_one(total, *jax.tree.map(lambda x: x[place], entries)), None

    return jax.lax.scan(add_entry, start, order, unroll=_AT_ONCE)[0]


def sum_over_devices(
    values: PyTree,
    valid: Bool[Array, " m"],
    axis: str | tuple[str, ...],
    num_clients: int,
    reduce: str,
    order: Int[Array, " q"] | None = None,
) -> PyTree:
    """Adds up a cohort whose slots are spread over devices; to be called inside `shard_map`.

    Args:
        values: this device's slots, leading axis m.
        valid: False on slots that add nothing.
        axis: the mesh axes that the slots are spread over.
        num_clients: slots of all devices.
        reduce: "ordered": gather and add in client order, the same bits as on one device; takes the memory of the
            whole cohort's values on every device. "fixed": round to integers on one scale per array and add those, the
            same bits for every number of devices; with b the bits of `num_clients`, every client's values are rounded
            by at most 2^(b - 30) of the largest one in the array. "fast": floating point, whose last bits depend on
            the number of devices.
        order: where among the slots of all devices the first client is, the second one, and so on; None: in order.

    Returns:
        The sums, the same on every device.
    """
    if reduce == "ordered":
        everybody, counted = jax.lax.all_gather((values, valid), axis, tiled=True)
        return add_in_order(everybody, counted, order=order)
    if reduce == "fast":
        return jax.lax.psum(add_in_order(values, valid), axis)
    return jax.tree.map(lambda x: _sum_fixed(x, valid, axis, num_clients), values)


def _sum_fixed(values: Array, valid: Bool[Array, " m"], axis: str | tuple[str, ...], num_clients: int) -> Array:
    counted = jnp.where(jnp.expand_dims(valid, tuple(range(1, values.ndim))), values, jnp.zeros_like(values))
    if not jnp.issubdtype(values.dtype, jnp.floating):
        return jax.lax.psum(jnp.sum(counted, axis=0, dtype=values.dtype), axis)
    largest = jax.lax.pmax(jnp.max(jnp.abs(counted), initial=0), axis)
    _, exponent = jnp.frexp(largest)  # below 2 ** exponent
    shift = _BITS - (num_clients - 1).bit_length() - exponent
    whole = jnp.round(jnp.ldexp(counted, shift)).astype(jnp.int32)
    total = jax.lax.psum(jnp.sum(whole, axis=0, dtype=jnp.int32), axis)
    return jnp.ldexp(total.astype(values.dtype), -shift)
