"""Place a cohort's clients: one after another, all at once, in chunks or in lanes, on one device or
on several.

The result does not depend on the placement. On a CPU, clients one after another are fastest:
vectorizing over clients turns matrix products into batched ones and convolutions into grouped ones.
On accelerators, vectorized clients fill the device.

Lanes are for clients of unequal size, because a vectorized loop takes as many steps as its largest
client. L lanes run side by side; each takes exactly one client's steps, stores its result and goes
on with the next client.

Floating-point sums depend on their order. A sum over devices has its own order, unless all values
are gathered and added in client order.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Int32

from fedjax_ssl.checks import check_choices
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
from fedjax_ssl.federated.execution import REDUCTIONS, Choice, Execution, decide
from fedjax_ssl.federated.messages import Arrivals, Download, Total
from fedjax_ssl.federated.plan import ClientProgress, Plan, batch_of

PyTree = Any
# Clients added per iteration of the loop over them: on accelerators these become one kernel.
_AT_ONCE = 16


def train_cohort(
    local_of: Callable[[Download], LocalRound],
    execution: Execution,
    download: Download,
    clients: Client,
    valid: Bool[Array, " p"],
) -> tuple[Total, Arrivals]:
    """Train a cohort's clients.

    With a mesh, its devices share the cohort: each gets equally many clients, dealt by size
    (`deal`); all axes together count as one list of devices. Inside a `shard_map` over the mesh's
    axes, as in a sweep with seeds on another axis, each device calls this with the whole cohort and
    takes its share.

    Args:
        local_of: download -> the `LocalRound` that all clients share.
        execution: placement and devices.
        download: message to all clients, and to every device of a mesh.
        clients: leading axis p.
        valid: False on slots without a client.

    Returns:
        (sums over the cohort, results stacked over the cohort); with a mesh, the whole result is on
        each of its devices.

    Raises:
        ValueError: for an unknown placement or reduction, a chunk size below 1, or axes of a
            surrounding `shard_map` of another size than the mesh.
    """
    mesh = execution.mesh
    check_choices(REDUCTIONS, reduce=execution.reduce)
    local = local_of(download)
    size = valid.shape[0]
    num_devices = 1 if mesh is None else mesh.size
    how = decide(execution, local.training.sampler, -(-size // num_devices))
    if mesh is None:
        return _train_on_one_device(local, *how, clients, valid)
    axes = mesh.axis_names
    clients, valid = _fill_up(clients, valid, -size % num_devices)
    clients = without_examples(clients, valid)
    drawn = download.inputs.drawn if isinstance(download.inputs, LoadedInputs) else None
    if drawn is None or drawn.order is None:
        num_steps = jax.vmap(partial(plan_client, local))(clients).num_steps
        order = deal(jnp.where(valid, num_steps, 0), num_devices)
    else:  # dealt before: each device holds the examples of its own clients
        assert download.now.round is not None, "clients train in rounds"
        order = drawn.order[download.now.round - drawn.first]
    slots = jnp.argsort(order)  # new place of each client
    clients, valid = jax.tree.map(lambda x: x[order], (clients, valid))

    def train_share(
        download: Download, clients: Client, valid: Array, slots: Array
    ) -> tuple[PyTree, PyTree]:
        if _apart(download.inputs):
            download = download._replace(inputs=cast(Array, download.inputs.of_this_device()))
        # Devices add nothing: adding in client order needs every client's own values.
        _, (summed, stacked) = _train_on_one_device(
            local_of(download), *how, clients, valid, adding=False
        )
        total = sum_over_devices(summed, valid, axes, execution.reduce, slots)
        return total, jax.lax.all_gather(stacked, axes, tiled=True)

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
            # All devices start local training from the same values, so they are not marked as
            # varying over devices.
            check_vma=False,
        )(download, clients, valid, slots)
    return summed, jax.tree.map(lambda x: x[slots[:size]], stacked)


def _apart(inputs: Any) -> TypeGuard[LoadedInputs]:
    """Return whether each device holds the examples of other clients."""
    return isinstance(inputs, LoadedInputs) and inputs.mesh is not None


def deal(num_steps: Int[Array, " q"], num_devices: int) -> Int32[Array, " q"]:
    """Deal clients to devices, longest first, back and forth, so that devices finish together.

    Every device gets equally many clients, so that shapes are the same in all rounds.

    Args:
        num_steps: local steps of each client; q is a multiple of the devices.
        num_devices: at least 1.

    Returns:
        Clients of the first device, longest first, then clients of the next one.
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
    choice: Choice,
    loop: str,
    clients: Client,
    valid: Bool[Array, " p"],
    adding: bool = True,
) -> tuple[PyTree, PyTree]:
    """Train clients: return (sums, results of each). If `adding` is False, everything is in the
    results.
    """

    def results(found: tuple[Total, Arrivals]) -> tuple[PyTree, PyTree]:
        return found if adding else ((), found)

    # Plans of all clients at once, because they are small operations that each client would wait
    # for.
    plans = jax.vmap(partial(plan_client, local))(clients)
    if choice.placement == "lanes":
        plans, ends = run_lanes(local, clients, plans, valid, choice.clients_at_once)
        return map_clients(
            lambda one: results(finish_client(local, *one)),
            (clients, plans, ends),
            valid,
            choice.clients_at_once,
        )

    def train(one: tuple[Client, Plan]) -> tuple[PyTree, PyTree]:
        client, plan = one
        return results(train_client(local, client, plan, loop))

    return map_clients(train, (clients, plans), valid, choice.clients_at_once)


