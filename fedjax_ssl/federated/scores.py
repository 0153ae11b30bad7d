"""Scores of predictions beyond accuracy, as pure functions that jit, vmap and padding leave as they are.

m examples, of which those that are `real` count; K classes. Every score is NaN where no example counts.

References:
    AUROC as the probability that a positive example scores higher than a negative one, ties counting half: Hanley and
    McNeil, The meaning and use of the area under a ROC curve, Radiology 1982; averaged over classes as in scikit-learn.
    ECE: Guo et al., On calibration of modern neural networks, ICML 2017, with their 15 bins.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

CHOICES = ("clients", "f1", "ece", "auroc")  # what `evaluate` can add to its scores
ECE_BINS = 15  # of equal width, open on the left


def macro_f1(
    predicted: Int[Array, " m"], labels: Int[Array, " m"], real: Bool[Array, " m"], num_classes: int
) -> Float[Array, ""]:
    """Mean over the classes that occur, as label or as prediction, of 2 TP / (2 TP + FP + FN)."""
    right = _counts(labels, real & (predicted == labels), num_classes)
    both = _counts(labels, real, num_classes) + _counts(predicted, real, num_classes)
    return jnp.mean(2.0 * right / jnp.maximum(both, 1.0), where=both > 0)


def calibration_error(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Expected calibration error of the likeliest class: |accuracy - confidence| by bin, weighted by its examples."""
    confidence = jnp.exp(jnp.max(log_probs, axis=1))
    correct = (jnp.argmax(log_probs, axis=1) == labels).astype(confidence.dtype)
    place = jnp.clip(jnp.ceil(confidence * ECE_BINS).astype(jnp.int32) - 1, 0, ECE_BINS - 1)
    gaps = jnp.sum((correct - confidence)[:, None], axis=0, where=_in_slots(place, real, ECE_BINS))
    return jnp.sum(jnp.abs(gaps)) / jnp.sum(real).astype(gaps.dtype)


def auroc(log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]) -> Float[Array, ""]:
    """Area under the ROC curve of each class against the rest, exact, mean over the classes that have both.

    A class takes a sort of its scores, so this costs most of all scores: K m log m.
    """

    def of_class(number: Int[Array, ""]) -> Float[Array, ""]:
        scores, own = log_probs[:, number], real & (labels == number)
        rest = real & (labels != number)
        # What is no negative example stands behind all of them and below none.
        negatives = jnp.sort(jnp.where(rest, scores, jnp.inf))
        below, up_to = (jnp.searchsorted(negatives, scores, side=side) for side in ("left", "right"))
        beaten = (below + up_to).astype(scores.dtype) / (2 * jnp.sum(rest)).astype(scores.dtype)
        return jnp.where(jnp.any(rest), jnp.mean(beaten, where=own), jnp.nan)

    areas = jax.lax.map(of_class, jnp.arange(log_probs.shape[1], dtype=jnp.int32))
    broken = jnp.any(jnp.isnan(log_probs) & real[:, None])
    return jnp.where(broken, jnp.nan, jnp.mean(areas, where=~jnp.isnan(areas)))


def accuracy_by_client(
    correct: Bool[Array, " m"], real: Bool[Array, " m"], client: Int[Array, " m"], num_clients: int
) -> Float[Array, " C"]:
    """Share of right predictions among each client's examples; NaN for a client without any."""
    slot = jnp.where(real & (client >= 0), client, num_clients)
    both = jnp.stack([correct, jnp.ones_like(correct)], axis=1).astype(jnp.result_type(float))
    right, examples = jnp.zeros((num_clients + 1, 2), both.dtype).at[slot].add(both)[:num_clients].T
    return right / examples


def over_clients(accuracies: Float[Array, " C"]) -> dict[str, Float[Array, ""]]:
    """How accuracy differs between the clients that have one: the worst tenth of them, and the deviation.

    Returns:
        "worst_tenth": mean over the tenth of these clients (rounded up) with the lowest accuracy; "spread": population
        standard deviation over all of them.
    """
    there = ~jnp.isnan(accuracies)
    worst_first = jnp.sort(jnp.where(there, accuracies, jnp.inf))
    tenth = -(-jnp.sum(there, dtype=jnp.int32) // 10)
    among = jnp.arange(accuracies.shape[0], dtype=jnp.int32) < tenth
    return {
        "worst_tenth": jnp.mean(worst_first, where=among),
        "spread": jnp.std(accuracies, where=there),
    }


def _counts(slots: Int[Array, " m"], counted: Bool[Array, " m"], num_slots: int) -> Float[Array, " K"]:
    """How many counted examples are in each slot."""
    return jnp.sum(_in_slots(slots, counted, num_slots), axis=0, dtype=jnp.result_type(float))


def _in_slots(slots: Int[Array, " m"], counted: Bool[Array, " m"], num_slots: int) -> Bool[Array, "m K"]:
    """Whether a counted example is in a slot. Sums over it compile faster than scattered ones, for few slots."""
    return counted[:, None] & (slots[:, None] == jnp.arange(num_slots, dtype=slots.dtype))
