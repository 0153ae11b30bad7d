"""A small separable federation, on which methods are tried.

Six clients of different sizes: two ordinary ones, one without labels, one with a single example,
one with labels only, one with two labels. Three classes, Gaussian clouds whose centres are far
apart. In other kinds of this federation the examples without a label are in sets with known class
shares or have coarse labels, or the server has the labels.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl import federated, models
from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated import ServerState, Setup

NUM_CLASSES = 3
NUM_FEATURES = 4
SIZES = (12, 9, 7, 1, 8, 14)
LABELLED = (4, 3, 0, 1, 8, 2)
NUM_SERVER = 9
# P(coarse label | class): classes 0 and 2 look the same
COARSE = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])


def federation(
    seed: int = 0,
    sizes: Sequence[int] = SIZES,
    labelled: Sequence[int] = LABELLED,
    num_test: int = 60,
    noise: float = 0.5,
    server: int = 0,
    weak: str | None = None,
) -> FederatedData:
    """Make a federation whose client c owns the next `sizes[c]` rows of `inputs` and sees the
    labels of its first `labelled[c]` ones.

    The test examples follow, then `server` labelled ones of the server. What clients know of the
    examples whose label they do not see: nothing, in which of three sets they are (`weak="sets"`),
    or a coarse label (`weak="coarse"`).
    """
    rng = np.random.default_rng(seed)
    total = sum(sizes) + num_test + server
    labels = np.concatenate([np.arange(size) for size in (*sizes, num_test, server)]) % NUM_CLASSES
    centres = 2.0 * np.eye(NUM_CLASSES, NUM_FEATURES)
    inputs = centres[labels] + noise * rng.normal(size=(total, NUM_FEATURES))
    index = np.zeros((len(sizes), max(sizes)), np.int32)
    observed = np.full(total, -1, np.int32)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for client, (size, seen, start) in enumerate(zip(sizes, labelled, starts[:-1], strict=True)):
        index[client, :size] = start + np.arange(size)
        observed[start : start + seen] = labels[start : start + seen]
    observed[total - server :] = labels[total - server :]
    return FederatedData(
        inputs=jnp.asarray(inputs, jnp.result_type(float)),
        labels=jnp.asarray(labels, jnp.int32),
        observed=jnp.asarray(observed),
        index=jnp.asarray(index),
        num_labelled=jnp.asarray(labelled, jnp.int32),
        num_examples=jnp.asarray(sizes, jnp.int32),
        test_index=jnp.asarray(sum(sizes) + np.arange(num_test), jnp.int32),
        num_test=jnp.asarray(num_test, jnp.int32),
        test_client=jnp.asarray(np.full(num_test, -1), jnp.int32),
        valid_index=jnp.asarray(np.zeros(0), jnp.int32),
        num_valid=jnp.asarray(0, jnp.int32),
        server_index=jnp.asarray(sum(sizes) + num_test + np.arange(server), jnp.int32),
        num_server=jnp.asarray(server, jnp.int32),
        num_classes=NUM_CLASSES,
        # bounds for whatever labels are seen, so that tests share compiled programs
        max_labelled=max(sizes),
        max_unlabelled=max(sizes),
        weak=None if weak is None else _weak_labels(weak, labels[index], sizes, labelled),
    )


def weak_federation(kind: str, **options: Any) -> FederatedData:
    """Make the federation for a method that learns from `kind` first, see `FederatedData.kinds`.

    Args:
        kind: "labels": as `federation` has it. "sets" or "coarse": examples without a label have a
            weak one; with "coarse" the server has labelled examples too. "server": only the server
            has labels.
        **options: of `federation`; they win.
    """
    kinds: dict[str, dict[str, Any]] = {
        "labels": {},
        "sets": {"weak": "sets"},
        "coarse": {"weak": "coarse", "server": NUM_SERVER},
        "server": {"labelled": (0,) * len(SIZES), "server": NUM_SERVER},
    }
    return federation(**{**kinds[kind], **options})


def _weak_labels(
    kind: str, labels: np.ndarray, sizes: Sequence[int], labelled: Sequence[int]
) -> WeakLabels:
    """Make weak labels of all examples without a label; `labels` [C, n] as the clients' tables
    have them.
    """
    slots = np.arange(labels.shape[1])
    first = np.array(labelled)[:, None]
    known = (slots < np.array(sizes)[:, None]) & (slots >= first)
    clients = np.asarray(known.any(axis=1))
    if kind == "coarse":
        observation = COARSE[:, labels].argmax(axis=0)
        matrix = np.where(clients[:, None, None], COARSE, 0.0)
        share = np.where(clients[:, None], np.ones(2), 0.0)
    else:
        # Set k holds the examples of class k, but for every fourth example of a client.
        observation = (labels + (slots % 4 == 3)) % NUM_CLASSES
        one_hot = np.eye(NUM_CLASSES)
        counts = np.einsum("cn,cno,cnk->cok", known, one_hot[observation], one_hot[labels])
        matrix = counts / np.maximum(counts.sum(axis=2, keepdims=True), 1.0)
        share = counts.sum(axis=2) / np.maximum(counts.sum(axis=(1, 2)), 1.0)[:, None]
    dtype = jnp.result_type(float)
    return WeakLabels(
        labels=jnp.asarray(np.where(known, observation, -1), jnp.int32),
        num_examples=jnp.asarray(known.sum(axis=1), jnp.int32),
        num_observations=jnp.asarray(clients * matrix.shape[1], jnp.int32),
        from_sets=jnp.asarray(clients & (kind == "sets")),
        matrix=jnp.asarray(matrix, dtype),
        share=jnp.asarray(share, dtype),
        prior=jnp.asarray(np.full(NUM_CLASSES, 1.0 / NUM_CLASSES), dtype),
    )


def jitter(key: jax.Array, inputs: jax.Array) -> jax.Array:
    """Add small noise that depends on the key and on the row's place only."""
    return inputs + 0.1 * jax.random.normal(key, inputs.shape, inputs.dtype)


