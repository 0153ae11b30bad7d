"""The prediction application: from a config to labels for the new examples that clients hold.

What a run's `config.prediction` asks for is done once, after the last round: every predictor labels all test examples
that belong to a client, and is scored over all of them and at each client.
"""

import csv
import io
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, graph
from fedjax_ssl.config import ConfigError
from fedjax_ssl.experiment.build import Experiment, device_mesh
from fedjax_ssl.federated import (
    Method,
    Scores,
    ServerState,
    likeliest_coarse,
    map_rows,
    score_labels,
)
from fedjax_ssl.graph import Neighbors, PropagationSettings, approximate_neighbors, nearest_neighbors, neighbor_recall
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.predictors import (
    Labeller,
    Points,
    Predictions,
    by_codes,
    by_cosines,
    points_of,
    predict_with_graphs,
    random_groups,
)

# Of XCLP and per-client LP alike: the paper's text, and the authors' code.
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"similarity_power": 1.0, "label_norm": "none", "confidence_scale": "none"},
    "code": {"similarity_power": 3.0, "label_norm": "class", "confidence_scale": "max"},
}


class Job(NamedTuple):
    """One way of predicting."""

    predictor: str
    variant: str | None  # None for the network, which has none
    unlabelled: bool  # whether unlabelled training examples stand in the graph
    name: str  # tells the jobs of one run apart


class Outcome(NamedTuple):
    """What one way of predicting gave."""

    job: Job
    found: Predictions
    scores: Scores
    seconds: float  # of all jobs that share its graph, compiling included
    neighbor_recall: float | None  # measured, where neighbours were searched approximately


def jobs_of(config: ml_collections.ConfigDict) -> list[Job]:
    """The ways of predicting that a config asks for, in its order.

    Args:
        config: resolved.

    Returns:
        The jobs; jobs that share a graph, which are those that differ in the variant only, stand side by side.
    """
    section = config.prediction
    variants = list(VARIANTS) if section.variant == "both" else [section.variant]
    points = {"with": [True], "without": [False], "both": [True, False]}[section.unlabelled]
    jobs = []
    for predictor in configs.predictors(config):
        if predictor == "network":
            jobs.append(Job(predictor, None, True, predictor))
            continue
        for unlabelled, variant in itertools.product(points, variants):
            parts = [predictor, variant if len(variants) > 1 else "", "" if unlabelled else "labelled"]
            jobs.append(Job(predictor, variant, unlabelled, "_".join(part for part in parts if part)))
    return jobs


def check(config: ml_collections.ConfigDict, federation: data.FederatedData) -> None:
    """Raises ConfigError where a prediction that is asked for makes no sense for this federation.

    Args:
        config: resolved.
        federation: known, not traced.
    """
    names = configs.predictors(config)
    if not names:
        return
    holders = np.unique(np.asarray(federation.test_client))
    holders = holders[holders >= 0]
    if not holders.size:
        raise ConfigError(
            f"config.prediction.predictors is {config.prediction.predictors!r}, but no new example belongs to a "
            "client. Hold some out with --config.data.client_test_fraction=0.2 or --config.data.left_out_client=0, or "
            "give them in the dataset (npz: test_inputs and test_client, with the natural partition)"
        )
    labels = np.concatenate([np.asarray(federation.num_labelled), np.zeros(federation.num_new_clients, np.int32)])
    if "per_client_lp" in names and not labels[holders].any():
        raise ConfigError(
            "config.prediction.predictors names per_client_lp, which labels a client's examples from this client's "
            "own labels, but no client with new examples has any, as in leave-one-client-out. Leave it out: "
            "--config.prediction.predictors=network,xclp"
        )
    if config.prediction.groups > labels.size:
        raise ConfigError(f"config.prediction.groups is {config.prediction.groups}; there are {labels.size} clients")


def predict(
    experiment: Experiment,
    method: Method,
    state: ServerState,
    key: Key[Array, ""],
    federation: data.FederatedData,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Outcome]:
    """Labels the test examples of all clients in every way that the config asks for, one after another.

    Args:
        experiment: config and dataset.
        method: gives the network's predictions and features.
        state: of the method, after training.
        key: the run's key; projections and groups follow from it.
        federation: see `check`.
        report: is told what is being done, a line for each graph.

    Yields:
        One outcome per job of the config.

    Raises:
        ConfigError: a setting cannot be used.
    """
    num_clients = federation.num_clients + federation.num_new_clients
    truth = federation.labels[federation.test_index]
    begin = time.perf_counter()
    for jobs, found, recalls in _predict(experiment.config, method, state, key, federation, report):
        found = jax.block_until_ready(found)
        seconds = time.perf_counter() - begin
        for job, predictions in zip(jobs, found, strict=True):
            scores = score_labels(
                predictions.labels, truth, federation.test_client, num_clients, federation.num_classes
            )
            yield Outcome(job, predictions, scores, seconds, float(np.mean(recalls)) if recalls else None)
        begin = time.perf_counter()


