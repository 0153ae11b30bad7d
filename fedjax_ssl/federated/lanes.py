"""Lanes: clients of unequal size packed one after another into rows of equal length.

Vectorizing over clients makes every client take as many steps as the largest one. Here L lanes run side by side; a lane
starts a client from the global model, takes exactly that client's steps, puts its result aside and goes on with the
next one, so that all lanes are busy until nearly the end.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int32

from fedjax_ssl.federated.client import ClientProgress, ClientUpdate, batch_of
from fedjax_ssl.federated.method import Client

PyTree = Any


class LanePlan(NamedTuple):
    """Which lane takes which client, and when."""

    queue: Int32[Array, "L p"]  # clients of a lane in the order in which it takes them, then p
    start: Int32[Array, " p"]  # steps that its lane takes before a client
    length: Int32[Array, ""]  # steps of the longest lane


class _Lanes(NamedTuple):
    """What is carried from one step of the lanes to the next."""

    place: Int32[Array, " L"]  # in the lane's queue
    client: Client  # whom the lane is busy with, leading axis L
    progress: ClientProgress  # leading axis L
    ends: ClientProgress  # leading axis p


def pack(num_steps: Int[Array, " p"], num_lanes: int) -> LanePlan:
    """Packs clients into lanes, longest first, each into the lane that is the shortest so far (Graham, 1969).

    The longest lane is at most 4/3 of the best plan. Clients without steps are in no lane.

    Args:
        num_steps: local steps of each client.
        num_lanes: L.
    """
    size = num_steps.shape[0]
    order = jnp.argsort(-num_steps, stable=True)

    def place(loads: tuple[Array, Array], client: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        load, count = loads
        lane = jnp.argmin(load)
        steps = num_steps[client]
        taken = (steps > 0).astype(count.dtype)
        placed = (lane, count[lane], load[lane])
        return (load.at[lane].add(steps), count.at[lane].add(taken)), placed

    nothing = jnp.zeros(num_lanes, jnp.int32)
    (load, _), (lane, rank, start) = jax.lax.scan(place, (nothing, nothing), order)
    lane = jnp.where(num_steps[order] > 0, lane, num_lanes)
    queue = jnp.full((num_lanes, size), size, jnp.int32).at[lane, rank].set(order.astype(jnp.int32), mode="drop")
    return LanePlan(queue, jnp.zeros(size, jnp.int32).at[order].set(start), jnp.max(load))


def run_lanes(
    update: ClientUpdate, clients: Client, valid: Bool[Array, " p"], num_lanes: int
) -> tuple[Int32[Array, " p"], ClientProgress]:
    """Runs the local steps of a cohort in lanes.

    Under `vmap`, as in a sweep over seeds, its conditionals turn into selections that go over all results in every
    step: other placements are faster there.

    Args:
        update: from `client_update`.
        clients: leading axis p.
        valid: False on slots without a client.
        num_lanes: L, at least 1.

    Returns:
        (steps taken, progress at the end) of every client, leading axis p.
    """
    size = valid.shape[0]
    schedules = jax.vmap(update.schedule)(clients)
    num_steps = jnp.where(valid, schedules.num_steps, 0).astype(jnp.int32)
    plan = pack(num_steps, num_lanes)
    lanes = jnp.arange(num_lanes, dtype=jnp.int32)
    start_all = jax.vmap(update.start)

    def take_step(number: Array, state: _Lanes) -> _Lanes:
        who = plan.queue[lanes, jnp.minimum(state.place, size - 1)]
        who = jnp.where(state.place < size, who, size)
        busy = who < size
        known = jnp.minimum(who, size - 1)
        within = number - plan.start[known]
        first, last = busy & (within == 0), busy & (within == num_steps[known] - 1)

        def begin(state: _Lanes) -> _Lanes:
            next_ones = jax.tree.map(lambda x: x[known], clients)
            client, progress = _where(first, (next_ones, start_all(next_ones)), (state.client, state.progress))
            return state._replace(client=client, progress=progress)

        state = jax.lax.cond(jnp.any(first), begin, lambda state: state, state)
        batch = batch_of(schedules, known, within)
        progress = jax.vmap(update.step)(state.client, within, batch, state.progress)
        progress = _where(busy, progress, state.progress)

        def put_aside(ends: ClientProgress) -> ClientProgress:
            target = jnp.where(last, who, size)
            return jax.tree.map(lambda kept, new: kept.at[target].set(new, mode="drop"), ends, progress)

        ends = jax.lax.cond(jnp.any(last), put_aside, lambda ends: ends, state.ends)
        return _Lanes(state.place + last.astype(jnp.int32), state.client, progress, ends)

    anybody = jnp.zeros(num_lanes, jnp.int32)
    first = jax.tree.map(lambda x: x[anybody], clients)
    start = _Lanes(place=anybody, client=first, progress=start_all(first), ends=start_all(clients))
    return num_steps, jax.lax.fori_loop(0, plan.length, take_step, start).ends


def _where(condition: Bool[Array, " L"], new: PyTree, old: PyTree) -> PyTree:
    def choose(a: Array, b: Array) -> Array:
        return jnp.where(jnp.expand_dims(condition, tuple(range(1, a.ndim))), a, b)

    return jax.tree.map(choose, new, old)
