"""Where a cohort's clients run: one after another, all at once, in chunks or in lanes, on one device or on several.

The result does not depend on it. On CPU, clients in turn are fastest: vectorizing over clients turns matrix products
into batched ones and convolutions into grouped ones. On accelerators, vectorized clients fill the device.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool

from fedjax_ssl.federated.client import ClientUpdate, train_client
from fedjax_ssl.federated.lanes import run_lanes
from fedjax_ssl.federated.method import Client
from fedjax_ssl.federated.reduction import REDUCTIONS, add_in_order, add_one, sum_over_devices

PyTree = Any
PLACEMENTS = ("auto", "vmap", "sequential", "chunked", "lanes")


def train_cohort(
    update: ClientUpdate,
    clients: Client,
    valid: Bool[Array, " p"],
    placement: str = "auto",
    chunk_size: int = 8,
    mesh: Mesh | None = None,
    reduce: str = "ordered",
) -> tuple[PyTree, PyTree]:
    """Trains a cohort's clients.

    Args:
        update: from `client_update`.
        clients: leading axis p.
        valid: False on slots without a client.
        placement: on each device as in `map_clients`, or "lanes": `chunk_size` clients at once, each followed by the
            next one as soon as it is done, where otherwise the others wait for the longest.
        chunk_size: clients at once on a device, where it is neither one nor all.
        mesh: the devices that share the cohort in equal blocks; all axes together count as one list of devices.
            None: one device.
        reduce: how sums go over the devices of a mesh, see `sum_over_devices`.

    Returns:
        (sums over the cohort, results stacked over the cohort); with a mesh, whole on each of its devices.

    Raises:
        ValueError: for an unknown placement or reduction, or a chunk size below 1.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce is {reduce!r}; allowed: {', '.join(REDUCTIONS)}")
    if mesh is None:
        return _train_on_one_device(update, clients, valid, placement, chunk_size)
    # Nothing is added on the devices: every client's own values are needed to add them in client order.
    stacking = update._replace(finish=lambda *done: ((), update.finish(*done)))
    axes, size = mesh.axis_names, valid.shape[0]
    clients, valid = _fill_up(clients, valid, -size % mesh.size)

    def train_share(clients: Client, valid: Array) -> tuple[PyTree, PyTree]:
        _, (summed, stacked) = _train_on_one_device(stacking, clients, valid, placement, chunk_size)
        return sum_over_devices(summed, valid, axes, size, reduce), jax.lax.all_gather(stacked, axes, tiled=True)

    share, everywhere = PartitionSpec(axes), PartitionSpec()
    summed, stacked = jax.shard_map(
        train_share,
        mesh=mesh,
        in_specs=(share, share),
        out_specs=(everywhere, everywhere),
        # Local training starts from the same values everywhere, which are not marked as differing between devices.
        check_vma=False,
    )(clients, valid)
    return summed, jax.tree.map(lambda x: x[:size], stacked)


def _train_on_one_device(
    update: ClientUpdate, clients: Client, valid: Bool[Array, " p"], placement: str, chunk_size: int
) -> tuple[PyTree, PyTree]:
    if placement != "lanes":
        return map_clients(lambda client: train_client(update, client), clients, valid, placement, chunk_size)
    _check(placement, chunk_size)
    num_steps, ends = run_lanes(update, clients, valid, min(chunk_size, valid.shape[0]))
    trained = (clients, num_steps, ends)
    return map_clients(lambda one: update.finish(*one), trained, valid, "chunked", chunk_size)


def map_clients(
    update: Callable[[PyTree], tuple[PyTree, PyTree]],
    clients: PyTree,
    valid: Bool[Array, " p"],
    placement: str = "auto",
    chunk_size: int = 8,
) -> tuple[PyTree, PyTree]:
    """Runs `update` for every client; adds its first result over clients in client order and stacks its second.

    Empty slots of the cohort are run as well (they take no local step) and add nothing.

    Args:
        update: one client -> (to be summed, to be stacked).
        clients: tree with leading axis p.
        valid: False on slots without a client.
        placement: "sequential", "vmap", "chunked", or "auto" (sequential on CPU, chunked elsewhere).
        chunk_size: clients at once when chunked.

    Returns:
        (sums over the cohort, results stacked over the cohort).

    Raises:
        ValueError: for an unknown placement or a chunk size below 1.
    """
    _check(placement, chunk_size)
    size = valid.shape[0]
    if placement == "auto":
        placement = "sequential" if jax.default_backend() == "cpu" else "chunked"
    width = {"sequential": 1, "vmap": size, "chunked": min(chunk_size, size)}[placement]
    slots, counts = _fill_up(clients, valid, -size % width)
    num_chunks = counts.shape[0] // width
    chunks, chunk_counts = jax.tree.map(lambda x: x.reshape(num_chunks, width, *x.shape[1:]), (slots, counts))

    def run_chunk(total: PyTree, chunk: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
        members, count = chunk
        if width == 1:
            summed, kept = update(jax.tree.map(lambda x: x[0], members))
            return add_one(total, summed, count[0]), jax.tree.map(lambda x: x[None], kept)
        summed, kept = jax.vmap(update)(members)
        return add_in_order(summed, count, total), kept

    shapes, _ = jax.eval_shape(update, jax.tree.map(lambda x: x[0], clients))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, stacked = jax.lax.scan(run_chunk, zeros, (chunks, chunk_counts))
    return total, jax.tree.map(lambda x: x.reshape(num_chunks * width, *x.shape[2:])[:size], stacked)


def _fill_up(clients: PyTree, valid: Bool[Array, " p"], padding: int) -> tuple[PyTree, Bool[Array, " q"]]:
    """Adds empty slots at the end."""
    if not padding:
        return clients, valid
    slots = jax.tree.map(lambda x: jnp.concatenate([x, x[:1].repeat(padding, 0)]), clients)
    return slots, jnp.concatenate([valid, jnp.zeros(padding, bool)])


def _check(placement: str, chunk_size: int) -> None:
    if placement not in PLACEMENTS:
        raise ValueError(f"placement is {placement!r}; allowed: {', '.join(PLACEMENTS)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; it must be at least 1")
