"""What a client computes and sends in a round, by the formulas of ProtoFSSL's Table 1, and as metrics of a run.

Operations are additions and multiplications of forward passes alone; a pass goes over all examples of a client once.
With 50 labelled and 490 unlabelled examples, two helpers, E = 1 and F of `Model.forward_operations`, these are the
figures of Table 2.

Source: Kim et al., ProtoFSSL, arXiv 2205.13921, Tables 1 and 2.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.federated import BYTES_PER_NUMBER, Setup
from fedjax_ssl.federated.method import Metrics, RoundResult

# Metrics, of the mean client of a round.
COSTS = ("analytic_gflop", "analytic_megabytes", "as_run_forward_gflop", "as_run_gflop")
GIGA, MEGA = 1e9, 1e6
Number = float | Array


class Work(NamedTuple):
    """What the formulas count with, of one client or of the mean of several."""

    labelled: Number  # examples |D^L|
    unlabelled: Number  # |D^U|
    forward_operations: float  # F, of one example
    model_bytes: float  # Theta
    passes: int = 1  # E, over all examples


class Cost(NamedTuple):
    """Of one client in one round."""

    operations: Number
    bytes: Number  # down and up together


def protofssl_cost(work: Work, num_helpers: int, num_classes: int, num_features: int) -> Cost:
    """F (|D^L| + |D^U|) E + D H K |D^U| E + F |D^L| and 2 Theta + C (1 + H) K, with C bytes for D features."""
    forwards = (work.labelled + work.unlabelled) * work.passes + work.labelled
    distances = num_features * num_helpers * num_classes * work.unlabelled * work.passes
    prototypes = BYTES_PER_NUMBER * num_features * (1 + num_helpers) * num_classes
    return Cost(work.forward_operations * forwards + distances, 2 * work.model_bytes + prototypes)


def cost_metrics(
    setup: Setup,
    outcome: RoundResult,
    cost: Callable[[Work], Cost],
    trained: Float[Array, " p"],
    others: Float[Array, " p"],
) -> Metrics:
    """The mean costs of a round's clients: by a formula with E = 1, and of the examples that they really went through.

    Args:
        setup: the run, with its network.
        outcome: of the round.
        cost: a formula above, which has to be linear in the numbers of examples.
        trained: examples of every client that went forward and backward, a backward pass counted as two forward ones.
        others: examples that went forward only.

    Returns:
        `COSTS`; nothing where the network's operations are not known.
    """
    if setup.model.forward_operations is None:
        return {}
    operations = float(setup.model.forward_operations())
    valid, clients = outcome.round.valid, outcome.round.clients

    def mean(values: Array) -> Float[Array, ""]:
        total = jnp.sum(values, where=valid).astype(jnp.result_type(float))
        return total / jnp.maximum(jnp.sum(valid), 1).astype(total.dtype)

    labelled = mean(clients.num_labelled)
    size = float(BYTES_PER_NUMBER * sum(leaf.size for leaf in jax.tree.leaves(outcome.round.params)))
    found = cost(Work(labelled, mean(clients.num_examples) - labelled, operations, size))
    forward, backward = mean(trained + others), 2 * mean(trained)
    values = (
        found.operations / GIGA,
        found.bytes / MEGA,
        operations / GIGA * forward,
        operations / GIGA * (forward + backward),
    )
    return {name: jnp.asarray(value, forward.dtype) for name, value in zip(COSTS, values, strict=True)}