def map_clients(
    update: Callable[[PyTree], tuple[PyTree, PyTree]],
    clients: PyTree,
    valid: Bool[Array, " p"],
    at_once: int,
) -> tuple[PyTree, PyTree]:
    """Run `update` for every client; add its first result in client order, and stack its second.

    Empty slots of the cohort are run as well (they take no local step) and add nothing.

    Args:
        update: one client -> (values to add, values to stack).
        clients: tree with leading axis p.
        valid: False on slots without a client.
        at_once: clients at once, at least 1.

    Returns:
        (sums over the cohort, results stacked over the cohort).
    """
    update = jax.jit(update)  # traced once, both for the shapes of its sums and to run it
    size = valid.shape[0]
    slots, counts = _fill_up(clients, valid, -size % at_once)
    shape = (counts.shape[0] // at_once, at_once)
    chunks = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (slots, counts))

    def run_chunk(total: PyTree, chunk: tuple[PyTree, Array]) -> tuple[PyTree, PyTree]:
        members, count = chunk
        if at_once == 1:
            summed, kept = update(jax.tree.map(lambda x: x[0], members))
            return add_one(total, summed, count[0]), jax.tree.map(lambda x: x[None], kept)
        summed, kept = jax.vmap(update)(members)
        return add_in_order(summed, count, total), kept

    shapes, _ = jax.eval_shape(update, jax.tree.map(lambda x: x[0], clients))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, stacked = jax.lax.scan(run_chunk, zeros, chunks)
    return total, jax.tree.map(lambda x: x.reshape(counts.size, *x.shape[2:])[:size], stacked)


def _fill_up(
    clients: PyTree, valid: Bool[Array, " p"], padding: int
) -> tuple[PyTree, Bool[Array, " q"]]:
    """Add empty slots at the end."""
    if not padding:
        return clients, valid
    slots = jax.tree.map(lambda x: jnp.concatenate([x, x[:1].repeat(padding, 0)]), clients)
    return slots, jnp.concatenate([valid, jnp.zeros(padding, bool)])


def pack(
    num_steps: Int[Array, " p"], num_lanes: int
) -> tuple[Int32[Array, "L p"], Int32[Array, " p"], Int32[Array, ""]]:
    """Pack clients into lanes, longest first, each into the lane that is the shortest so far
    (Graham, 1969).

    The longest lane is at most 4/3 of the best plan. Clients without steps are in no lane.

    Args:
        num_steps: local steps of each client.
        num_lanes: L.

    Returns:
        (clients of each lane in their order, then p as filling; steps of its lane before each
        client; steps of the longest lane).
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
    return queue, jnp.zeros(size, jnp.int32).at[order].set(start), jnp.max(load)


def run_lanes(
    local: LocalRound,
    clients: Client,
    plans: Plan,
    valid: Bool[Array, " p"],
    num_lanes: int,
) -> tuple[Plan, ClientProgress]:
    """Run the local steps of a cohort in lanes.

    Args:
        local: parts of local training that are the same for all clients.
        clients: leading axis p.
        plans: plans of the clients.
        valid: False on slots without a client.
        num_lanes: L, at least 1.

    Returns:
        (plan, progress at the end) of every client, leading axis p.
    """
    size = valid.shape[0]
    num_steps = jnp.where(valid, plans.num_steps, 0).astype(jnp.int32)
    queue, first, length = pack(num_steps, num_lanes)
    lanes = jnp.arange(num_lanes, dtype=jnp.int32)

    @jax.named_scope(LOCAL_STEP)
    def take_step(
        number: Array, state: tuple[Array, ClientProgress]
    ) -> tuple[Array, ClientProgress]:
        place, progresses = state
        who = queue[lanes, jnp.minimum(place, size - 1)]
        who = jnp.where(place < size, who, size)
        busy = who < size
        known = jnp.minimum(who, size - 1)
        within = number - first[known]
        # Every client's progress has its own slot. A lane reads its start there and writes its
        # state back, so no lane asks whether a client begins or ends. An idle lane writes beyond
        # the end.
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
    _, ends = jax.lax.fori_loop(0, length, take_step, start)
    return plans._replace(num_steps=num_steps), ends


@jax.named_scope(AVERAGE)
def add_one(total: PyTree, entry: PyTree, counts: Bool[Array, ""]) -> PyTree:
    """Return the sum plus one more client if it counts; NaN of a client that does not count stays
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

    The order holds within an iteration of the loop too, so the bits depend neither on the number of
    clients per iteration nor on the number of devices.

    Args:
        values: leading axis p.
        valid: False on slots that add nothing.
        start: sum over earlier clients; None: there are none.
        order: places of the clients' entries in client order; None: entries are in client order.

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
    """Add up a cohort whose slots are spread over devices; call it inside `shard_map`.

    Args:
        values: this device's slots, leading axis m.
        valid: False on slots that add nothing.
        axis: the mesh axes that the slots are spread over.
        reduce: "ordered": gather and add in client order, the same bits as on one device; takes the
            memory of the whole cohort's values on every device. "fast": add on each device, then
            over devices; the last bits depend on their number.
        order: places of the clients among the slots of all devices, in client order; None: slots
            are in client order.

    Returns:
        The sums, the same on every device.
    """
    if reduce == "ordered":
        gathered, counted = jax.lax.all_gather((values, valid), axis, tiled=True)
        return add_in_order(gathered, counted, order=order)
    return jax.lax.psum(add_in_order(values, valid), axis)
