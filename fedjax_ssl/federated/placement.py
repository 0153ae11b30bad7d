"""Place a cohort's clients: one after another, all at once, in chunks or in lanes, on one device or
on several.

The result does not depend on it. On CPU, clients in turn are fastest: vectorizing over clients
turns matrix products into batched ones and convolutions into grouped ones. On accelerators,
vectorized clients fill the device.

Lanes are for clients of unequal size, where vectorizing makes all take as many steps as the
largest: L lanes run side by side, each takes exactly a client's steps, puts its result aside and
goes on with the next client.

Floating-point sums depend on their order, and a sum over devices comes in an order of its own, but
where everything is gathered and added in client order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeGuard, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Int32

from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.data import LoadedInputs
from fedjax_ssl.federated.client import (
    AVERAGE,
    LOCAL_STEP,
    LocalRound,
    finish_client,
    plan_client,
    start_client,
    take_local_step,
    train_client,
)
from fedjax_ssl.federated.client_states import without_examples
from fedjax_ssl.federated.contract import Client
from fedjax_ssl.federated.messages import Arrivals, Download, Total
from fedjax_ssl.federated.plan import ClientProgress, Plan, batch_of

PyTree = Any
# "auto": see `fedjax_ssl.federated.execution.choose`
PLACEMENTS = ("auto", "vmap", "sequential", "chunked", "lanes")
REDUCTIONS = ("ordered", "fast")
# Clients whose values one turn of the loop over them adds: they become one kernel on accelerators.
_AT_ONCE = 16


def train_cohort(
    local_of: Callable[[Download], LocalRound],
    download: Download,
    clients: Client,
    valid: Bool[Array, " p"],
    placement: str = "sequential",
    chunk_size: int = 8,
    mesh: Mesh | None = None,
    reduce: str = "ordered",
    loop: str = "own",
    order: Int[Array, " q"] | None = None,
) -> tuple[Total, Arrivals]:
    """Trains a cohort's clients.

    Args:
        local_of: download -> what all clients share.
        download: what all clients receive; every device of a mesh is given it.
        clients: leading axis p.
        valid: False on slots without a client.
        placement: on each device as in `map_clients`, or "lanes": `chunk_size` clients at once,
            each followed by the next one as soon as it is done, where otherwise the others wait for
            the longest.
        chunk_size: clients at once on a device, where it is neither one nor all.
        mesh: the devices that share the cohort, each as many clients, dealt by size (`deal`); all
            axes together count as one list of devices. None: one device. Inside a `shard_map` over
            the mesh's axes, as in a sweep with seeds on another axis, each device is to call this
            with the whole cohort, and takes its share.
        reduce: how sums go over the devices of a mesh, see `sum_over_devices`.
        loop: loop of local steps, see `train_client`; lanes have one of their own.
        order: the slots of the first device, those of the next one, and so on, filled up with empty
            ones to a multiple of the devices; where each device has its own clients' examples.
            None: dealt here.

    Returns:
        (sums over the cohort, results stacked over the cohort); with a mesh, whole on each of its
        devices.

    Raises:
        ValueError: for an unknown placement or reduction, a chunk size below 1, or axes of a
            surrounding `shard_map` of another size than the mesh.
    """
    check_choices(REDUCTIONS, reduce=reduce)
    if mesh is None:
        return _train_on_one_device(
            local_of(download), False, clients, valid, placement, chunk_size, loop
        )
    axes = mesh.axis_names
    size = valid.shape[0]
    clients, valid = _fill_up(clients, valid, -size % mesh.size)
    clients = without_examples(clients, valid)
    if order is None:
        plans = jax.vmap(partial(plan_client, local_of(download)))(clients)
        num_steps = plans.num_steps
        order = deal(jnp.where(valid, num_steps, 0), mesh.size)
    slots = jnp.argsort(order)  # where each client went
    clients, valid = jax.tree.map(lambda x: x[order], (clients, valid))

    def train_share(
        download: Download, clients: Client, valid: Array, slots: Array
    ) -> tuple[PyTree, PyTree]:
        if _apart(download.inputs):
            download = download._replace(inputs=cast(Array, download.inputs.of_this_device()))
        # Nothing is added on the devices: every client's own values are needed to add them in
        # client order.
        _, (summed, stacked) = _train_on_one_device(
            local_of(download), True, clients, valid, placement, chunk_size, loop
        )
        return sum_over_devices(summed, valid, axes, reduce, slots), jax.lax.all_gather(
            stacked, axes, tiled=True
        )

    if set(axes) <= set(jax.sharding.get_abstract_mesh().manual_axes):
        mine, present = _take_share((clients, valid), mesh)
        summed, stacked = train_share(download, mine, present, slots)
    else:
        share = PartitionSpec(axes)
        everywhere = PartitionSpec()
        sent: Any = Download._make([everywhere] * len(Download._fields))
        if _apart(download.inputs):
            sent = sent._replace(inputs=download.inputs.specs())
        summed, stacked = jax.shard_map(
            train_share,
            mesh=mesh,
            in_specs=(sent, share, share, everywhere),
            out_specs=(everywhere, everywhere),
            # Local training starts from the same values everywhere, which are not marked as
            # differing between devices.
            check_vma=False,
        )(download, clients, valid, slots)
    return summed, jax.tree.map(lambda x: x[slots[:size]], stacked)


def _apart(inputs: Any) -> TypeGuard[LoadedInputs]:
    """Return whether each device has other clients' examples."""
    return isinstance(inputs, LoadedInputs) and inputs.mesh is not None