def _predict(
    config: ml_collections.ConfigDict,
    method: Method,
    state: ServerState,
    key: Key[Array, ""],
    federation: data.FederatedData,
    report: Callable[[str], None],
) -> Iterator[tuple[list[Job], list[Predictions], list[float]]]:
    """Jobs that share a graph, what each found, and the measured recall of its searches where they are approximate."""
    key = named_key(key, "prediction")
    for predictor, of_predictor in itertools.groupby(jobs_of(config), lambda job: job.predictor):
        jobs = list(of_predictor)
        if predictor == "network":
            report("predicting: network ...")
            yield jobs, [_by_network(method, state, federation)], []
            continue
        settings = [_settings(config.prediction, job.variant) for job in jobs if job.unlabelled == jobs[0].unlabelled]
        points, search = points_of(federation), _Search(config)
        with configs.naming("prediction"):
            embed = _embedding(config.prediction, method, state)
            graph_of, num_graphs = _graphs(config.prediction, predictor, key, federation)
            label = _labeller(config.prediction, predictor, key, federation, points, embed, search, settings)
        for unlabelled, sharing in itertools.groupby(jobs, lambda job: job.unlabelled):
            together = list(sharing)
            report(f"predicting: {', '.join(job.name for job in together)} ...")
            search.recalls.clear()
            with configs.naming("prediction"):
                found = predict_with_graphs(
                    federation,
                    points,
                    label,
                    graph_of,
                    num_graphs,
                    unlabelled=unlabelled,
                    new_batch_size=config.prediction.new_batch_size,
                )
            yield together, found, search.recalls


def _by_network(method: Method, state: ServerState, federation: data.FederatedData) -> Predictions:
    log_probs = map_rows(lambda inputs: method.predict(state, inputs), federation.inputs, federation.test_index)
    certainty = graph.confidence(jnp.exp(log_probs))
    coarse = _in_own_spaces(log_probs, federation) if "coarse" in federation.kinds() else None
    return Predictions(jnp.argmax(log_probs, axis=1).astype(jnp.int32), certainty, coarse)


def _in_own_spaces(log_probs: Array, federation: data.FederatedData) -> Array:
    """Every test example's label in the space of its client's coarse labels, -1 where that has no known other space."""
    weak, client = federation.weak, np.asarray(federation.test_client)
    assert weak is not None
    labels = np.full(client.shape, -1, np.int32)
    for number in np.flatnonzero(np.asarray(weak.has_known_correspondence)):
        own = client == number
        labels[own] = np.asarray(likeliest_coarse(log_probs[own], weak.matrix[number]))
    return jnp.asarray(labels)


def _embedding(section: ml_collections.ConfigDict, method: Method, state: ServerState) -> Callable[[Array], Array]:
    """Raw inputs -> what the graphs compare."""
    if section.features == "inputs":
        return lambda inputs: inputs.reshape(inputs.shape[0], -1).astype(jnp.result_type(float))
    embed = method.embed
    if embed is None:
        raise ConfigError("config.prediction.features is 'network', but this method has none; use 'inputs'")
    return lambda inputs: map_rows(
        lambda some: embed(state, some), inputs, jnp.arange(inputs.shape[0], dtype=jnp.int32)
    )


def _settings(section: ml_collections.ConfigDict, variant: str | None) -> PropagationSettings:
    """The settings of a variant, with what the config names itself in their place."""
    chosen = VARIANTS[variant or "paper"]
    given = {name: section[name] for name in chosen if section[name] is not None}
    return PropagationSettings(section.num_bits, section.num_neighbors, section.alpha, **{**chosen, **given})


def _graphs(
    section: ml_collections.ConfigDict, predictor: str, key: Key[Array, ""], federation: data.FederatedData
) -> tuple[Array, int]:
    """The graph of each client, and how many there are."""
    num_clients = federation.num_clients + federation.num_new_clients
    if predictor == "per_client_lp":
        return jnp.arange(num_clients, dtype=jnp.int32), num_clients
    return random_groups(named_key(key, "groups"), num_clients, section.groups), section.groups


def _labeller(
    section: ml_collections.ConfigDict,
    predictor: str,
    key: Key[Array, ""],
    federation: data.FederatedData,
    points: Points,
    embed: Callable[[Array], Array],
    search: "_Search",
    settings: list[PropagationSettings],
) -> Labeller:
    alone = predictor == "per_client_lp"
    if alone and section.similarity == "exact":
        return by_cosines(federation, points, embed, settings)
    return by_codes(key, federation, points, embed, settings, neighbor_search=nearest_neighbors if alone else search)


class _Search:
    """The search for neighbours that a config asks for; keeps how many of them an approximate one found."""

    def __init__(self, config: ml_collections.ConfigDict):
        self._approximate = config.prediction.neighbor_search == "approximate"
        self._mesh = device_mesh(config) if config.prediction.groups == 1 else None
        self.recalls: list[float] = []

    def __call__(self, codes: Array, num_bits: int, num_neighbors: int, valid: Array | None = None) -> Neighbors:
        if not self._approximate:
            return nearest_neighbors(codes, num_bits, num_neighbors, valid, mesh=self._mesh)
        neighbors = approximate_neighbors(codes, num_bits, num_neighbors, valid)
        self.recalls.append(float(neighbor_recall(neighbors, codes, num_bits, valid)))
        return neighbors


