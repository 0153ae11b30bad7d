"""Evaluation on the test and validation examples in one batch loop, with scores pooled and by
client.

All scores are pure functions, unchanged by jit, vmap and padding; each is NaN if no example counts.

References:
    AUROC as the probability that a positive example scores higher than a negative one, ties
    counting half: Hanley and McNeil, The meaning and use of the area under a ROC curve, Radiology
    1982; averaged over classes as in scikit-learn. ECE: Guo et al., On calibration of modern neural
    networks, ICML 2017, with their 15 bins.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated.contract import (
    Metrics,
    ServerState,
)
from fedjax_ssl.federated.forward import map_rows
from fedjax_ssl.federated.recipe import Method

EVALUATION = "evaluation"  # scope of its trace: profiles and compiled programs show this name
BY_CLIENT = "test_accuracy_by_client"  # accuracy by client; not a scalar
# accuracy of the global model by training client; not a scalar
GLOBAL_BY_CLIENT = "test_global_accuracy_by_client"
# Further scores of `evaluate`; "local" is logged by the rounds, see `local_models.py`.
SCORES = ("clients", "f1", "ece", "auroc", "local")
ECE_BINS = 15  # bins of equal width, open on the left


@jax.named_scope(EVALUATION)
def evaluate(
    method: Method,
    state: ServerState,
    data: FederatedData,
    batch_size: int = 512,
    metrics: Collection[str] = (),
) -> Metrics:
    """Score the global model.

    Args:
        method: the method whose `predict` is used.
        state: server state.
        data: the federation; its ground-truth labels are used here and in diagnostics only.
        batch_size: examples per forward pass.
        metrics: further ones, from `SCORES`. A name with a colon stands for a function on the host;
            then "test_log_probs" and "validation_log_probs" [examples, K] are returned too.

    Returns:
        "test_accuracy", "test_balanced_accuracy" (mean recall over the classes that occur),
        "test_loss" (nats), and the same with "validation_" if the federation has validation
        examples. NaN if there is no example. For methods that learn from coarse labels,
        "test_coarse_accuracy" too: how often argmax_j (M p)_j is the coarse label of a test
        example, mean over the clients with coarse labels of known correspondence M; NaN if there is
        none. For methods whose clients have models of their own, "test_client_accuracy" too: each
        client's model on its own test examples, mean over the clients that have some; NaN if none
        has. Where clients train alone there is no global model: every score is the mean over the
        models of the clients that have training examples.

        With "f1", "ece" and "auroc" also "test_macro_f1", "test_ece" and "test_auroc", and the same
        of validation examples; see above. With "clients", where test examples belong to clients or
        clients have models of their own: "test_client_accuracy" for the global model too, its
        "_worst_tenth" and "_spread", and `BY_CLIENT` [clients that train, new clients], NaN for
        those without a test example that has a label. Where clients have models of their own beside
        a global one, also "test_client_global_accuracy", its "_worst_tenth" and "test_client_gain",
        see `compared`, and `GLOBAL_BY_CLIENT` [clients that train].
    """
    test = _Examples("test", data.test_index, data.num_test)
    found = _score(method, state, data, test, batch_size, metrics)
    if method.predict_for is not None:
        own = own_accuracies(method.predict_for, state, data, batch_size)
        found["test_client_accuracy"] = jnp.mean(own, where=~jnp.isnan(own))
        common = found.pop(GLOBAL_BY_CLIENT, None)
        if "clients" in metrics:
            # new clients have no model of their own
            strangers = jnp.full(data.num_new_clients, jnp.nan, own.dtype)
            found |= _by_client(jnp.concatenate([own, strangers]))
        if common is not None:
            common = common[: data.num_clients]
            beside = compared(common, own)
            found |= {f"test_client_{name}": value for name, value in beside.items()}
            found[GLOBAL_BY_CLIENT] = common
    if data.valid_index.shape[0]:
        validation = _Examples("validation", data.valid_index, data.num_valid)
        found |= _score(method, state, data, validation, batch_size, metrics)
    return found


class _Examples(NamedTuple):
    """Examples to score."""

    name: str  # prefix of the scores' names
    rows: Int[Array, " m"]
    num_real: Int[Array, ""]  # number of real examples, which come first


def _score(
    method: Method,
    state: ServerState,
    data: FederatedData,
    examples: _Examples,
    batch_size: int,
    metrics: Collection[str],
) -> Metrics:
    predict_for = method.predict_for
    if not method.recipe.alone or predict_for is None:
        predict = partial(method.predict, state)
        return _score_model(method, predict, data, examples, batch_size, metrics)

    def of_client(client: Int[Array, ""]) -> Metrics:
        predict = partial(predict_for, state, client)
        return _score_model(method, predict, data, examples, batch_size, metrics)

    found = jax.lax.map(of_client, jnp.arange(data.num_clients, dtype=jnp.int32))
    return {name: jnp.mean(values, where=data.num_examples > 0) for name, values in found.items()}


def _score_model(
    method: Method,
    predict: Callable[[Array], Array],
    data: FederatedData,
    examples: _Examples,
    batch_size: int,
    metrics: Collection[str],
) -> Metrics:
    name, rows, num_real = examples
    log_probs = map_rows(predict, data.inputs, rows, batch_size)
    labels = data.labels[rows]
    real = (jnp.arange(rows.shape[0], dtype=jnp.int32) < num_real) & (labels >= 0)
    found: Metrics = {}
    if data.weak is not None and data.coarse_names and "coarse" in method.recipe.needs.kinds:
        found[f"{name}_coarse_accuracy"] = _coarse_accuracy(data.weak, log_probs, labels, real)
    asked = ALWAYS | {end: score for one, (end, score) in FURTHER.items() if one in metrics}
    found |= {f"{name}_{end}": score(log_probs, labels, real) for end, score in asked.items()}
    if any(":" in one for one in metrics):
        found[f"{name}_log_probs"] = log_probs
    if name == "test" and "clients" in metrics and data.owned_test and not method.recipe.alone:
        num_clients = data.num_clients + data.num_new_clients
        correct = jnp.argmax(log_probs, axis=1) == labels
        by_client = accuracy_by_client(correct, real, data.test_client, num_clients)
        if method.predict_for is None:
            return found | _by_client(by_client)
        found[GLOBAL_BY_CLIENT] = by_client
    return found


def compared(common: Float[Array, " C"], own: Float[Array, " C"]) -> dict[str, Float[Array, ""]]:
    """Compare the clients' own models with the global one, on each client's test examples.

    Args:
        common: accuracies of the global model; NaN for a client without a test example.
        own: accuracies of the clients' own models.

    Returns:
        "global_accuracy" and "global_accuracy_worst_tenth": mean over the clients, and over the
        worst tenth of them, by the global model; "gain": share of clients with a better own model.
    """
    there = ~jnp.isnan(own) & ~jnp.isnan(common)
    seen = jnp.where(there, common, jnp.nan)
    better = (own > common).astype(own.dtype)
    return {
        "global_accuracy": jnp.mean(common, where=there),
        "global_accuracy_worst_tenth": over_clients(seen)["worst_tenth"],
        "gain": jnp.mean(better, where=there),
    }


def _by_client(accuracies: Float[Array, " C"]) -> Metrics:
    summed_up = {
        f"test_client_accuracy_{name}": value for name, value in over_clients(accuracies).items()
    }
    mean = jnp.mean(accuracies, where=~jnp.isnan(accuracies))
    return {"test_client_accuracy": mean, **summed_up, BY_CLIENT: accuracies}


def likeliest_coarse(
    log_probs: Float[Array, "m K"], matrix: Float[Array, "O K"]
) -> Int[Array, " m"]:
    """Return argmax_j (M p)_j: the predicted label in the label space of one client."""
    return jnp.argmax(jnp.exp(log_probs) @ matrix.T.astype(log_probs.dtype), axis=1)


def _coarse_accuracy(
    weak: WeakLabels,
    log_probs: Float[Array, "m K"],
    labels: Int[Array, " m"],
    real: Bool[Array, " m"],
) -> Float[Array, ""]:
    def score(matrix: Float[Array, "O K"]) -> Float[Array, ""]:
        # If coarse classes overlap, an example's coarse label is random: its probability counts.
        right = matrix[likeliest_coarse(log_probs, matrix), jnp.maximum(labels, 0)]
        return jnp.mean(right.astype(log_probs.dtype), where=real)

    known = weak.has_known_correspondence

    def of_client(
        last: tuple[Array, Array], client: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        # Often all clients have the same correspondence: then it is scored once.
        matrix, counts = client
        again = counts & jnp.any(matrix != last[0])
        value = jax.lax.cond(again, score, lambda _: last[1], matrix)
        return (jnp.where(counts, matrix, last[0]), value), value

    nothing = (jnp.full_like(weak.matrix[0], -1.0), jnp.zeros((), log_probs.dtype))
    _, values = jax.lax.scan(of_client, nothing, (weak.matrix, known))
    return jnp.mean(values, where=known)


def own_accuracies(
    predict_for: Callable[..., Array], state: ServerState, data: FederatedData, batch_size: int
) -> Float[Array, " C"]:
    """Return the accuracy of every client's own model on its own test examples; NaN for a client
    without any.
    """
    num_clients = data.num_clients
    num_test = data.test_index.shape[0]
    labels = data.labels[data.test_index]
    # Owner of each test example; examples of nobody, of new clients and without a label come last.
    real = (jnp.arange(num_test, dtype=jnp.int32) < data.num_test) & (labels >= 0)
    owner = jnp.where(real & (data.test_client >= 0), data.test_client, num_clients)
    owner = jnp.minimum(owner, num_clients)
    # With this order, a client's examples are next to each other.
    order = jnp.argsort(owner, stable=True).astype(jnp.int32)
    counts = jnp.zeros(num_clients + 1, jnp.int32).at[owner].add(1)[:num_clients]
    starts = jnp.cumsum(counts) - counts
    # A batch has examples of one client alone, so its model is fetched once; the client's last
    # batch may be short.
    size = max(min(batch_size, -(-num_test // num_clients)), 1)
    last_batch = jnp.cumsum(-(-counts // size))
    first_batch = last_batch - -(-counts // size)

    def score_batch(number: Int[Array, ""]) -> tuple[Array, Array]:
        # The client of the batch, and the places of its examples in it.
        client = jnp.minimum(
            jnp.searchsorted(last_batch, number, side="right"), num_clients - 1
        ).astype(jnp.int32)
        place = (number - first_batch[client]) * size + jnp.arange(size, dtype=jnp.int32)
        counted = (number < last_batch[-1]) & (place < counts[client])
        rows = order[jnp.minimum(starts[client] + place, num_test - 1)]
        chosen = jnp.argmax(predict_for(state, client, data.inputs[data.test_index[rows]]), axis=1)
        return client, jnp.sum(counted & (chosen == labels[rows]), dtype=jnp.int32)

    # The number of batches has a static bound: every client has at most one short batch.
    batches = jnp.arange(num_test // size + num_clients, dtype=jnp.int32)
    clients, right = jax.lax.map(score_batch, batches)
    hits = jnp.zeros(num_clients, jnp.int32).at[clients].add(right)
    return jnp.where(counts > 0, hits / jnp.maximum(counts, 1), jnp.nan)


def accuracy(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Return the share of correct predictions."""
    correct = jnp.argmax(log_probs, axis=1) == labels
    return jnp.mean(correct.astype(log_probs.dtype), where=real)


