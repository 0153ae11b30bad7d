"""Lanes: clients of unequal size packed one after another into rows of equal length.

Vectorizing over clients makes every client take as many steps as the largest one. Here L lanes run side by side; a lane
starts a client from the global model, takes exactly that client's steps, puts its result aside and goes on with the
next one, so that all lanes are busy until nearly the end.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Int32

from fedjax_ssl.federated.client import LOCAL_STEP, ClientProgress, ClientUpdate, Plan, batch_of
from fedjax_ssl.federated.method import Client


class LanePlan(NamedTuple):
    """Which lane takes which client, and when."""

    queue: Int32[Array, "L p"]  # clients of a lane in the order in which it takes them, then p
    start: Int32[Array, " p"]  # steps that its lane takes before a client
    length: Int32[Array, ""]  # steps of the longest lane


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
) -> tuple[Plan, ClientProgress]:
    """Runs the local steps of a cohort in lanes.

    Args:
        update: from `client_update`.
        clients: leading axis p.
        valid: False on slots without a client.
        num_lanes: L, at least 1.

    Returns:
        (plan, progress at the end) of every client, leading axis p.
    """
    size = valid.shape[0]
    plans = jax.vmap(update.plan)(clients)
    num_steps = jnp.where(valid, plans.num_steps, 0).astype(jnp.int32)
    lane_plan = pack(num_steps, num_lanes)
    lanes = jnp.arange(num_lanes, dtype=jnp.int32)

    @jax.named_scope(LOCAL_STEP)
    def take_step(number: Array, state: tuple[Array, ClientProgress]) -> tuple[Array, ClientProgress]:
        place, everybody = state
        who = lane_plan.queue[lanes, jnp.minimum(place, size - 1)]
        who = jnp.where(place < size, who, size)
        busy = who < size
        known = jnp.minimum(who, size - 1)
        within = number - lane_plan.start[known]
        # Every client's progress has its own place, where its lane finds what it starts from and leaves what it has
        # reached: no lane asks whether a client begins or ends. An idle lane writes beyond the end.
        client, progress = jax.tree.map(lambda x: x[known], (clients, everybody))
        after = jax.vmap(update.step)(client, within, batch_of(plans, known, within), progress)
        target = jnp.where(busy, who, size + lanes)
        everybody = jax.tree.map(
            lambda kept, new: kept.at[target].set(new, mode="drop", unique_indices=True), everybody, after
        )
        last = busy & (within == num_steps[known] - 1)
        return place + last.astype(jnp.int32), everybody

    start = jnp.zeros(num_lanes, jnp.int32), jax.vmap(update.start)(clients)
    return plans._replace(num_steps=num_steps), jax.lax.fori_loop(0, lane_plan.length, take_step, start)[1]