def same(key: jax.Array, inputs: jax.Array) -> jax.Array:
    """Return the inputs unchanged."""
    return inputs


def setup(
    data: FederatedData,
    *,
    model: str | models.Model = "mlp",
    model_options: dict[str, Any] | None = None,
    learning_rate: float = 0.1,
    **changes: Any,
) -> Setup:
    """Set up a run in which everybody takes part, with batches of 4 and two local epochs of SGD;
    `changes` are fields of `Setup`.
    """
    if isinstance(model, str):
        options: dict[str, Any] = {"hidden": (8,)} if model == "mlp" else {}
        model = models.build(
            model,
            num_classes=data.num_classes,
            input_shape=data.inputs.shape[1:],
            **options,
            **(model_options or {}),
        )
    plain = Setup(
        model=model,
        normalize=lambda raw: raw,
        augment=same,
        federated_optimizer=federated.fedavg(),
        local_optimizer=federated.local_optimizer(),
        learning_rate=federated.learning_rate_schedule("constant", learning_rate),
        num_classes=data.num_classes,
        max_labelled=data.max_labelled,
        max_unlabelled=data.max_unlabelled_at_once,
        num_parts=data.num_parts,
        max_known=data.max_known,
        max_server=data.server_index.shape[-1],
        cohort_size=data.num_clients,
        batch_size=4,
        local_epochs=2,
    )
    return plain._replace(**changes)


def changed(tree: Any, **arrays: Any) -> Any:
    """Return the tree with these arrays in place of its own, of the same types. NumPy made them,
    so nothing is compiled.
    """
    made = {name: jnp.asarray(array, getattr(tree, name).dtype) for name, array in arrays.items()}
    return dataclasses.replace(tree, **made)


def without(data: FederatedData, *clients: int) -> FederatedData:
    """Return the federation in which these clients have no examples."""
    there = ~np.isin(np.arange(data.num_clients), clients)
    weak = data.weak
    if weak is not None:
        weak = changed(weak, num_examples=np.where(there, weak.num_examples, 0))
    gone = changed(
        data,
        num_examples=np.where(there, data.num_examples, 0),
        num_labelled=np.where(there, data.num_labelled, 0),
    )
    return dataclasses.replace(gone, weak=weak)


