"""UDA, federated: the prediction for a strong view of an example follows the sharpened one for a weak view.

With the scores z of a weak view, its predictions q = softmax(z), the predictions p of a strong view, B_U unlabelled
examples and weights w_s, w_u, a local step minimizes

    w_s L_s + w_u 1/B_U sum over unlabelled [max q > beta] CE(softmax(z / T), p).

L_s is cross-entropy with training signal annealing: the mean over the labelled examples whose true class is not yet
more probable than alpha (1 - 1/K) + 1/K, where alpha rises to 1 over the rounds.

References:
    Xie et al., Unsupervised data augmentation for consistency training, NeurIPS 2020, arXiv 1904.12848: sections 2, 3
    and 4 (CIFAR-10); whence the defaults.
    Federated as the baseline of FedMatch (ICLR 2021, arXiv 2006.12097).
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.federated import Method, Setup, Step, Term
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.methods.parts.consistency_training import (
    CONSISTENCY,
    LABELLED,
    UNLABELLED,
    Guess,
    Shared,
    consistency_method,
    guessing_term,
    strong_view,
)
from fedjax_ssl.objectives import annealed_cross_entropy, training_signal_ceiling, uda_loss
from fedjax_ssl.objectives.consistency import AnnealingSchedule


def uda(
    setup: Setup,
    *,
    threshold: float | Array = 0.8,
    temperature: float | Array = 0.4,
    tsa: Literal["exp", "linear", "log", "none"] = "exp",
    tsa_rounds: int = 0,
    unlabelled_weight: float | Array = 1.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 7,
    labelled_too: bool = False,
    ema_decay: float | Array = 0.0,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """UDA at the clients, or at clients without labels beside a server that has some and anneals as they would.

    Args:
        setup: the run.
        threshold: beta, in [0, 1]; 0: every example counts.
        temperature: T of the targets; 1: they are not sharpened.
        tsa: schedule of alpha, with the share t of the rounds that are over: "exp" is exp(5 (t - 1)), "linear" t, "log"
            1 - exp(-5 t); "none": plain cross-entropy.
        tsa_rounds: rounds until alpha is 1; 0: those of the run.
        unlabelled_weight: w_u (lambda).
        labelled_weight: w_s.
        unlabelled_ratio: unlabelled examples per labelled one in a step; the paper has batches of 64 and 448.
        labelled_too: as in `fixmatch`, like the next.
        ema_decay: the paper averages over steps, with decay 0.9999.
        server_turn: as in `fixmatch`, like the next two.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, a federation with nothing to learn from, or annealing over a run whose
            rounds are not known.
    """
    check_numbers("[0, 1]", threshold=threshold)
    check_numbers("(0, inf)", temperature=temperature)
    check_choices(("exp", "linear", "log", "none"), tsa=tsa)
    check_whole_numbers(0, tsa_rounds=tsa_rounds)
    if tsa != "none" and not (tsa_rounds or setup.rounds):
        raise ValueError("tsa_rounds is 0, all rounds of the run, but it is not known how many; set tsa_rounds")
    shared = Shared(
        labelled_weight=labelled_weight,
        unlabelled_weight=unlabelled_weight,
        unlabelled_ratio=unlabelled_ratio,
        labelled_too=labelled_too,
        ema_decay=ema_decay,
        server_turn=server_turn,
        server_batch_size=server_batch_size,
        server_epochs=server_epochs,
    )
    weak, strong = augmented_view(setup, UNLABELLED), strong_view(setup)

    def loss(step: Step) -> tuple[Array, Guess]:
        seen, learns = step.outputs[weak.name].logits, step.outputs[strong.name].logits
        value = uda_loss(seen, learns, step.streams[UNLABELLED].mask, threshold, temperature)
        confident = jnp.max(jax.nn.softmax(seen), axis=1) > threshold
        return value, Guess(jnp.argmax(seen, axis=1), confident)

    unsupervised = guessing_term(CONSISTENCY, (weak, strong), setup.num_classes, loss)
    supervised = None if tsa == "none" else _annealed(setup, tsa, tsa_rounds or setup.rounds or 1)
    return consistency_method(setup, shared, unsupervised, supervised)


def _annealed(setup: Setup, schedule: AnnealingSchedule, rounds: int) -> Term:
    """Cross-entropy on stream "labelled" with training signal annealing over these rounds."""
    view = augmented_view(setup, LABELLED)

    def loss(step: Step) -> Array:
        batch = step.streams[LABELLED]
        progress = jnp.minimum(step.now.number.astype(jnp.result_type(float)) / rounds, 1.0)
        ceiling = training_signal_ceiling(progress, setup.num_classes, schedule)
        return annealed_cross_entropy(step.outputs[view.name].logits, batch.observed, batch.mask, ceiling)

    return Term("supervised", (view,), loss)
