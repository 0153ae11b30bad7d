"""Evaluation on the test and validation examples, all in one batch loop."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.forward import map_rows
from fedjax_ssl.federated.method import Method, Metrics, ServerState


def evaluate(method: Method, state: ServerState, data: FederatedData, batch_size: int = 512) -> Metrics:
    """Scores the global model.

    Args:
        method: the method whose `predict` is used.
        state: server state.
        data: the federation; its ground-truth labels are used here and in diagnostics only.
        batch_size: examples per forward pass.

    Returns:
        "test_accuracy", "test_balanced_accuracy" (mean recall over the classes that occur), "test_loss" (nats), and the
        same with "validation_" if the federation has validation examples. NaN if there is no example.
    """
    metrics = _score(method, state, data, data.test_index, data.num_test, "test", batch_size)
    if data.valid_index.shape[0]:
        metrics |= _score(method, state, data, data.valid_index, data.num_valid, "validation", batch_size)
    return metrics


def _score(
    method: Method,
    state: ServerState,
    data: FederatedData,
    rows: Int[Array, " m"],
    count: Int[Array, ""],
    name: str,
    batch_size: int,
) -> Metrics:
    log_probs = map_rows(lambda inputs: method.predict(state, inputs), data.inputs, rows, batch_size)
    labels = data.labels[rows]
    real = (jnp.arange(rows.shape[0], dtype=jnp.int32) < count) & (labels >= 0)
    chosen = jnp.take_along_axis(log_probs, jnp.maximum(labels, 0)[:, None], axis=1)[:, 0]
    correct = jnp.argmax(log_probs, axis=1) == labels
    return {
        f"{name}_accuracy": jnp.mean(correct.astype(log_probs.dtype), where=real),
        f"{name}_balanced_accuracy": balanced_accuracy(correct, labels, real, data.num_classes),
        f"{name}_loss": jnp.mean(-chosen, where=real),
    }


def balanced_accuracy(
    correct: Bool[Array, " m"], labels: Int[Array, " m"], real: Bool[Array, " m"], num_classes: int
) -> Float[Array, ""]:
    """Mean over the classes that occur of the share of their examples that are right."""
    dtype = jnp.result_type(float)
    slot = jnp.where(real, labels, num_classes)
    counts = jnp.zeros(num_classes + 1, dtype).at[slot].add(1.0)[:-1]
    hits = jnp.zeros(num_classes + 1, dtype).at[slot].add(correct.astype(dtype))[:-1]
    return jnp.mean(hits / jnp.maximum(counts, 1.0), where=counts > 0)