def balanced_accuracy(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Return the mean recall over the classes that occur."""
    num_classes = log_probs.shape[1]
    correct = jnp.argmax(log_probs, axis=1) == labels
    return _mean_recall(*_count(correct, jnp.where(real, labels, num_classes), num_classes))


def cross_entropy(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Return the mean loss in nats."""
    chosen = jnp.take_along_axis(log_probs, jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]
    return jnp.mean(-chosen, where=real)


def score_labels(
    predicted: Int[Array, " m"],
    labels: Int[Array, " m"],
    client: Int[Array, " m"],
    num_clients: int,
    num_classes: int,
) -> dict[str, Array]:
    """Score predicted labels, pooled and by client, where there is a true label.

    Args:
        predicted: -1 = no label could be given; it counts as wrong.
        labels: ground truth, -1 = none; examples without one count in the coverage only.
        client: owner of each example; examples of -1 do not count.
        num_clients: C.
        num_classes: K.

    Returns:
        "accuracy", "balanced_accuracy" (mean recall over the classes that occur), "examples" (of
        clients, with and without a true label) and "coverage" (share of these that were given a
        label); by client [C] "client_accuracy", "client_balanced_accuracy" and "client_examples".
        NaN where there is no example.
    """
    owned = client >= 0
    real = owned & (labels >= 0)
    slot = jnp.where(real, client * num_classes + labels, num_clients * num_classes)
    counted = _count(predicted == labels, slot, num_clients * num_classes)
    hits, counts = (values.reshape(num_clients, num_classes) for values in counted)
    return {
        "accuracy": jnp.sum(hits) / jnp.sum(counts),
        "balanced_accuracy": _mean_recall(jnp.sum(hits, axis=0), jnp.sum(counts, axis=0)),
        "examples": jnp.sum(owned),
        "coverage": jnp.mean((predicted >= 0).astype(hits.dtype), where=owned),
        "client_accuracy": jnp.sum(hits, axis=1) / jnp.sum(counts, axis=1),
        "client_balanced_accuracy": _mean_recall(hits, counts),
        "client_examples": jnp.sum(counts, axis=1),
    }


def _count(correct: Array, slot: Array, num_slots: int) -> tuple[Array, Array]:
    """Count correct examples and all examples of every slot."""
    nothing = jnp.zeros(num_slots + 1, jnp.result_type(float))
    return nothing.at[slot].add(correct.astype(nothing.dtype))[:-1], nothing.at[slot].add(1.0)[:-1]


def _mean_recall(
    hits: Float[Array, "*shape K"], counts: Float[Array, "*shape K"]
) -> Float[Array, "*shape"]:
    return jnp.mean(hits / jnp.maximum(counts, 1.0), axis=-1, where=counts > 0)


def macro_f1(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Return the mean of 2 TP / (2 TP + FP + FN) over the classes that occur as label or as
    prediction.
    """
    num_classes = log_probs.shape[1]
    predicted = jnp.argmax(log_probs, axis=1)
    right = _counts(labels, real & (predicted == labels), num_classes)
    both = _counts(labels, real, num_classes) + _counts(predicted, real, num_classes)
    return jnp.mean(2.0 * right / jnp.maximum(both, 1.0), where=both > 0)


def calibration_error(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Return the expected calibration error of the predicted class: |accuracy - confidence| by bin,
    weighted by the examples in the bin.
    """
    confidence = jnp.exp(jnp.max(log_probs, axis=1))
    correct = (jnp.argmax(log_probs, axis=1) == labels).astype(confidence.dtype)
    place = jnp.clip(jnp.ceil(confidence * ECE_BINS).astype(jnp.int32) - 1, 0, ECE_BINS - 1)
    gaps = jnp.sum((correct - confidence)[:, None], axis=0, where=_in_slots(place, real, ECE_BINS))
    return jnp.sum(jnp.abs(gaps)) / jnp.sum(real).astype(gaps.dtype)


def auroc(
    log_probs: Float[Array, "m K"], labels: Int[Array, " m"], real: Bool[Array, " m"]
) -> Float[Array, ""]:
    """Return the exact area under the ROC curve of each class against the rest, mean over the
    classes that have positive and negative examples.

    Each class needs a sort of its scores, so this is the most expensive score: K m log m.
    """

    def of_class(number: Int[Array, ""]) -> Float[Array, ""]:
        scores = log_probs[:, number]
        own = real & (labels == number)
        rest = real & (labels != number)
        # Rows that are no negative example are +inf: sorted last, and below no score.
        negatives = jnp.sort(jnp.where(rest, scores, jnp.inf))
        below, up_to = (
            jnp.searchsorted(negatives, scores, side=side) for side in ("left", "right")
        )
        beaten = (below + up_to).astype(scores.dtype) / (2 * jnp.sum(rest)).astype(scores.dtype)
        return jnp.where(jnp.any(rest), jnp.mean(beaten, where=own), jnp.nan)

    areas = jax.lax.map(of_class, jnp.arange(log_probs.shape[1], dtype=jnp.int32))
    broken = jnp.any(jnp.isnan(log_probs) & real[:, None])
    return jnp.where(broken, jnp.nan, jnp.mean(areas, where=~jnp.isnan(areas)))


# Scores (log-probabilities, labels, mask of real examples) -> scalar, by the end of their column:
# those that are always computed, and those that a name of `SCORES` adds.
ALWAYS = {"accuracy": accuracy, "balanced_accuracy": balanced_accuracy, "loss": cross_entropy}
FURTHER = {
    "f1": ("macro_f1", macro_f1),
    "ece": ("ece", calibration_error),
    "auroc": ("auroc", auroc),
}


def accuracy_by_client(
    correct: Bool[Array, " m"], real: Bool[Array, " m"], client: Int[Array, " m"], num_clients: int
) -> Float[Array, " C"]:
    """Return the share of correct predictions among each client's examples; NaN for a client
    without any.
    """
    slot = jnp.where(real & (client >= 0), client, num_clients)
    both = jnp.stack([correct, jnp.ones_like(correct)], axis=1).astype(jnp.result_type(float))
    right, examples = jnp.zeros((num_clients + 1, 2), both.dtype).at[slot].add(both)[:num_clients].T
    return right / examples


def over_clients(accuracies: Float[Array, " C"]) -> dict[str, Float[Array, ""]]:
    """Return the accuracy of the worst tenth of the clients with an accuracy, and the standard
    deviation.

    Returns:
        "worst_tenth": mean over the tenth of these clients (rounded up) with the lowest accuracy;
        "spread": population standard deviation over all of them.
    """
    there = ~jnp.isnan(accuracies)
    worst_first = jnp.sort(jnp.where(there, accuracies, jnp.inf))
    tenth = -(-jnp.sum(there, dtype=jnp.int32) // 10)
    among = jnp.arange(accuracies.shape[0], dtype=jnp.int32) < tenth
    return {
        "worst_tenth": jnp.mean(worst_first, where=among),
        "spread": jnp.std(accuracies, where=there),
    }


def _counts(
    slots: Int[Array, " m"], counted: Bool[Array, " m"], num_slots: int
) -> Float[Array, " K"]:
    """Count the counted examples in each slot."""
    return jnp.sum(_in_slots(slots, counted, num_slots), axis=0, dtype=jnp.result_type(float))


def _in_slots(
    slots: Int[Array, " m"], counted: Bool[Array, " m"], num_slots: int
) -> Bool[Array, "m K"]:
    """Return whether a counted example is in a slot. For few slots, sums over this mask compile
    faster than a scatter.
    """
    return counted[:, None] & (slots[:, None] == jnp.arange(num_slots, dtype=slots.dtype))
