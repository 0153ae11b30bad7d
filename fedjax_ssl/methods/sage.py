"""SAGE: every client has a few labels; the global model corrects its pseudo-labels where it is less
sure than thought.

f_W is the model in training and f_g the one that the client received, frozen, with its running
batch statistics. A local step has B labelled examples (x, y) and 2 B of all the client's examples
u, with weak views a(u) and strong ones A(u), all in one forward pass of f_W. With p and q the
predictions of f_W and f_g for a(u), c_p and c_q their largest values, lambda = exp(-kappa |c_p -
c_q|) and e(.) the unit vector of the likeliest class, it minimizes

    mean CE(y, f_W(a(x)))  +  w_u 1/2B sum_u [c_p >= tau or c_q >= tau] KL[t || f_W(A(u))],

    t = lambda e(p) + (1 - lambda) e(q)  where c_p >= tau,    t = e(q)  elsewhere.

A client weighs as many shares as it has labelled examples and examples.

Written after the authors' code, as only the abstract of the paper was at hand
(docs/methods/modern.md).

References:
    SAGE, CVPR 2025, arXiv 2503.13227: confidence-driven soft correction.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import (
    Client,
    Recipe,
    Setup,
    Stage,
    Step,
    Steps,
    Term,
    paired_batches,
)
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.methods.parts.consistency import UNLABELLED, strong_view
from fedjax_ssl.methods.parts.guess import Guess, Guessing, guesses_of, received_logits
from fedjax_ssl.methods.parts.settings import Count, Share, Weight
from fedjax_ssl.methods.parts.terms import augmented_view, supervised_term
from fedjax_ssl.objectives import batch_mean

RECOMMENDED = {
    "sage": {
        "per_client": {
            "rounds": 80,
            "optimizer.learning_rate": 0.1,
            "optimizer.batch_size": 16,
            # ten steps: with fifty, clients believe their own mistakes
            "optimizer.local_epochs": 1,
            "optimizer.momentum": 0.9,
            "optimizer.weight_decay": 1e-4,
        }
    }
}

HALVES_AT_05 = math.log(2) / 0.05  # the local share is 1/2 where confidences differ by 0.05
_SMALLEST = 1e-6  # of a difference and of a share
_EPSILON = 1e-10  # added to probabilities before logarithms


@checked
def sage(
    setup: Setup,
    *,
    threshold: Share = 0.95,
    unlabelled_weight: Weight = 1.0,
    kappa: Weight = HALVES_AT_05,
    unlabelled_ratio: Count = 2,
    labelled_copies: Weight = 1.0,
) -> Recipe:
    """SAGE: FixMatch at the clients, its pseudo-labels softly corrected by the received model.

    A local epoch has as many steps as whole batches of `config.optimizer.batch_size` fit into a
    client's examples; a client with fewer takes none.

    Args:
        setup: the run.
        threshold: tau.
        unlabelled_weight: w_u.
        kappa: how fast the local model's share falls with the difference of the confidences; by
            default it is a half at a difference of 0.05.
        unlabelled_ratio: unlabelled examples per labelled one in a step.
        labelled_copies: times that a labelled example counts in a client's weight; 2000 in the
            code, by a side effect.

    Raises:
        ValueError: for a setting outside these.
    """
    size = setup.batch_size
    most = setup.max_labelled + setup.max_unlabelled
    steps = Steps(
        lambda client: setup.local_epochs * (client.num_examples // size),
        max(setup.local_epochs * (most // size), 1),
    )
    sampler = paired_batches(
        size,
        unlabelled_ratio * size,
        steps,
        setup.max_labelled,
        setup.max_unlabelled,
        labelled_too=True,
    )
    terms = supervised_term(setup), _correction_term(setup, threshold, unlabelled_weight, kappa)

    def weigh(client: Client, uploads: dict[str, PyTree]) -> Float[Array, ""]:
        return client_weight(client, labelled_copies)

    return Recipe(setup, (Stage(terms, sampler, weigh=weigh),))


def client_weight(client: Client, labelled_copies: float | Array) -> Float[Array, ""]:
    """|S| labelled_copies + |U|, where U are all examples of the client, the labelled ones S
    among them.
    """
    dtype = jnp.result_type(float)
    return labelled_copies * client.num_labelled.astype(dtype) + client.num_examples.astype(dtype)


def _correction_term(
    setup: Setup, threshold: float | Array, weight: float | Array, kappa: float | Array
) -> Term:
    """Return the loss on unlabelled examples; in the log, its pseudo-label is the class that has
    most of the target.
    """
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        ours = step.outputs[weak.name].logits
        theirs = received_logits(setup, step, step.inputs[weak.name])
        corrected = corrected_labels(jax.nn.softmax(ours), jax.nn.softmax(theirs), threshold, kappa)
        learns = step.outputs[strong.name].logits
        value = soft_label_divergence(learns, corrected, step.streams[UNLABELLED].mask)
        guess = Guess(theirs, jnp.argmax(corrected.targets, axis=1), corrected.counted)
        return value, guess, learns

    term = guesses_of(setup, Guessing()).term("soft correction", (weak, strong), loss)
    return term._replace(weight=weight)


class Corrected(NamedTuple):
    """Targets of a batch, without gradient."""

    targets: Float[Array, "n K"]  # a distribution over at most two classes
    counted: Bool[Array, " n"]  # rows of which either model is confident


def local_share(
    difference: Float[Array, "..."], kappa: float | Array = HALVES_AT_05
) -> Float[Array, "..."]:
    """lambda = exp(-kappa d), of the local model's label where the confidences differ by d; both
    within [1e-6, 1].
    """
    distance = jnp.clip(difference + _SMALLEST, _SMALLEST, 1.0)
    return jnp.clip(jnp.exp(-kappa * distance), _SMALLEST, 1.0)


def corrected_labels(
    local_probabilities: Float[Array, "n K"],
    global_probabilities: Float[Array, "n K"],
    threshold: float | Array,
    kappa: float | Array = HALVES_AT_05,
) -> Corrected:
    """lambda e(local class) + (1 - lambda) e(global class) where the local model is confident, else
    e(global class).

    The global class enters even where the global model is not confident. With one class for both,
    the target is that.

    Args:
        local_probabilities: probabilities of the classes, by the model in training.
        global_probabilities: by the model that was received.
        threshold: at which a largest probability is confident; above 1, nothing is.
        kappa: how fast the local share falls with the difference of the confidences.
    """
    ours, theirs = (jax.lax.stop_gradient(p) for p in (local_probabilities, global_probabilities))
    sure = jnp.max(ours, axis=1)
    other = jnp.max(theirs, axis=1)
    share = jnp.where(sure >= threshold, local_share(jnp.abs(sure - other), kappa), 0.0)[:, None]
    mine, global_class = (
        jax.nn.one_hot(jnp.argmax(p, axis=1), p.shape[1], dtype=p.dtype) for p in (ours, theirs)
    )
    return Corrected(
        share * mine + (1.0 - share) * global_class, (sure >= threshold) | (other >= threshold)
    )


def soft_label_divergence(
    logits: Float[Array, "n K"], corrected: Corrected, mask: Bool[Array, " n"]
) -> Float[Array, ""]:
    """1/B sum over counted rows of KL[target || softmax(logits)], 1e-10 added to both; B = rows in
    the mask.

    Args:
        logits: class scores that learn the targets.
        corrected: corrected of the same rows.
        mask: rows that belong to the batch.
    """
    probabilities = jax.nn.softmax(logits) + _EPSILON
    targets = corrected.targets.astype(probabilities.dtype) + _EPSILON
    rows = jnp.sum(targets * (jnp.log(targets) - jnp.log(probabilities)), axis=1)
    return batch_mean(rows, mask, corrected.counted)
