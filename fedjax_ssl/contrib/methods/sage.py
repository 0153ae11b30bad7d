"""SAGE: every client has a few labels; the global model corrects its pseudo-labels.

f_W is the model in training and f_g the one that the client received, frozen, with its running
batch statistics. A local step has B labelled examples (x, y) and 2 B of all the client's examples
u, with weak views a(u) and strong ones A(u), all in one forward pass of f_W. With p and q the
predictions of f_W and f_g for a(u), c_p and c_q their largest values, lambda = exp(-kappa |c_p -
c_q|) and e(.) the unit vector of the likeliest class, it minimizes

    mean CE(y, f_W(a(x)))  +  w_u 1/2B sum_u [c_p >= tau or c_q >= tau] KL[t || f_W(A(u))],

    t = lambda e(p) + (1 - lambda) e(q)  where c_p >= tau,    t = e(q)  elsewhere.

A client weighs as many shares as it has labelled examples and examples.

Written after the authors' code, because only the abstract of the paper was available
(docs/methods/others.md).

References:
    SAGE, CVPR 2025, arXiv 2503.13227: confidence-driven soft correction.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.checks import checked
from fedjax_ssl.contrib.methods._whole_batches import RECOMMENDED as WHOLE_BATCHES
from fedjax_ssl.contrib.methods._whole_batches import whole_batches
from fedjax_ssl.federated import Recipe, Setup, Step, Term
from fedjax_ssl.methods.parts.guess import (
    Counts,
    Guess,
    Guessing,
    at_threshold,
    guesses_of,
    received_logits,
)
from fedjax_ssl.methods.parts.setting_types import Count, Share, Weight
from fedjax_ssl.methods.parts.terms import UNLABELLED, augmented_view, supervised_term
from fedjax_ssl.methods.parts.views_and_teachers import strong_view
from fedjax_ssl.objectives import soft_label_divergence

RECOMMENDED = {"sage": WHOLE_BATCHES}

HALVES_AT_05 = math.log(2) / 0.05  # the local share is 1/2 if confidences differ by 0.05
_SMALLEST = 1e-6  # added to a difference, and the lowest share


@checked
@dataclass(frozen=True)
class SAGE:
    """Settings of SAGE.

    Attributes:
        threshold: tau.
        unlabelled_weight: w_u.
        kappa: how fast the local model's share falls with the difference of the confidences; by
            default it is a half at a difference of 0.05.
        unlabelled_ratio: unlabelled examples per labelled one in a step.
        labelled_copies: times that a labelled example counts in a client's weight; 2000 in the
            code, by a side effect.
    """

    threshold: Share = 0.95
    unlabelled_weight: Weight = 1.0
    kappa: Weight = HALVES_AT_05
    unlabelled_ratio: Count = 2
    labelled_copies: Weight = 1.0


def sage(setup: Setup, settings: SAGE) -> Recipe:
    """SAGE: FixMatch at the clients, its pseudo-labels softly corrected by the received model.

    A local epoch has as many steps as whole batches of `config.optimizer.batch_size` fit into a
    client's examples; a client with fewer takes none.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: for a setting outside these.
    """
    terms = supervised_term(setup), _correction_term(setup, settings)
    stage = whole_batches(setup, terms, settings.unlabelled_ratio, settings.labelled_copies)
    return Recipe(setup, (stage,))


def _correction_term(setup: Setup, settings: SAGE) -> Term:
    """Return the loss on unlabelled examples; in the log, the pseudo-label is the class with the
    largest target.
    """
    weak = augmented_view(setup, UNLABELLED)
    strong = strong_view(setup)
    confident = at_threshold(settings.threshold)

    def loss(step: Step) -> tuple[Array, Guess, Array]:
        ours = step.outputs[weak.name].logits
        theirs = received_logits(setup, step, step.inputs[weak.name])
        predictions = jax.nn.softmax(ours), jax.nn.softmax(theirs)
        corrected = corrected_labels(*predictions, confident, settings.kappa)
        learns = step.outputs[strong.name].logits
        mask = step.streams[UNLABELLED].mask
        value = soft_label_divergence(learns, corrected.targets, mask, corrected.counted)
        labels = jnp.argmax(corrected.targets, axis=1)
        return value, Guess(theirs, labels, corrected.counted), learns

    term = guesses_of(setup, Guessing()).term("soft correction", (weak, strong), loss)
    return term._replace(weight=settings.unlabelled_weight)


class Corrected(NamedTuple):
    """Targets of a batch, without gradient."""

    targets: Float[Array, "n K"]  # a distribution over at most two classes
    counted: Bool[Array, " n"]  # rows for which either model is confident


def local_share(
    difference: Float[Array, "..."], kappa: float | Array = HALVES_AT_05
) -> Float[Array, "..."]:
    """Return lambda = exp(-kappa d), the share of the local model's label if confidences differ by
    d; both within [1e-6, 1].
    """
    distance = jnp.clip(difference + _SMALLEST, _SMALLEST, 1.0)
    return jnp.clip(jnp.exp(-kappa * distance), _SMALLEST, 1.0)


def corrected_labels(
    local_probabilities: Float[Array, "n K"],
    global_probabilities: Float[Array, "n K"],
    confident: Counts,
    kappa: float | Array = HALVES_AT_05,
) -> Corrected:
    """Return lambda e(local class) + (1 - lambda) e(global class) if the local model is confident,
    otherwise e(global class).

    The global class counts even if the global model is not confident.

    Args:
        local_probabilities: probabilities of the classes, by the model in training.
        global_probabilities: by the model that was received.
        confident: probabilities -> mask of rows for which a model is confident.
        kappa: rate at which the local share falls with the difference of the confidences.
    """
    ours, theirs = (jax.lax.stop_gradient(p) for p in (local_probabilities, global_probabilities))
    sure = confident(ours)
    share = local_share(jnp.abs(jnp.max(ours, axis=1) - jnp.max(theirs, axis=1)), kappa)
    share = (share * sure.astype(share.dtype))[:, None]
    mine, global_class = (
        jax.nn.one_hot(jnp.argmax(p, axis=1), p.shape[1], dtype=p.dtype) for p in (ours, theirs)
    )
    targets = share * mine + (1.0 - share) * global_class
    return Corrected(targets, sure | confident(theirs))