def without_knowledge(data: FederatedData) -> FederatedData:
    """Return the federation in which nobody knows anything about the class of any example."""
    weak = data.weak
    if weak is not None:
        weak = changed(
            weak,
            labels=np.full(weak.labels.shape, -1),
            num_examples=np.zeros(weak.num_examples.shape),
        )
    blind = changed(
        data,
        observed=np.full(data.observed.shape, -1),
        num_labelled=np.zeros(data.num_clients),
        num_server=0,
    )
    return dataclasses.replace(blind, weak=weak)


def padded(data: FederatedData, clients: int = 2, columns: int = 3) -> FederatedData:
    """Return the same federation with empty clients at the end and larger bounds of everything
    that there is.
    """
    more = ((0, clients), (0, columns))
    weak = data.weak
    server_columns = columns if data.server_index.size else 0
    if weak is not None:
        weak = changed(
            weak,
            labels=np.pad(weak.labels, more, constant_values=-1),
            num_examples=np.pad(weak.num_examples, (0, clients)),
            num_observations=np.pad(weak.num_observations, (0, clients)),
            from_sets=np.pad(weak.from_sets, (0, clients)),
            matrix=np.pad(weak.matrix, ((0, clients), (0, 1), (0, 0))),
            share=np.pad(weak.share, ((0, clients), (0, 1))),
        )
    wider = changed(
        data,
        index=np.pad(data.index, more),
        num_labelled=np.pad(data.num_labelled, (0, clients)),
        num_examples=np.pad(data.num_examples, (0, clients)),
        test_index=np.pad(data.test_index, (0, columns)),
        test_client=np.pad(data.test_client, (0, columns), constant_values=-1),
        server_index=np.pad(data.server_index, (0, server_columns)),
    )
    return dataclasses.replace(
        wider, max_labelled=data.max_labelled + 1, max_unlabelled=data.max_unlabelled + 2, weak=weak
    )


def stored_differently(data: FederatedData, seed: int = 0) -> FederatedData:
    """Return the same federation with the rows of the flat arrays in another order; padding still
    points to row 0.
    """
    order = np.random.default_rng(seed).permutation(data.inputs.shape[0])
    moved = np.argsort(order)
    real = np.arange(data.max_examples) < np.asarray(data.num_examples)[:, None]
    return changed(
        data,
        inputs=np.asarray(data.inputs)[order],
        labels=np.asarray(data.labels)[order],
        observed=np.asarray(data.observed)[order],
        index=np.where(real, moved[data.index], 0),
        test_index=moved[data.test_index],
        server_index=moved[data.server_index],
    )


def with_hidden_labels_scrambled(data: FederatedData) -> FederatedData:
    """Return the same federation with wrong ground truth on every unlabelled training example."""
    labels = np.asarray(data.labels)
    training = np.isin(np.arange(labels.size), data.index)
    hidden = training & (np.asarray(data.observed) < 0)
    return changed(data, labels=np.where(hidden, (labels + 1) % data.num_classes, labels))


def with_broken_client(data: FederatedData, client: int) -> FederatedData:
    """Return the same federation with NaN in all of this client's inputs."""
    inputs = np.array(data.inputs)
    inputs[np.asarray(data.index)[client, : int(data.num_examples[client])]] = np.nan
    return changed(data, inputs=inputs)


def run(
    round_function: Callable[..., tuple[ServerState, dict[str, jax.Array]]],
    key: jax.Array,
    state: ServerState,
    data: FederatedData,
    rounds: int,
) -> tuple[ServerState, list[dict[str, float]]]:
    """Run rounds one by one; return the last state and the info of each."""
    infos = []
    for _ in range(rounds):
        state, info = round_function(key, state, data)
        infos.append(numbers(info))
    return state, infos


def numbers(info: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a round as numbers of Python's."""
    return {name: value.item() for name, value in federated.to_numbers(info).items()}
