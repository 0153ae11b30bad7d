"""Numbers of local steps, as far as they are known before training."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Bool

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client_states import all_clients, without_examples
from fedjax_ssl.federated.contract import Client, Now, Sampler, Stage

# Largest over mean number of local steps. From here on, lanes are worth the memory for the results
# of the whole cohort; up to here, a loop of constant length is worth its idle steps.
_UNEQUAL = 1.25


def who_trains(stages: tuple[Stage, ...], data: FederatedData) -> Bool[Array, " C"]:
    """Return the mask of clients with a local step, as far as sizes and labels decide it."""
    clients = all_clients(data)
    key = jax.random.key(0)
    now = Now(jnp.zeros((), jnp.int32))
    found = jnp.zeros(data.num_clients, bool)
    for stage in stages:
        if stage.clients is None:
            continue
        sampler = stage.clients.sampler
        trains = clients.num_examples > 0
        if stage.labelled_quota == "only":
            trains = trains & (stage.count_labels(clients) > 0)
        if not sampler.reads_sent:  # otherwise the steps depend on messages
            schedule = sampler.schedule
            steps = jax.vmap(lambda client, draw=schedule: draw(key, client, now).num_steps)
            trains = trains & (steps(clients) > 0)
        found = found | trains
    return found


def steps_of(sampler: Sampler, clients: Client | None) -> tuple[float | None, str]:
    """Return facts that follow from the clients' sizes: (largest over mean number of local steps,
    over clients that take any; end of their loops of local steps, see `train_client`).

    Args:
        sampler: draws the batches.
        clients: leading axis C; not traced. None: unknown, and so is the number.
    """
    if clients is None or sampler.reads_sent:
        return None, "whole" if sampler.equal_steps else "own"
    with jax.ensure_compile_time_eval():  # may be called while a round is traced
        key = jax.random.key(0)
        now = Now(jnp.zeros((), jnp.int32))
        count = jax.jit(jax.vmap(lambda client: sampler.schedule(key, client, now).num_steps))
        left_out = without_examples(clients, jnp.zeros(clients.id.shape, bool))
        num_steps = np.asarray(count(clients))
        num_without = np.asarray(count(left_out))
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), clients)
        masks = jax.eval_shape(lambda client: sampler.schedule(key, client, now), one).masks
        by_client = _counts_by_client(sampler, one)
    bound = jax.tree.leaves(masks)[0].shape[0]
    taken = num_steps[num_steps > 0]
    mean = float(taken.mean()) if len(taken) else 0.0
    spread = int(taken.max()) / mean if mean else 1.0
    all_or_none = set(taken) == {bound} and set(num_without) <= {0, bound}
    if sampler.equal_steps or (by_client and all_or_none):
        return spread, "whole"
    # "bound" if that costs at most a quarter more steps.
    return spread, "bound" if mean and bound <= _UNEQUAL * mean else "own"


def is_unequal(spread: float | None) -> bool:
    """Return whether clients are known to be too unequal to wait for each other."""
    return spread is not None and spread > _UNEQUAL


def decided_by_sizes(samplers: Iterable[Sampler], clients: Client) -> list[tuple[bool, str]]:
    """Return everything besides shapes that the clients' sizes decide in a program's text, for each
    sampler.

    Args:
        samplers: samplers of the clients' batches.
        clients: leading axis C; not traced.
    """
    found = [steps_of(sampler, clients) for sampler in samplers]
    return [(is_unequal(spread), loop) for spread, loop in found]


def _counts_by_client(sampler: Sampler, client: Client) -> bool:
    """Return whether the number of steps follows from the client alone, and not from the round or a
    draw.
    """

    def count(key: Array, number: Array, client: Client) -> Array:
        return sampler.schedule(key, client, Now(number)).num_steps

    number = jnp.zeros((), jnp.int32)
    jaxpr = jax.make_jaxpr(count)(jax.random.key(0), number, client).jaxpr
    read = {value for value in jaxpr.outvars if not isinstance(value, Literal)}
    for equation in reversed(jaxpr.eqns):
        if not read.isdisjoint(equation.outvars):
            read |= {value for value in equation.invars if not isinstance(value, Literal)}
    return read.isdisjoint(jaxpr.invars[:3])
