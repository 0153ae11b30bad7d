"""Learning-rate factors by local step: linear warm-up, then part of a cosine.

Sources: FixMatch (Sohn et al., NeurIPS 2020) for the factor cos(7 pi x / 16); the public code of FedRGD (arXiv
2008.11364) for warm-up, floors and the "fast" variant.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.federated import Setup

SCHEDULES = ("run", "plain", "reference_fast")
NOMINAL_STEPS = 1024  # of an epoch in the code, whose runs are nominally 1024 epochs; "fast" ones end after 200


def cosine_factor(step: Float[Array, ""], warmup_steps: int, total_steps: int, fast: bool = False) -> Float[Array, ""]:
    """The factor at a local step.

    step / w during the first w steps. Then, with x = (step - w) / (total - w), max(1e-6, cos(7 pi x / 16)); fast:
    max(1e-5, cos(pi n x)) with n = 7/16 (1024^2 - w) / (1024 * 200 - w), which goes through more than one period unless
    `total_steps` is 1024^2.

    Args:
        step: local steps before this one.
        warmup_steps: w.
        total_steps: of the run.
        fast: see above.
    """
    periods, floor = 7 / 16, 1e-6
    if fast:
        floor = 1e-5
        periods *= (NOMINAL_STEPS**2 - warmup_steps) / (NOMINAL_STEPS * 200 - warmup_steps)
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    decayed = jnp.maximum(jnp.cos(jnp.pi * periods * progress), floor)
    return jnp.where(step < warmup_steps, step / max(warmup_steps, 1), decayed)


def with_step_schedule(
    setup: Setup, name: str, local_steps: int, warmup_steps: int = 0, total_steps: int | None = None
) -> Setup:
    """The run with its learning rate times the factor at the first local step of each round.

    In a round that begins during warm-up it is the factor at the round's last step, or at the end of warm-up if that
    comes first: at the first step of round 0 the factor is 0.

    Args:
        setup: the run.
        name: "run": as it is; "plain" or "reference_fast": see `cosine_factor`.
        local_steps: of a round.
        warmup_steps: local steps of linear warm-up.
        total_steps: local steps over which the cosine runs; None: those of the run.

    Raises:
        ValueError: an unknown name, a number below 0, or no total for a run of unknown length.
    """
    check_choices(SCHEDULES, lr_schedule=name)
    check_whole_numbers(0, warmup_steps=warmup_steps)
    if name == "run":
        return setup
    if total_steps is None:
        if setup.rounds is None:
            raise ValueError(f"lr_schedule is {name!r} and the run's length is not known; give schedule_steps")
        total_steps = max(setup.rounds * local_steps, 1)
    check_whole_numbers(schedule_steps=total_steps)

    def learning_rate(number: Array) -> Float[Array, ""]:
        rate = setup.learning_rate(number)
        first = number.astype(rate.dtype) * local_steps
        first = jnp.where(first < warmup_steps, jnp.minimum(first + local_steps - 1, warmup_steps), first)
        return rate * cosine_factor(first, warmup_steps, total_steps, name == "reference_fast")

    return setup._replace(learning_rate=learning_rate)
