"""Pseudo-label, federated: in every step the network's most probable class is an unlabelled example's label.

With the prediction p of an example, B_U unlabelled examples, and weights w_s, w_u, a local step minimizes

    w_s 1/B sum over labelled CE(y, p) + w_u a(r) 1/B_U sum over unlabelled [max p >= tau] CE(argmax p, p)

with a(r) = clip((r - T1) / (T2 - T1), 0, 1) in round r = 1, 2, ..

Unlike `network_pseudo_label` and `fedsem`, which label with the global network before local training, the labels follow
the client's own network. References:
    Lee, Pseudo-label: the simple and efficient semi-supervised learning method for deep neural networks, ICML 2013
    workshop: equations 15 and 16, where tau is 0, w_u is alpha_f, and T1, T2 are 100 and 600 epochs.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import check_numbers, check_whole_numbers
from fedjax_ssl.federated import Method, Setup, Step
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.methods.parts.consistency_training import (
    CONSISTENCY,
    UNLABELLED,
    Guess,
    Shared,
    consistency_method,
    guessing_term,
)
from fedjax_ssl.objectives import fixmatch_loss, linear_ramp


def pseudo_label(
    setup: Setup,
    *,
    threshold: float | Array = 0.0,
    ramp_start: int = 10,
    ramp_end: int = 60,
    unlabelled_weight: float | Array = 3.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 8,
    labelled_too: bool = False,
    ema_decay: float | Array = 0.0,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """Pseudo-label at the clients, or at clients without labels beside a server that has some.

    Args:
        setup: the run.
        threshold: tau, in [0, 1]; the paper has none.
        ramp_start: T1, in rounds. The default is a tenth of the paper's, as is that of T2: it counts epochs, of which a
            round may have several, and a run has fewer rounds.
        ramp_end: T2, above T1.
        unlabelled_weight: w_u.
        labelled_weight: w_s.
        unlabelled_ratio: unlabelled examples per labelled one in a step; the paper has batches of 32 and 256.
        labelled_too: as in `fixmatch`, like the next four.
        ema_decay: of the network that predicts.
        server_turn: when the server trains.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, or a federation with nothing to learn from.
    """
    check_numbers("[0, 1]", threshold=threshold)
    check_whole_numbers(0, ramp_start=ramp_start)
    check_whole_numbers(ramp_start + 1, ramp_end=ramp_end)
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
    weak = augmented_view(setup, UNLABELLED)

    def loss(step: Step) -> tuple[Array, Guess]:
        logits = step.outputs[weak.name].logits
        value = fixmatch_loss(logits, logits, step.streams[UNLABELLED].mask, threshold)
        ramp = linear_ramp(step.now.number + 1, ramp_start, ramp_end)
        confident = jnp.max(jax.nn.softmax(logits), axis=1) >= threshold
        return ramp.astype(value.dtype) * value, Guess(jnp.argmax(logits, axis=1), confident)

    unsupervised = guessing_term(CONSISTENCY, (weak,), setup.num_classes, loss)
    return consistency_method(setup, shared, unsupervised)
