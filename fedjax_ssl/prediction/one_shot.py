"""One-shot prediction in a run: labels for the clients' new examples.

The predictions of `config.prediction` are made once, after the last round: every predictor labels
all test examples that belong to a client, and is scored over all of them and at each client.
"""

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, graph
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.federated import (
    Method,
    ServerState,
    likeliest_coarse,
    map_rows,
    score_labels,
)
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER
from fedjax_ssl.graph import CODE, PAPER, GraphSettings, nearest_neighbors
from fedjax_ssl.keys import named_key
from fedjax_ssl.prediction import graphs
from fedjax_ssl.registry import Registry, contributed, secure_protocols

# (federation, points, embed, ridge) -> (predictions, bytes): classifiers from one upload of each
# client.
ONCE: Registry[Any] = Registry("predictor", contributed("predictor"), leading=4)
# Variants of XCLP and per-client LP: the paper's text, and the authors' code.
VARIANTS = {"paper": PAPER, "code": CODE}


class Job(NamedTuple):
    """One prediction to make."""

    name: str  # name among the jobs of a run
    predictor: str
    variant: str | None  # None without a graph
    unlabelled: bool  # put unlabelled training examples into the graph


class Predicted(NamedTuple):
    """Labels and scores of one prediction."""

    job: Job
    found: graphs.Predictions
    scores: dict[str, Array]  # as `fedjax_ssl.federated.score_labels`
    seconds: float  # seconds of all jobs that share its graph, compiling included
    protocol_bytes: int | None = None
    # ^ bytes of all messages of its protocol; without a protocol, of the clients' codes or sums


def jobs_of(config: ml_collections.ConfigDict) -> list[Job]:
    """List the predictions to make, in the order of the predictors.

    Returns:
        The jobs. Jobs that differ only in the variant share a graph and are next to each other.
    """
    section = config.prediction
    variants = list(VARIANTS) if section.variant == "both" else [section.variant]
    points = {"with": [True], "without": [False], "both": [True, False]}[section.unlabelled]
    jobs = []
    for predictor in configs.predictors(config):
        if predictor in ("network", *ONCE):
            jobs.append(Job(predictor, predictor, None, predictor == "network"))
            continue
        for unlabelled, variant in itertools.product(points, variants):
            parts = [
                predictor,
                variant if len(variants) > 1 else "",
                "" if unlabelled else "labelled",
            ]
            jobs.append(Job("_".join(filter(None, parts)), predictor, variant, unlabelled))
    return jobs


def check(config: ml_collections.ConfigDict, federation: data.FederatedData) -> None:
    """Raise ConfigError if a requested prediction makes no sense for this federation.

    Args:
        config: resolved.
        federation: known, not traced.
    """
    names = configs.predictors(config)
    groups = config.prediction.groups
    if not names:
        return
    holders = np.unique(np.asarray(federation.test_client))
    holders = holders[holders >= 0]
    if not holders.size:
        raise ConfigError(
            f"config.prediction.predictors is {','.join(names)!r}, but no new example belongs to "
            "a client. Hold some out with --config.data.client_test_fraction=0.2 or "
            "--config.data.left_out_client=0, or give them in the dataset (npz: test_inputs and "
            "test_client, with the natural partition)"
        )
    labels = np.concatenate(
        [np.asarray(federation.num_labelled), np.zeros(federation.num_new_clients, np.int32)]
    )
    if {*ONCE} & {*names} and not labels.any():
        raise ConfigError(
            f"config.prediction.predictors is {','.join(names)!r}, but no client has a label, of "
            "which class_means and linear_head are made; leave them out"
        )
    if "per_client_lp" in names and not labels[holders].any():
        raise ConfigError(
            "config.prediction.predictors names per_client_lp, which labels a client's examples "
            "from this client's own labels, but no client with new examples has any, as in "
            "leave-one-client-out. Leave it out: --config.prediction.predictors=network,xclp"
        )
    if groups > labels.size:
        raise ConfigError(f"config.prediction.groups is {groups}; there are {labels.size} clients")


