"""Local optimizers by name, and learning rates as functions of the round.

A local optimizer is an optax transformation without a learning rate: the client step multiplies its update by the
round's rate, which may be traced (a whole sweep over learning rates is then one program).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers, is_zero

OPTIMIZERS = {  # with a line about each
    "sgd": "gradient descent, with momentum if wanted",
    "adam": "Adam, with its usual moments",
    "rmsprop": "v <- 0.9 v + 0.1 g^2, without momentum or bias correction",
}
SCHEDULES = ("constant", "cosine")
LearningRate = Callable[[Int[Array, ""]], Float[Array, ""]]


def local_optimizer(
    name: str = "sgd",
    *,
    momentum: float | Array = 0.0,
    nesterov: bool = False,
    weight_decay: float | Array = 0.0,
    clip_norm: float | Array | None = None,
) -> optax.GradientTransformation:
    """Builds the client's optimizer; its state starts anew in every round.

    Args:
        name: "sgd", "adam" or "rmsprop" (v <- 0.9 v + 0.1 g^2, no momentum, no bias correction).
        momentum: momentum of SGD, in [0, 1).
        nesterov: Nesterov momentum.
        weight_decay: added to the gradient as weight_decay * w, on all parameters (L2, not decoupled).
        clip_norm: the gradient of a parameter group is multiplied by min(1, clip_norm / (||g||_2 + 1e-6)) before
            weight decay is added; None: it is not.

    Raises:
        ValueError: for an unknown name, momentum outside [0, 1) or a clip_norm that is not positive.
    """
    check_choices(OPTIMIZERS, optimizer=name)
    check_numbers("[0, 1)", momentum=momentum)
    if clip_norm is not None:
        check_numbers("(0, inf)", clip_norm=clip_norm)
    steps = {
        "sgd": optax.identity() if is_zero(momentum) else optax.trace(momentum, nesterov),
        "adam": optax.scale_by_adam(),
        "rmsprop": optax.scale_by_rms(decay=0.9, eps=1e-7, eps_in_sqrt=False),
    }
    clip = () if clip_norm is None else (_clip(clip_norm),)
    return standard_promotion(optax.chain(*clip, optax.add_decayed_weights(weight_decay), steps[name]))


def _clip(max_norm: float | Array) -> optax.GradientTransformation:
    """PyTorch's clipping, whose 1e-6 shows in the digits of SemiFL's code; optax' own has none."""

    def clip(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        factor = jnp.minimum(1.0, max_norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda g: factor * g, updates)

    return optax.stateless(clip)


def standard_promotion(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimizer, usable under jax_numpy_dtype_promotion="strict": optax mixes floats with step counts."""

    def update(updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None) -> tuple:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, update)


def learning_rate_schedule(name: str, learning_rate: float | Array, schedule_rounds: int = 1) -> LearningRate:
    """A rate for every round, constant within the round.

    Args:
        name: "constant", or "cosine": rate / 2 * (1 + cos(pi * round / schedule_rounds)), rounds from 0 (XCLP section
            5.3, there with 2,000 schedule rounds for 1,500 rounds of training).
        learning_rate: the rate in round 0; may be traced.
        schedule_rounds: half a period of the cosine.

    Raises:
        ValueError: for an unknown name, or fewer than 1 schedule round.
    """
    check_choices(SCHEDULES, schedule=name)
    check_whole_numbers(schedule_rounds=schedule_rounds)
    rate = jnp.asarray(learning_rate, jnp.result_type(float))

    # Not optax's: its order of operations gives other bits, and it mixes the count's type with the rate's.
    def cosine(round_number: Int[Array, ""]) -> Float[Array, ""]:
        progress = round_number.astype(rate.dtype) / schedule_rounds
        return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))

    return cosine if name == "cosine" else optax.constant_schedule(rate)
