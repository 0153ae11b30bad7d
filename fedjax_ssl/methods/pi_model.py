"""Pi-model, federated: two noisy passes of one network over the same examples should predict the same.

With the predictions p, p' of two passes, each with its own augmentation and dropout, B_U examples, K classes, and
weights w_s, w_u, a local step minimizes

    w_s 1/B sum over labelled CE(y, p) + w_u g(r) 1/(B_U K) sum over all ||p - p'||^2

with g(r) = exp(-5 (1 - min(r, R) / R)^2) in round r = 1, 2, ..

References:
    Laine and Aila, Temporal ensembling for semi-supervised learning, ICLR 2017, arXiv 1610.02242: section 2.1 and
    algorithm 1; whence the defaults, its epochs being rounds here. Its w_u is 100 M/N, with M labelled of N examples,
    because its cross-entropy is divided by all examples of the batch.
"""

import jax
from jaxtyping import Array

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.federated import Method, Setup, Step, Term
from fedjax_ssl.federated.terms import augmented_view
from fedjax_ssl.methods.parts.consistency_training import (
    CONSISTENCY,
    UNLABELLED,
    Shared,
    consistency_method,
    second_pass,
)
from fedjax_ssl.objectives import consistency, consistency_ramp


def pi_model(
    setup: Setup,
    *,
    stop_gradient: bool = False,
    ramp_rounds: int = 80,
    unlabelled_weight: float | Array = 100.0,
    labelled_weight: float | Array = 1.0,
    unlabelled_ratio: int = 1,
    labelled_too: bool = True,
    ema_decay: float | Array = 0.0,
    server_turn: str = "before",
    server_batch_size: int = 100,
    server_epochs: int = 1,
) -> Method:
    """The Pi-model at the clients, or at clients without labels beside a server that has some.

    Args:
        setup: the run.
        stop_gradient: hold the second pass fixed; in the paper the gradient flows through both.
        ramp_rounds: R; 1: the full weight from the start.
        unlabelled_weight: w_u.
        labelled_weight: w_s.
        unlabelled_ratio: examples of the consistency loss per labelled one in a step.
        labelled_too: the consistency loss is about labelled examples too, as in the paper.
        ema_decay: as in `fixmatch`, like the next three.
        server_turn: when the server trains.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.

    Raises:
        ValueError: for a setting outside these, or a federation with nothing to learn from.
    """
    check_whole_numbers(ramp_rounds=ramp_rounds)
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

    def loss(step: Step) -> Array:
        one = jax.nn.softmax(step.outputs[weak.name].logits)
        other = jax.nn.softmax(second_pass(setup, step, step.params, step.model_state)[0])
        if stop_gradient:
            other = jax.lax.stop_gradient(other)
        value = consistency(one, other, step.streams[UNLABELLED].mask)
        return consistency_ramp(step.now.number + 1, 1.0, ramp_rounds).astype(value.dtype) * value

    return consistency_method(setup, shared, Term(CONSISTENCY, (weak,), loss))