def predict(
    config: ml_collections.ConfigDict,
    method: Method,
    state: ServerState,
    key: Key[Array, ""],
    federation: data.FederatedData,
    mesh: Mesh | None = None,
    report: Callable[[str], None] = lambda line: None,
    views: bool = False,
) -> Iterator[Predicted]:
    """Label the test examples of all clients by every requested prediction, one after another.

    Args:
        config: resolved; its section `prediction` lists the predictions.
        method: method, for the network's predictions and features.
        state: state of the method, after training.
        key: the run's key; projections and groups follow from it.
        federation: see `check`.
        mesh: devices that share the search for neighbours in one graph of all clients.
        report: called with one line for each graph.
        views: inputs are [n, views, d], with the example itself first.

    Yields:
        One outcome per job.

    Raises:
        ConfigError: a setting cannot be used.
    """
    if not jobs_of(config):
        return
    num_clients = federation.num_clients + federation.num_new_clients
    truth = federation.labels[federation.test_index]
    begin = time.perf_counter()
    for jobs, found, traffic in _predict(
        config, method, state, key, federation, mesh, report, views
    ):
        seconds = time.perf_counter() - begin
        for job, predictions in zip(jobs, found, strict=True):
            scores = score_labels(
                predictions.labels,
                truth,
                federation.test_client,
                num_clients,
                federation.num_classes,
            )
            yield Predicted(job, predictions, scores, seconds, traffic)
        begin = time.perf_counter()
    if advice := how_to_read(jobs_of(config)):
        report(advice)


def how_to_read(jobs: Sequence[Job]) -> str:
    """Return advice on which of several predictions to read, and the meaning of their names; "" for
    a single one.

    In a comparison of all, one graph of all clients' points, unlabelled ones too, with the settings
    of the authors' code was best (docs/results.md).
    """
    graphs = [job for job in jobs if job.variant is not None]
    if len(graphs) < 2:
        return ""
    best = min(
        graphs, key=lambda job: (job.predictor != "xclp", not job.unlabelled, job.variant != "code")
    )
    meanings = {
        "_code": "settings of the authors' code",
        "_paper": "settings of the paper's text",
        "_labelled": "without unlabelled training examples in the graph",
    }
    told = [
        f"{end}: {words}"
        for end, words in meanings.items()
        if any(end in job.name for job in graphs)
    ]
    return (
        f"read {best.name} first, which did best where all were compared (docs/results.md). "
        f"{'; '.join(told)}"
    )


