"""Where a cohort's clients run: one after another, all at once, in chunks or in lanes, on one device or on several.

The result does not depend on it. On CPU, clients in turn are fastest: vectorizing over clients turns matrix products
into batched ones and convolutions into grouped ones. On accelerators, vectorized clients fill the device.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Int32

from fedjax_ssl.data import LoadedInputs
from fedjax_ssl.federated.client import ClientUpdate, Download, train_client
from fedjax_ssl.federated.lanes import run_lanes
from fedjax_ssl.federated.method import Client
from fedjax_ssl.federated.reduction import REDUCTIONS, add_in_order, add_one, sum_over_devices

PyTree = Any
PLACEMENTS = ("auto", "vmap", "sequential", "chunked", "lanes")  # "auto": see `fedjax_ssl.federated.execution.choose`


def train_cohort(
    update_of: Callable[[Download], ClientUpdate],
    broadcast: Download,
    clients: Client,
    valid: Bool[Array, " p"],
    placement: str = "sequential",
    chunk_size: int = 8,
    mesh: Mesh | None = None,
    reduce: str = "ordered",
    loop: str = "own",
    order: Int[Array, " q"] | None = None,
) -> tuple[PyTree, PyTree]:
    """Trains a cohort's clients.

    Args:
        update_of: broadcast -> local training, from `client_update`.
        broadcast: what all clients receive; every device of a mesh is given it.
        clients: leading axis p.
        valid: False on slots without a client.
        placement: on each device as in `map_clients`, or "lanes": `chunk_size` clients at once, each followed by the
            next one as soon as it is done, where otherwise the others wait for the longest.
        chunk_size: clients at once on a device, where it is neither one nor all.
        mesh: the devices that share the cohort, each as many clients, dealt by size (`deal`); all axes together count
            as one list of devices. None: one device. Inside a `shard_map` over the mesh's axes, as in a sweep with
            seeds on another axis, each device is to call this with the whole cohort, and takes its share.
        reduce: how sums go over the devices of a mesh, see `sum_over_devices`.
        loop: of local steps, see `train_client`; lanes have one of their own.
        order: the slots of the first device, those of the next one, and so on, filled up with empty ones to a multiple
            of the devices; where each device has its own clients' examples. None: dealt here.

    Returns:
        (sums over the cohort, results stacked over the cohort); with a mesh, whole on each of its devices.

    Raises:
        ValueError: for an unknown placement or reduction, a chunk size below 1, or axes of a surrounding `shard_map`
            of another size than the mesh.
    """
    if reduce not in REDUCTIONS:
        raise ValueError(f"reduce is {reduce!r}; allowed: {', '.join(REDUCTIONS)}")
    if mesh is None:
        return _train_on_one_device(update_of(broadcast), clients, valid, placement, chunk_size, loop)
    axes, size = mesh.axis_names, valid.shape[0]
    clients, valid = _fill_up(clients, valid, -size % mesh.size)
    clients = without_examples(clients, valid)
    if order is None:
        num_steps = jax.vmap(lambda client: update_of(broadcast).plan(client).num_steps)(clients)
        order = deal(jnp.where(valid, num_steps, 0), mesh.size)
    slots = jnp.argsort(order)  # where each client went
    clients, valid = jax.tree.map(lambda x: x[order], (clients, valid))

    def train_share(broadcast: Download, clients: Client, valid: Array, slots: Array) -> tuple[PyTree, PyTree]:
        if _apart(broadcast.inputs):
            broadcast = broadcast._replace(inputs=cast(Array, broadcast.inputs.of_this_device()))
        update = update_of(broadcast)
        # Nothing is added on the devices: every client's own values are needed to add them in client order.
        stacking = update._replace(finish=lambda *done: ((), update.finish(*done)))
        _, (summed, stacked) = _train_on_one_device(stacking, clients, valid, placement, chunk_size, loop)
        return sum_over_devices(summed, valid, axes, size, reduce, slots), jax.lax.all_gather(stacked, axes, tiled=True)

    if set(axes) <= set(jax.sharding.get_abstract_mesh().manual_axes):
        mine, present = _take_share((clients, valid), mesh)
        summed, stacked = train_share(broadcast, mine, present, slots)
    else:
        share, everywhere = PartitionSpec(axes), PartitionSpec()
        sent: Any = Download._make([everywhere] * len(Download._fields))
        if _apart(broadcast.inputs):
            sent = sent._replace(inputs=broadcast.inputs.specs())
        summed, stacked = jax.shard_map(
            train_share,
            mesh=mesh,
            in_specs=(sent, share, share, everywhere),
            out_specs=(everywhere, everywhere),
            # Local training starts from the same values everywhere, which are not marked as differing between devices.
            check_vma=False,
        )(broadcast, clients, valid, slots)
    return summed, jax.tree.map(lambda x: x[slots[:size]], stacked)


def _apart(inputs: Any) -> TypeGuard[LoadedInputs]:
    """Whether each device has other clients' examples."""
    return isinstance(inputs, LoadedInputs) and inputs.mesh is not None