def summary_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The outcomes as `summary.json` holds them.

    Args:
        outcomes: of one run.

    Returns:
        For each one its name and settings, "new_examples", "coverage" (share of the new examples that were given a
        label), accuracies in [0, 1] (not where no new example has a true label), and "seconds" of all variants that
        share its graph, compiling included.
    """
    rows = []
    for outcome in outcomes:
        scores = jax.tree.map(lambda values: np.asarray(values, np.float64), outcome.scores)
        scored = scores.client_examples > 0
        row: dict[str, Any] = {
            "name": outcome.job.name,
            "predictor": outcome.job.predictor,
            "variant": outcome.job.variant,
            "unlabelled": outcome.job.unlabelled,
            "new_examples": int(scores.examples),
            "coverage": float(scores.coverage),
        }
        if scored.any():
            row |= {
                "accuracy": float(scores.accuracy),
                "balanced_accuracy": float(scores.balanced_accuracy),
                "mean_client_accuracy": float(scores.client_accuracy[scored].mean()),
                "lowest_client_accuracy": float(scores.client_accuracy[scored].min()),
                "mean_client_balanced_accuracy": float(scores.client_balanced_accuracy[scored].mean()),
            }
        row["seconds"] = outcome.seconds
        if outcome.neighbor_recall is not None:
            row["neighbor_recall"] = outcome.neighbor_recall
        rows.append(row)
    return rows


def predictions_table(experiment: Experiment, federation: data.FederatedData, outcomes: Sequence[Outcome]) -> str:
    """CSV with a line per new example: where it is in the dataset, whose it is, its true and its predicted labels."""
    classes = experiment.dataset.class_names
    client = np.asarray(federation.test_client)
    place = np.flatnonzero(client >= 0)
    rows = np.asarray(federation.test_index)[place]
    truth = np.asarray(federation.labels)[rows]
    names = _client_names(experiment, federation)
    header, columns = ["split", "row", "client", "label"], []
    for one in outcomes:
        header += [one.job.name, f"{one.job.name}_confidence"]
        columns.append([_class_name(classes, label) for label in np.asarray(one.found.labels)[place]])
        columns.append([f"{value:.4f}" for value in np.asarray(one.found.confidence)[place]])
        if one.found.coarse is not None:
            header.append(f"{one.job.name}_coarse")
            found = np.asarray(one.found.coarse)[place]
            columns.append([_class_name(federation.coarse_names, label) for label in found])
    train = len(experiment.dataset.train)
    lines = (
        [
            "train" if row < train else "test",
            int(row if row < train else row - train),
            names[client[where]],
            _class_name(classes, label),
            *(column[i] for column in columns),
        ]
        for i, (where, row, label) in enumerate(zip(place, rows, truth, strict=True))
    )
    return _csv([header, *lines])


def clients_table(experiment: Experiment, federation: data.FederatedData, outcomes: Sequence[Outcome]) -> str:
    """CSV with a line per client that has new examples: counts, accuracy and balanced accuracy of every outcome."""
    client = np.asarray(federation.test_client)
    new = np.bincount(client[client >= 0], minlength=federation.num_clients + federation.num_new_clients)
    nothing = np.zeros(federation.num_new_clients, np.int32)
    examples, labelled = (
        np.concatenate([np.asarray(counts), nothing]) for counts in (federation.num_examples, federation.num_labelled)
    )
    names = _client_names(experiment, federation)
    header = ["client", "training_examples", "labelled_examples", "new_examples"]
    header += [f"{one.job.name}_{score}" for one in outcomes for score in ("accuracy", "balanced_accuracy")]
    scores = [
        np.asarray(values)
        for one in outcomes
        for values in (one.scores.client_accuracy, one.scores.client_balanced_accuracy)
    ]
    lines = (
        [names[c], examples[c], labelled[c], new[c], *("" if np.isnan(s[c]) else f"{s[c]:.4f}" for s in scores)]
        for c in np.flatnonzero(new).tolist()
    )
    return _csv([header, *lines])


def _client_names(experiment: Experiment, federation: data.FederatedData) -> dict[int, str]:
    """Names of the clients that have new examples: the dataset's where clients are natural, numbers otherwise."""
    dataset, client = experiment.dataset, np.asarray(federation.test_client)
    numbers, first = np.unique(client, return_index=True)
    if experiment.config.partition.name != "natural" or dataset.train.client is None:
        return {int(number): str(number) for number in numbers}
    natural = dataset.train.client
    if dataset.test is not None:
        of_test = dataset.test.client if dataset.test.client is not None else np.full(len(dataset.test), -1, np.int32)
        natural = np.concatenate([natural, of_test])
    of_number = natural[np.asarray(federation.test_index)[first]]
    known = dataset.client_names
    return {int(n): str(i) if known is None else known[i] for n, i in zip(numbers, of_number, strict=True) if n >= 0}


def _class_name(names: Sequence[str], label: int) -> str:
    return names[label] if label >= 0 else ""


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