def deal(num_steps: Int[Array, " q"], num_devices: int) -> Int32[Array, " q"]:
    """Deals clients to devices, longest first and in turn there and back, so that devices finish
    together.

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


def _take_share(cohort: PyTree, mesh: Mesh) -> PyTree:
    axes = mesh.axis_names
    there = jax.lax.axis_size(axes)
    if there != mesh.size:
        raise ValueError(
            f"{mesh.size} devices are to share each cohort, but the surrounding shard_map has "
            f"{there} along {', '.join(map(str, axes))}; give both the same number"
        )

    def take(x: Array) -> Array:
        share = x.shape[0] // mesh.size
        return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * share, share)

    return jax.tree.map(take, cohort)


def _train_on_one_device(
    local: LocalRound,
    stacking: bool,
    clients: Client,
    valid: Bool[Array, " p"],
    placement: str,
    chunk_size: int,
    loop: str,
) -> tuple[PyTree, PyTree]:
    def done(summed: Total, stacked: Arrivals) -> tuple[PyTree, PyTree]:
        return ((), (summed, stacked)) if stacking else (summed, stacked)

    def whole(one: tuple[Client, Plan]) -> tuple[PyTree, PyTree]:
        return done(*train_client(local, *one, loop))

    def end(one: tuple[Client, Plan, ClientProgress]) -> tuple[PyTree, PyTree]:
        return done(*finish_client(local, *one))

    if placement == "lanes":
        _check(placement, chunk_size)
        plans, ends = run_lanes(local, clients, valid, min(chunk_size, valid.shape[0]))
        return map_clients(end, (clients, plans, ends), valid, "chunked", chunk_size)
    # of all at once: small operations that each client would wait for
    plans = jax.vmap(partial(plan_client, local))(clients)
    return map_clients(whole, (clients, plans), valid, placement, chunk_size)


def map_clients(
    update: Callable[[PyTree], tuple[PyTree, PyTree]],
    clients: PyTree,
    valid: Bool[Array, " p"],
    placement: str = "sequential",
    chunk_size: int = 8,
) -> tuple[PyTree, PyTree]:
    """Run `update` for every client; adds its first result over clients in client order and stacks
    its second.

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
    chunks, chunk_counts = jax.tree.map(
        lambda x: x.reshape(num_chunks, width, *x.shape[1:]), (slots, counts)
    )

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
    return total, jax.tree.map(
        lambda x: x.reshape(num_chunks * width, *x.shape[2:])[:size], stacked
    )


def _fill_up(
    clients: PyTree, valid: Bool[Array, " p"], padding: int
) -> tuple[PyTree, Bool[Array, " q"]]:
    """Add empty slots at the end."""
    if not padding:
        return clients, valid
    slots = jax.tree.map(lambda x: jnp.concatenate([x, x[:1].repeat(padding, 0)]), clients)
    return slots, jnp.concatenate([valid, jnp.zeros(padding, bool)])


def _check(placement: str, chunk_size: int) -> None:
    check_choices(PLACEMENTS[1:], placement=placement)
    check_whole_numbers(chunk_size=chunk_size)


class LanePlan(NamedTuple):
    """Assignment of clients to lanes, and their order."""

    queue: Int32[Array, "L p"]  # clients of a lane in the order in which it takes them, then p
    start: Int32[Array, " p"]  # steps that its lane takes before a client
    length: Int32[Array, ""]  # steps of the longest lane


