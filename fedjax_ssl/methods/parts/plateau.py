"""A learning rate that falls where the loss on validation examples does not.

Reference:
    Serra et al., Overcoming catastrophic forgetting with hard attention to the task, ICML 2018,
    without its early end.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from fedjax_ssl.federated import Setup, map_rows
from fedjax_ssl.federated.method import Validation
from fedjax_ssl.objectives import batch_cross_entropy

LOWEST = 1e-17  # factor of the learning rate; of 1e-3 it is the code's lowest rate


class Plateau(NamedTuple):
    """State of the schedule."""

    factor: Float[Array, ""]  # factor of the learning rate
    best: Float[Array, ""]  # lowest validation loss so far
    patience: Int[Array, ""]  # evaluations without an improvement that are left


def first_plateau(patience: int) -> Plateau:
    """Before the first evaluation."""
    dtype = jnp.result_type(float)
    # Not inf: what clients keep has to be finite, or they count as dropped.
    return Plateau(
        jnp.ones((), dtype), jnp.full((), jnp.finfo(dtype).max), jnp.asarray(patience, jnp.int32)
    )


def next_plateau(
    state: Plateau, loss: Float[Array, ""], divisor: float | Array, patience: int
) -> Plateau:
    """After an evaluation: the rate is divided where the loss was not below the best for `patience`
    evaluations.

    Args:
        state: so far.
        loss: on the validation examples.
        divisor: number by which the rate is divided.
        patience: evaluations, at least 1.
    """
    better = loss < state.best
    left = jnp.where(better, patience, state.patience - 1)
    over = left <= 0
    factor = jnp.where(over, jnp.maximum(state.factor / divisor, LOWEST), state.factor)
    best = jnp.where(better, loss, state.best).astype(state.best.dtype)
    return Plateau(factor, best, jnp.where(over, patience, left).astype(jnp.int32))


def may_end_early(looks: int, patience: int, divisor: float | Array) -> list[str]:
    """Says that a schedule that looks more often than FedMatch's paper, 10 times with patience 5,
    may end learning.

    Args:
        looks: evaluations in a run.
        patience: of `next_plateau`.
        divisor: likewise.
    """
    if isinstance(patience, jax.core.Tracer) or looks <= 4 * patience:
        return []
    return [
        f"a learning rate is divided by {divisor:g} where {patience} looks at the validation loss "
        f"bring nothing, and this run has {looks} of them (the paper's have 10): learning may end "
        f"early. config.method.patience={looks // 2} waits as long as the paper's, "
        "lr_schedule='none' never lowers the rate"
    ]


def validate(
    setup: Setup, params: PyTree, model_state: PyTree, inputs: Array, validation: Validation
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Mean cross-entropy and accuracy of a network on the federation's validation examples.

    Args:
        setup: the run.
        params: parameters of the network.
        model_state: its running statistics.
        inputs: raw inputs of all examples.
        validation: which of them.

    Raises:
        ValueError: there are none.
    """
    if not validation.rows.shape[0]:
        raise ValueError(
            "lr_schedule lowers a learning rate when the loss on validation examples stops "
            "falling, and there are none; hold some out with config.data.validation_fraction, or "
            "set lr_schedule='none'"
        )

    def logits(raw: Array) -> Array:
        return setup.model.apply(params, model_state, setup.normalize(raw), train=False)[0].logits

    scores = map_rows(logits, inputs, validation.rows, setup.evaluation_batch_size)
    real = jnp.arange(validation.rows.shape[0], dtype=jnp.int32) < validation.num_examples
    right = (jnp.argmax(scores, axis=1).astype(jnp.int32) == validation.labels).astype(scores.dtype)
    loss = batch_cross_entropy(scores, validation.labels, real)
    return jax.lax.stop_gradient(loss), jnp.mean(right, where=real)
