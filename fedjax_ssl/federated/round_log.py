"""The log of a round: local work and bytes sent."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from fedjax_ssl.federated.contract import Metrics, RoundResult, Term, Traffic
from fedjax_ssl.federated.messages import Arrivals, Work
from fedjax_ssl.federated.recipe import Recipe
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


def round_metrics(
    recipe: Recipe,
    terms: tuple[Term, ...],
    outcomes: dict[str, RoundResult],
    arrivals: Arrivals,
    work: Work,
    truth: Int[Array, "p n"],
) -> Metrics:
    """Return all metrics of a round in which clients trained.

    Args:
        recipe: the method in its run.
        terms: the clients' terms.
        outcomes: results by term.
        arrivals: results of each client.
        work: work of all clients.
        truth: true labels of the cohort's examples.
    """
    setup = recipe.setup
    outcome = outcomes[terms[0].name]
    present = outcome.context.valid
    clients = jnp.sum(present, dtype=jnp.int32)
    uploads = jnp.sum(present & arrivals.arrived, dtype=jnp.int32)
    info = work_done(work) | {"clients": clients}
    if setup.participation is not None:
        info["lost_clients"] = jnp.sum(present & arrivals.lost, dtype=jnp.int32)
    info |= _bytes_sent(recipe, terms, outcomes, clients, uploads)
    if setup.average_optimizer:
        # Logged apart from the bytes above: ProtoFSSL, whose clients share one optimizer, does not
        # count it.
        size = 2 * BYTES_PER_NUMBER * entries(outcome.before.local_optimizer)
        info["optimizer_state_bytes"] = count(clients, size)
    for term in terms:
        info |= term.log.diagnose(outcomes[term.name], truth, arrivals.measured[term.name])
    return info


def _bytes_sent(
    recipe: Recipe,
    terms: tuple[Term, ...],
    outcomes: dict[str, RoundResult],
    clients: Int[Array, ""],
    uploads: Int[Array, ""],
) -> Metrics:
    """Count the bytes sent, by shape: the model, unless a term replaces it, and all other messages.
    Only parameter groups that a client trained go up.
    """
    groups = recipe.groups
    before = outcomes[terms[0].name].before
    shared = {group: before.params[group] for group in groups.shared}
    trained = {group: shared[group] for group in {term.group for term in terms} & shared.keys()}
    statistics = 0 if groups.own_statistics else entries(before.model_state)
    beside = recipe.setup.federated_optimizer.sends(shared)
    traffic = [_traffic(term, outcomes[term.name], clients, uploads) for term in terms]
    model = entries(shared) + statistics
    numbers = model * all(one.model_down for one in traffic) + beside.down
    down = count(0) + count(clients, BYTES_PER_NUMBER * numbers)
    model = entries(trained) + statistics
    numbers = model * all(one.model_up for one in traffic) + beside.up
    up = count(0) + count(uploads, BYTES_PER_NUMBER * numbers)
    for one in traffic:
        down = down + one.down
        up = up + one.up
    return {"bytes_down": down, "bytes_up": up}


def _traffic(
    term: Term, outcome: RoundResult, clients: Int[Array, ""], arrived: Int[Array, ""]
) -> Traffic:
    """Return the bytes that a term sends: its own count, or one number for each entry that it hands
    out or collects.
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
    """Return the metrics of a round in which the server trained: its work counts, but it is no
    client and sends nothing.
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