def pack(num_steps: Int[Array, " p"], num_lanes: int) -> LanePlan:
    """Packs clients into lanes, longest first, each into the lane that is the shortest so far
    (Graham, 1969).

    The longest lane is at most 4/3 of the best plan. Clients without steps are in no lane.

    Args:
        num_steps: local steps of each client.
        num_lanes: L.
    """
    size = num_steps.shape[0]
    order = jnp.argsort(-num_steps, stable=True)

    def place(
        loads: tuple[Array, Array], client: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        load, count = loads
        lane = jnp.argmin(load)
        steps = num_steps[client]
        taken = (steps > 0).astype(count.dtype)
        placed = (lane, count[lane], load[lane])
        return (load.at[lane].add(steps), count.at[lane].add(taken)), placed

    nothing = jnp.zeros(num_lanes, jnp.int32)
    (load, _), (lane, rank, start) = jax.lax.scan(place, (nothing, nothing), order)
    lane = jnp.where(num_steps[order] > 0, lane, num_lanes)
    queue = (
        jnp.full((num_lanes, size), size, jnp.int32)
        .at[lane, rank]
        .set(order.astype(jnp.int32), mode="drop")
    )
    return LanePlan(queue, jnp.zeros(size, jnp.int32).at[order].set(start), jnp.max(load))


def run_lanes(
    local: LocalRound, clients: Client, valid: Bool[Array, " p"], num_lanes: int
) -> tuple[Plan, ClientProgress]:
    """Run the local steps of a cohort in lanes.

    Args:
        local: what all clients share.
        clients: leading axis p.
        valid: False on slots without a client.
        num_lanes: L, at least 1.

    Returns:
        (plan, progress at the end) of every client, leading axis p.
    """
    size = valid.shape[0]
    plans = jax.vmap(partial(plan_client, local))(clients)
    num_steps = jnp.where(valid, plans.num_steps, 0).astype(jnp.int32)
    lane_plan = pack(num_steps, num_lanes)
    lanes = jnp.arange(num_lanes, dtype=jnp.int32)

    @jax.named_scope(LOCAL_STEP)
    def take_step(
        number: Array, state: tuple[Array, ClientProgress]
    ) -> tuple[Array, ClientProgress]:
        place, progresses = state
        who = lane_plan.queue[lanes, jnp.minimum(place, size - 1)]
        who = jnp.where(place < size, who, size)
        busy = who < size
        known = jnp.minimum(who, size - 1)
        within = number - lane_plan.start[known]
        # Every client's progress has its own place, where its lane finds what it starts from and
        # leaves what it has reached: no lane asks whether a client begins or ends. An idle lane
        # writes beyond the end.
        client, progress = jax.tree.map(lambda x: x[known], (clients, progresses))
        batch = batch_of(plans, known, within)
        after = jax.vmap(partial(take_local_step, local))(client, within, batch, progress)
        target = jnp.where(busy, who, size + lanes)
        progresses = jax.tree.map(
            lambda kept, new: kept.at[target].set(new, mode="drop", unique_indices=True),
            progresses,
            after,
        )
        last = busy & (within == num_steps[known] - 1)
        return place + last.astype(jnp.int32), progresses

    start = jnp.zeros(num_lanes, jnp.int32), jax.vmap(partial(start_client, local))(clients)
    return plans._replace(num_steps=num_steps), jax.lax.fori_loop(
        0, lane_plan.length, take_step, start
    )[1]


@jax.named_scope(AVERAGE)
def add_one(total: PyTree, entry: PyTree, counts: Bool[Array, ""]) -> PyTree:
    """Return the sum with one more client in it, if it counts; NaN of one that does not stays
    out.
    """
    return jax.tree.map(lambda t, x: t + jnp.where(counts, x, jnp.zeros_like(x)), total, entry)


@jax.named_scope(AVERAGE)
def add_in_order(
    values: PyTree,
    valid: Bool[Array, " p"],
    start: PyTree | None = None,
    order: Int[Array, " p"] | None = None,
) -> PyTree:
    """Add up the entries of a cohort in client order, one after another for every element.

    The order is kept within a turn of the loop too, so that the bits depend neither on how many
    clients a turn adds nor on how many devices hold them.

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
        return jax.lax.scan(
            lambda total, one: (add_one(total, *one), None), start, entries, unroll=_AT_ONCE
        )[0]

    def add_entry(total: PyTree, place: Array) -> tuple[PyTree, None]:
        return add_one(total, *jax.tree.map(lambda x: x[place], entries)), None

    return jax.lax.scan(add_entry, start, order, unroll=_AT_ONCE)[0]


@jax.named_scope(AVERAGE)
def sum_over_devices(
    values: PyTree,
    valid: Bool[Array, " m"],
    axis: str | tuple[str, ...],
    reduce: str,
    order: Int[Array, " q"] | None = None,
) -> PyTree:
    """Add up a cohort whose slots are spread over devices; to be called inside `shard_map`.

    Args:
        values: this device's slots, leading axis m.
        valid: False on slots that add nothing.
        axis: the mesh axes that the slots are spread over.
        reduce: "ordered": gather and add in client order, the same bits as on one device; takes the
            memory of the whole cohort's values on every device. "fast": add on each device, then
            over devices; the last bits depend on their number.
        order: where among the slots of all devices the first client is, the second one, and so on;
            None: in order.

    Returns:
        The sums, the same on every device.
    """
    if reduce == "ordered":
        gathered, counted = jax.lax.all_gather((values, valid), axis, tiled=True)
        return add_in_order(gathered, counted, order=order)
    return jax.lax.psum(add_in_order(values, valid), axis)