def _predict(
    config: ml_collections.ConfigDict,
    method: Method,
    state: ServerState,
    key: Key[Array, ""],
    federation: data.FederatedData,
    mesh: Mesh | None,
    report: Callable[[str], None],
    views: bool,
) -> Iterator[tuple[list[Job], list[graphs.Predictions], int | None]]:
    """Yield jobs that share a graph, their results, and bytes of the protocols."""
    section = config.prediction
    key = named_key(key, "prediction")
    num_clients = federation.num_clients + federation.num_new_clients
    search = partial(nearest_neighbors, mesh=mesh if section.groups == 1 else None)
    for predictor, of_predictor in itertools.groupby(jobs_of(config), lambda job: job.predictor):
        jobs = list(of_predictor)
        if predictor == "network":
            report("predicting: network ...")
            yield jobs, [_by_network(method, state, federation)], None
            continue
        if predictor in ONCE:
            report(f"predicting: {predictor} ...")
            with naming("prediction"):
                embed = _embedding(section.features, method, state, views)
                found_by, sent = ONCE.builder(predictor)(
                    federation, graphs.points_of(federation), embed, section.ridge
                )
            yield jobs, [found_by], sent
            continue
        variants = [
            _variant(section, job.variant) for job in jobs if job.unlabelled == jobs[0].unlabelled
        ]
        points = graphs.points_of(federation)
        protocols = None
        with naming("prediction"):
            embed = _embedding(section.features, method, state, views)
            if predictor == "per_client_lp":
                graph_of = jnp.arange(num_clients, dtype=jnp.int32)
                num_graphs = num_clients
            else:
                graph_of = graphs.random_groups(
                    named_key(key, "groups"), num_clients, section.groups
                )
                num_graphs = section.groups
                if section.protocol != "none":
                    seed = hashlib.sha256(np.asarray(jax.random.key_data(key)).tobytes()).digest()
                    protocols = secure_protocols(
                        section.protocol, section.num_bits, section.hamming, seed=seed
                    )
            if (
                section.similarity or ("exact" if predictor == "per_client_lp" else "lsh")
            ) == "exact":
                label = graphs.by_cosines(federation, points, embed, variants)
            else:
                label = graphs.by_codes(
                    key,
                    federation,
                    points,
                    embed,
                    variants,
                    neighbor_search=nearest_neighbors if predictor == "per_client_lp" else search,
                    exchange=protocols.exchange if protocols else None,
                )
        for unlabelled, sharing in itertools.groupby(jobs, lambda job: job.unlabelled):
            together = list(sharing)
            report(f"predicting: {', '.join(job.name for job in together)} ...")
            before = protocols.traffic.total() if protocols else 0
            options = {"unlabelled": unlabelled, "new_batch_size": section.new_batch_size}
            with naming("prediction"):
                found = graphs.predict_with_graphs(
                    federation, points, label, graph_of, num_graphs, **options
                )
            counted = None
            if protocols and protocols.level != "ideal":
                counted = protocols.traffic.total() - before
            elif protocols is None and predictor == "xclp" and section.similarity != "exact":
                there = unlabelled | (points.observed >= 0) | (points.new >= 0)
                words = -(-variants[0].num_bits // 32)
                counted = int(jnp.sum(there)) * BYTES_PER_NUMBER * words
            yield together, found, counted


def _by_network(
    method: Method, state: ServerState, federation: data.FederatedData
) -> graphs.Predictions:
    log_probs = map_rows(
        lambda inputs: method.predict(state, inputs), federation.inputs, federation.test_index
    )
    certainty = graph.confidence(jnp.exp(log_probs))
    coarse = _in_own_spaces(log_probs, federation) if "coarse" in federation.kinds() else None
    return graphs.Predictions(jnp.argmax(log_probs, axis=1).astype(jnp.int32), certainty, coarse)


def _in_own_spaces(log_probs: Array, federation: data.FederatedData) -> Array:
    """Return every test example's label in the space of its client's coarse labels, -1 if there is
    none.
    """
    weak = federation.weak
    client = np.asarray(federation.test_client)
    assert weak is not None
    labels = np.full(client.shape, -1, np.int32)
    for number in np.flatnonzero(np.asarray(weak.has_known_correspondence)):
        own = client == number
        labels[own] = np.asarray(likeliest_coarse(log_probs[own], weak.matrix[number]))
    return jnp.asarray(labels)


def _embedding(
    features: str, method: Method, state: ServerState, views: bool
) -> Callable[[Array], Array]:
    """Return the function from raw inputs to the compared features; for inputs with stored views it
    uses the example itself.
    """
    if features == "inputs":

        def flat(inputs: Array) -> Array:
            plain = inputs[:, 0] if views else inputs
            return plain.reshape(len(plain), -1).astype(jnp.result_type(float))

        return flat
    embed = method.embed
    if embed is None:
        raise ConfigError(
            "config.prediction.features is 'network', but this method has none; use 'inputs'"
        )
    return lambda inputs: map_rows(
        lambda some: embed(state, some), inputs, jnp.arange(inputs.shape[0], dtype=jnp.int32)
    )


def _variant(section: ml_collections.ConfigDict, variant: str | None) -> GraphSettings:
    """Return the settings of one propagation: the variant's, changed by the fields that were
    set.
    """
    names = {field.name for field in dataclasses.fields(GraphSettings)} & set(section)
    given = {name: section[name] for name in names if section[name] is not None}
    return dataclasses.replace(VARIANTS[variant or "paper"], **given)
