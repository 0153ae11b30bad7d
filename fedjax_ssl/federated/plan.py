"""The plan of a client's round, and its progress."""

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.federated.optimizers import Grouped

PyTree = Any


class ClientProgress(NamedTuple):
    """A client in the middle of its local training."""

    params: Grouped
    model_state: Array  # batch statistics, in one vector
    optimizer: dict[str, PyTree]
    local: dict[str, PyTree]
    loss: Float[Array, ""]  # sum over steps


class Batch(NamedTuple):
    """Batch of one local step of a client."""

    positions: dict[str, Int[Array, " b"]]
    # ^ by stream: places of the batch's examples in `Client.rows`
    masks: dict[str, Bool[Array, " b"]]
    key: Key[Array, ""]  # key of the step's random draws


class Plan(NamedTuple):
    """Plan of a client's round, known before its first step."""

    batches: Batch  # leading axis S, the static bound of local steps
    num_steps: Int[Array, ""]
    examples: Int[Array, ""]  # rows that enter a loss, over all its steps


def step_bound(plan: Plan) -> int:
    """Return the static bound of a client's local steps, the number of rows in its plan."""
    return plan.batches.key.shape[0]


def batch_of(plan: Plan, *place: Int[Array, ""]) -> Batch:
    """Return the batch of step `place`, or of (client, step) if plans are stacked."""
    return jax.tree.map(lambda table: table[place], plan.batches)
