# ruff: noqa: F401
"""The toy federation of `fedjax_ssl.testing`, and small models and samplers on it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl import federated, models
from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated import Method, Sampler, Schedule, ServerState
from fedjax_ssl.testing.toy import (
    COARSE,
    LABELLED,
    NUM_CLASSES,
    NUM_FEATURES,
    NUM_SERVER,
    SIZES,
    changed,
    federation,
    jitter,
    numbers,
    padded,
    run,
    same,
    setup,
    stored_differently,
    weak_federation,
    with_broken_client,
    with_hidden_labels_scrambled,
    without,
    without_knowledge,
)

NOW = federated.Now(np.int32(0))  # round 0 of a stage; nothing was sent to all clients alike


def context(num_clients: int) -> federated.RoundContext:
    """Round 0 of all clients, for federated optimizers."""
    ids = jnp.arange(num_clients, dtype=jnp.int32)
    clients = federated.Client(ids, ids[:, None], ids[:, None], ids, ids, {}, ())
    key = jax.random.key(0)
    return federated.RoundContext(key, key, ids[0], clients, ids >= 0, clients, {}, {}, {}, ids)


def local(anchor: Any, params: Any, *rest: Any, **named: Any) -> federated.Local:
    """A client that trained from the anchor to the parameters."""
    change = jax.tree.map(jnp.subtract, params, anchor)
    return federated.Local(anchor, params, change, *rest, **named)


def total(weights: Any, update: Any, reported: Any = ()) -> federated.Total:
    """Uploads of changes alone in sum."""
    nothing: dict[str, Any] = dict.fromkeys(federated.Total._fields, ())
    given = {"weights": weights, "update": update, "reported": reported}
    return federated.Total(**{**nothing, **given})


def added_up(
    optimizer: federated.FederatedOptimizer, *clients: federated.Local
) -> tuple[federated.Total, list[Any]]:
    """What a federated optimizer sees of these clients in sum, and what each of them keeps."""
    totals = []
    kept = []
    for client in clients:
        reported, own = optimizer.report(client)
        totals.append(total(*optimizer.add(client, reported)))
        kept.append(own)
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *totals), kept


def executed(method: Method, **how: Any) -> Method:
    """The same method, its clients placed in this way: fields of `Execution`."""
    return federated.execute(method, federated.Execution(**how))


def in_order(stream: str, batch_size: int, num_steps: int) -> Sampler:
    """The client's examples as they are stored, batch after batch, starting again at the end; no
    randomness.
    """

    def schedule(key: jax.Array, client: federated.Client, now: federated.Now) -> Schedule:
        slots = jnp.arange(num_steps * batch_size, dtype=jnp.int32).reshape(num_steps, batch_size)
        positions = slots % jnp.maximum(client.num_examples, 1)
        steps = jnp.where(client.num_examples > 0, num_steps, 0)
        return Schedule({stream: positions}, {stream: jnp.ones(slots.shape, bool)}, steps)

    return Sampler(schedule)


def dealt(
    inputs: np.ndarray,
    labels: np.ndarray,
    clients: Sequence[Any],
    labelled: Sequence[int],
    *,
    server: Any = (),
    valid: Any = (),
    test: Any = (0,),
    num_classes: int,
    weak: Any = None,
) -> FederatedData:
    """A federation dealt in this way.

    Args:
        inputs: all examples.
        labels: their classes.
        clients: rows of each client, those with a label first.
        labelled: how many these are.
        server: labelled rows of the server.
        valid: rows for validation.
        test: rows to test on.
        num_classes: K.
        weak: what clients know of the others.
    """
    sizes = [len(rows) for rows in clients]
    index = np.zeros((len(clients), max(sizes)), np.int32)
    observed = np.full(len(labels), -1, np.int32)
    for client, (rows, seen) in enumerate(zip(clients, labelled, strict=True)):
        index[client, : len(rows)] = rows
        observed[rows[:seen]] = labels[rows[:seen]]
    observed[list(server)] = labels[list(server)]
    unlabelled = [size - seen for size, seen in zip(sizes, labelled, strict=True)]

    def rows(given):
        return jnp.asarray(np.asarray(given, np.int32).reshape(-1))

    def number(value):
        return jnp.asarray(value, jnp.int32)

    return FederatedData(
        inputs=jnp.asarray(inputs),
        labels=rows(labels),
        observed=rows(observed),
        index=jnp.asarray(index),
        num_labelled=number(labelled),
        num_examples=number(sizes),
        test_index=rows(test),
        num_test=number(len(test)),
        test_client=rows([-1] * len(test)),
        valid_index=rows(valid),
        num_valid=number(len(valid)),
        server_index=rows(server),
        num_server=number(len(server)),
        num_classes=num_classes,
        max_labelled=max(labelled),
        max_unlabelled=max(unlabelled),
        min_labelled=min([seen for seen in labelled if seen], default=1),
        weak=weak,
    )


def weak_labels(
    labels: Any,
    matrix: Any,
    *,
    num_observations: Sequence[int] | None = None,
    from_sets: bool = False,
    share: Any = None,
    prior: Any = None,
) -> WeakLabels:
    """Weak labels of clients, a row of everything each.

    Args:
        labels: of their examples, -1 where there is none.
        matrix: correspondence, or class shares of the sets.
        num_observations: coarse labels or sets; all rows of the matrix by default.
        from_sets: whether they are sets.
        share: of each set.
        prior: class shares of the test; by default all the same.
    """
    labels = np.asarray(labels)
    matrix = np.asarray(matrix)
    clients, rows, classes = matrix.shape
    dtype = jnp.result_type(float)
    return WeakLabels(
        labels=jnp.asarray(labels, jnp.int32),
        num_examples=jnp.asarray((labels >= 0).sum(axis=1), jnp.int32),
        num_observations=jnp.asarray(num_observations or [rows] * clients, jnp.int32),
        from_sets=jnp.full(clients, from_sets),
        matrix=jnp.asarray(matrix, dtype),
        share=jnp.asarray(np.ones((clients, rows)) if share is None else share, dtype),
        prior=jnp.asarray(np.full(classes, 1 / classes) if prior is None else prior, dtype),
    )


def only(data: FederatedData, client: int) -> FederatedData:
    """The federation in which only this client has examples."""
    return without(data, *(other for other in range(data.num_clients) if other != client))


def train(
    method: Method, key: jax.Array, data: FederatedData, rounds: int
) -> tuple[ServerState, list[dict[str, float]]]:
    """Compiles a method and runs it from the start."""
    return run(jax.jit(method.round), key, jax.jit(method.init)(key, data), data, rounds)


def every_state(
    method: Method, key: jax.Array, data: FederatedData, rounds: int, start: Any = None
) -> tuple[list[ServerState], list[dict[str, float]]]:
    """As `train`: the first state, or the one that is given, and those after each round."""
    one_round = jax.jit(method.round)
    states = [jax.jit(method.init)(key, data) if start is None else start]
    infos = []
    for _ in range(rounds):
        state, (info,) = run(one_round, key, states[-1], data, 1)
        states.append(state)
        infos.append(info)
    return states, infos


def linear_model(aux_head: bool = False, scale: float = 0.5) -> models.Model:
    """Softmax regression with readable parameters: {"w": [d, K], "b": [K]} and, for a second
    head, {"w2", "b2"}.
    """

    def init(key: jax.Array) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        rng = np.random.default_rng(7)
        shapes = {"w": (NUM_FEATURES, NUM_CLASSES), "b": (NUM_CLASSES,)}
        if aux_head:
            shapes |= {"w2": (NUM_FEATURES, NUM_CLASSES), "b2": (NUM_CLASSES,)}
        dtype = jnp.result_type(float)
        return {
            name: jnp.asarray(scale * rng.normal(size=shape), dtype)
            for name, shape in shapes.items()
        }, {}

    def apply(
        params: dict[str, jax.Array],
        state: Any,
        inputs: jax.Array,
        *,
        train: bool,
        key: Any = None,
        mask: Any = None,
    ) -> tuple[models.Outputs, Any]:
        aux = inputs @ params["w2"] + params["b2"] if aux_head else None
        return models.Outputs(inputs @ params["w"] + params["b"], inputs, aux), state

    return models.Model(init, apply)
