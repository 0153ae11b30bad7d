"""Class prototypes (mean embeddings), probabilities from distances to them, and helpers'
pseudo-labels (ProtoFSSL).
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import In, OneOf, checked
from fedjax_ssl.objectives.cross_entropy import at_least_float32, most_negative

DISTANCES = ("sq_euclidean", "mean_sq", "euclidean")
_Positive = Annotated[float | Array, In("(0, inf)")]
ROOT_FLOOR = 1e-12  # the root has an infinite slope at 0


def class_prototypes(
    embeddings: Float[Array, "n d"], labels: Int[Array, " n"], num_classes: int
) -> tuple[Float[Array, "K d"], Bool[Array, " K"]]:
    """Return the mean embedding of every class, differentiable in the embeddings.

    Args:
        embeddings: a row per example.
        labels: class of every row; -1 = none or padding, whose embedding is not read.
        num_classes: K.

    Returns:
        prototypes in float32 at least, 0 for a class without examples, and the mask of classes with
        examples.
    """
    embeddings = at_least_float32(embeddings)
    one_hot = jax.nn.one_hot(labels, num_classes, dtype=embeddings.dtype)
    used = jnp.where((labels >= 0)[:, None], embeddings, 0)
    counts = jnp.sum(one_hot, axis=0)
    sums = jnp.matmul(one_hot.T, used, precision=jax.lax.Precision.HIGHEST)
    return sums / jnp.maximum(counts, 1.0)[:, None], counts > 0


@checked
def prototype_log_probs(
    embeddings: Float[Array, "n d"],
    prototypes: Float[Array, "K d"],
    present: Bool[Array, " K"],
    temperature: _Positive = 1.0,
    *,
    distance: Annotated[str, OneOf(DISTANCES)] = "sq_euclidean",
) -> Float[Array, "n K"]:
    """Return log softmax(-distance / temperature) over the classes that are present.

    An absent class gets the most negative finite number: its probability is exactly 0, and
    gradients have no NaN.

    Args:
        embeddings: a row per example.
        prototypes: a row per class; rows of absent classes are not read.
        present: mask of classes with a prototype.
        temperature: positive.
        distance: "sq_euclidean", "mean_sq" (the same divided by d, as in ProtoFSSL's code) or
            "euclidean" (as in its text). Each needs its own temperature.

    Raises:
        ValueError: an unknown distance, or a temperature that is known not to be positive.
    """
    embeddings = at_least_float32(embeddings)
    centers = jnp.where(present[:, None], prototypes, 0).astype(embeddings.dtype)
    if distance == "euclidean":
        squares = jnp.sum((embeddings[:, None, :] - centers) ** 2, axis=-1)
        scores = -jnp.sqrt(squares + ROOT_FLOOR)
    else:
        # ||z||^2 is the same for every class and cancels, so one matrix product replaces n * K * d
        # differences.
        product = jnp.matmul(embeddings, centers.T, precision=jax.lax.Precision.HIGHEST)
        scores = 2.0 * product - jnp.sum(centers**2, axis=1)
        if distance == "mean_sq":
            scores = scores / embeddings.shape[1]
    lowest = most_negative(scores)
    log_probs = jax.nn.log_softmax(jnp.where(present, scores / temperature, lowest))
    return jnp.where(present, log_probs, lowest)


def mean_prototypes(
    prototypes: Float[Array, "H K d"], present: Bool[Array, "H K"]
) -> tuple[Float[Array, "K d"], Bool[Array, " K"]]:
    """Return the mean of every class over the sets that have it, and the mask of classes that occur
    (ProtoFSSL, algorithm 2).
    """
    held = jnp.where(present[:, :, None], prototypes, 0)
    counts = jnp.sum(present, axis=0, dtype=prototypes.dtype)
    return jnp.sum(held, axis=0) / jnp.maximum(counts, 1.0)[:, None], counts > 0


def fill_missing_prototypes(
    prototypes: Float[Array, "H K d"], present: Bool[Array, "H K"]
) -> tuple[Float[Array, "H K d"], Bool[Array, " K"]]:
    """Replace prototypes that a set lacks by the mean of that class over the sets that have it
    (ProtoFSSL section 15).

    Returns:
        the filled sets, and the mask of classes that occur in any set; a class that is in no set
        stays 0.
    """
    means, known = mean_prototypes(prototypes, present)
    return jnp.where(present[:, :, None], prototypes, means), known


@checked
def sharpen(probs: Float[Array, "n K"], temperature: _Positive) -> Float[Array, "n K"]:
    """Return p_k^(1/T) / sum_k' p_k'^(1/T): T = 1 changes nothing, and T -> 0 is the arg max.

    Computed in log space, so that small T does not underflow; a probability of 0 stays 0 and gets
    no gradient.

    Args:
        probs: probabilities, a row per example; rows need not sum to 1.
        temperature: T, positive.

    Raises:
        ValueError: a known temperature that is not positive.
    """
    positive = probs > 0
    log_probs = jnp.log(jnp.where(positive, probs, 1))
    return jax.nn.softmax(jnp.where(positive, log_probs / temperature, most_negative(probs)))


@checked
def helper_pseudo_labels(
    embeddings: Float[Array, "n d"],
    helper_prototypes: Float[Array, "H K d"],
    helper_present: Bool[Array, "H K"],
    temperature: _Positive = 1.0,
    sharpening: _Positive = 0.5,
    *,
    distance: Annotated[str, OneOf(DISTANCES)] = "sq_euclidean",
) -> Float[Array, "n K"]:
    """Return soft pseudo-labels: the helpers' class probabilities, averaged and sharpened
    (ProtoFSSL section 4).

    A class that a helper lacks is taken from the mean of the other helpers. A helper without any
    prototype (padding) does not count. Without helpers the pseudo-labels are all 0, so that a
    cross-entropy against them is 0. Gradients flow into the embeddings, as in the public code; stop
    them outside if they should not.

    Args:
        embeddings: a row per unlabelled example.
        helper_prototypes: one set of prototypes per helper.
        helper_present: mask of the classes of every helper.
        temperature: temperature of the distances.
        sharpening: exponent 1 / sharpening on the averaged probabilities; 1 changes nothing.
        distance: distance of `prototype_log_probs`.

    Raises:
        ValueError: an unknown distance, or a temperature or sharpening that is known not to be
            positive.
    """
    filled, known = fill_missing_prototypes(helper_prototypes, helper_present)
    counted = jnp.any(helper_present, axis=1)
    by_helper = jax.vmap(
        lambda own: prototype_log_probs(embeddings, own, known, temperature, distance=distance)
    )(filled)
    lowest = most_negative(by_helper)
    # The number of helpers is a constant that cancels in the softmax.
    totals = jax.nn.logsumexp(jnp.where(counted[:, None, None], by_helper, lowest), axis=0)
    # Absent classes are masked again, because dividing their finite stand-in by the sharpening
    # would overflow. Without helpers all classes stay, so that there is no 0/0.
    kept = known | ~jnp.any(known)
    probs = jax.nn.softmax(jnp.where(kept, totals, 0.0) / sharpening, where=kept)
    return jnp.where(jnp.any(counted), probs, 0)
