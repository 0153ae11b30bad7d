"""What the log says of a round: the work that was done, and the bytes that were sent."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_ssl.federated.contract import Metrics, RoundResult, Term, Traffic
from fedjax_ssl.federated.messages import Work
from fedjax_ssl.federated.optimizers import Numbers
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, count, entries

PyTree = Any


def work_done(work: Work) -> Metrics:
    """Name the work of a round."""
    dtype = work.loss.dtype
    return {
        "loss": work.loss / jnp.maximum(work.steps.astype(dtype), 1.0),
        "local_steps": work.steps,
        "examples": work.examples,
        "dropped_clients": work.dropped,
    }


def bytes_sent(
    terms: tuple[Term, ...],
    arrived: Bool[Array, " p"],
    outcomes: dict[str, RoundResult],
    beside: Numbers,
    sizes: dict[str, int],
    state_size: int,
) -> Metrics:
    """Count the bytes of what travels, by its shapes: the model, unless a term sends something in
    its place, and all else. Up go the parameter groups that a client trained.

    Args:
        terms: of the clients.
        arrived: whose upload arrived.
        outcomes: by term.
        beside: what the federated optimizer sends beside the model.
        sizes: numbers that are sent of the model, by shared group.
        state_size: numbers of batch statistics that are sent.
    """
    present = outcomes[terms[0].name].context.valid
    clients = jnp.sum(present, dtype=jnp.int32)
    uploads = jnp.sum(present & arrived, dtype=jnp.int32)
    trained = {term.group for term in terms} & sizes.keys()
    traffic = [_traffic(term, outcomes[term.name], clients, uploads) for term in terms]
    model = sum(sizes.values()) + state_size
    numbers = model * all(one.model_down for one in traffic) + beside.down
    down = count(0) + count(clients, BYTES_PER_NUMBER * numbers)
    model = sum(sizes[group] for group in trained) + state_size
    numbers = model * all(one.model_up for one in traffic) + beside.up
    up = count(0) + count(uploads, BYTES_PER_NUMBER * numbers)
    for one in traffic:
        down = down + one.down
        up = up + one.up
    return {"bytes_down": down, "bytes_up": up}


def _traffic(
    term: Term, outcome: RoundResult, clients: Int[Array, ""], arrived: Int[Array, ""]
) -> Traffic:
    """Return the bytes that a term sends: what it says, or a number for each entry of what it
    hands out and collects.
    """
    if term.log.traffic is not None:
        return term.log.traffic(outcome)
    slots = outcome.context.valid.shape[0]
    down = 0
    if not term.server.at_clients:
        down = entries(outcome.sent.own) // slots + entries(outcome.sent.shared)
    up = entries(outcome.uploads) // slots + entries(outcome.averages)
    return Traffic(count(clients, BYTES_PER_NUMBER * down), count(arrived, BYTES_PER_NUMBER * up))


def with_server(info: Metrics, log: Metrics) -> Metrics:
    """Return the metrics of a round in which the server trained: its work counts, it is no client,
    and nothing was sent.
    """
    dropped = log["dropped_clients"]
    nothing = jnp.zeros((), jnp.int32)
    work = ("local_steps", "examples")
    alone = {
        **log,
        "clients": nothing,
        "dropped_clients": nothing,
        "bytes_down": count(0),
        "bytes_up": count(0),
    }
    both = {**alone, **info, **{name: info[name] + log[name] for name in work}} if info else alone
    lost = jnp.where(dropped > 0, jnp.nan, log["loss"])
    return {**both, "server_loss": lost, "server_dropped": dropped.astype(lost.dtype)}