def deal(num_steps: Int[Array, " q"], num_devices: int) -> Int32[Array, " q"]:
    """Deals clients to devices, longest first and in turn there and back, so that devices finish together.

    Every device gets as many clients, so that shapes stay the same in all rounds.

    Args:
        num_steps: local steps of each client; q is a multiple of the devices.
        num_devices: at least 1.

    Returns:
        Clients of the first device, longest first, then those of the next one.
    """
    hands = jnp.argsort(-num_steps, stable=True).astype(jnp.int32).reshape(-1, num_devices)
    back = jnp.arange(hands.shape[0], dtype=jnp.int32)[:, None] % 2 == 1
    return jnp.where(back, hands[:, ::-1], hands).T.reshape(-1)


def without_examples(clients: Client, kept: Bool[Array, " p"]) -> Client:
    """The same clients, of which those that are not kept have no examples, so that no batch is drawn for them."""
    weak = clients.weak
    if weak is not None:
        weak = replace(weak, num_examples=jnp.where(kept, weak.num_examples, 0))
    return clients._replace(
        num_labelled=jnp.where(kept, clients.num_labelled, 0),
        num_examples=jnp.where(kept, clients.num_examples, 0),
        weak=weak,
    )


def _take_share(cohort: PyTree, mesh: Mesh) -> PyTree:
    axes = mesh.axis_names
    there = jax.lax.axis_size(axes)
    if there != mesh.size:
        raise ValueError(
            f"{mesh.size} devices are to share each cohort, but the surrounding shard_map has {there} along "
            f"{', '.join(map(str, axes))}; give both the same number"
        )

    def take(x: Array) -> Array:
        share = x.shape[0] // mesh.size
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * share, share)

    return jax.tree.map(take, cohort)


def _train_on_one_device(
    update: ClientUpdate, clients: Client, valid: Bool[Array, " p"], placement: str, chunk_size: int, loop: str
) -> tuple[PyTree, PyTree]:
    if placement != "lanes":
        return map_clients(partial(train_client, update, loop=loop), clients, valid, placement, chunk_size)
    _check(placement, chunk_size)
    plans, ends = run_lanes(update, clients, valid, min(chunk_size, valid.shape[0]))
    trained = (clients, plans, ends)
    return map_clients(lambda one: update.finish(*one), trained, valid, "chunked", chunk_size)


def map_clients(
    update: Callable[[PyTree], tuple[PyTree, PyTree]],
    clients: PyTree,
    valid: Bool[Array, " p"],
    placement: str = "sequential",
    chunk_size: int = 8,
) -> tuple[PyTree, PyTree]:
    """Runs `update` for every client; adds its first result over clients in client order and stacks its second.

    Empty slots of the cohort are run as well (they take no local step) and add nothing.

    Args:
        update: one client -> (to be summed, to be stacked).
        clients: tree with leading axis p.
        valid: False on slots without a client.
        placement: "sequential", "vmap" or "chunked".
        chunk_size: clients at once when chunked.

    Returns:
        (sums over the cohort, results stacked over the cohort).

    Raises:
        ValueError: for an unknown placement or a chunk size below 1.
    """
    _check(placement, chunk_size)
    update = jax.jit(update)  # traced once, for the shapes of its sums and to run it
    size = valid.shape[0]
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
    allowed = [name for name in PLACEMENTS if name != "auto"]
    if placement not in allowed:
        raise ValueError(f"placement is {placement!r}; allowed: {', '.join(allowed)}")
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; it must be at least 1")
