"""The prediction application: from a config to labels for the new examples that clients hold.

What a run's `config.prediction` asks for is done once, after the last round: every predictor labels all test examples
that belong to a client, and is scored over all of them and at each client.
"""

import csv
import io
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from jaxtyping import Array, Key

from fedjax_ssl import config as configs
from fedjax_ssl import data, graph
from fedjax_ssl.config import ConfigError
from fedjax_ssl.experiment import Experiment
from fedjax_ssl.federated import Method, Scores, ServerState, map_rows, score_labels
from fedjax_ssl.graph import Neighbors, approximate_neighbors, nearest_neighbors, neighbor_recall
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.prediction import Predictions, points_of, propagate_labels, random_groups

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
    seconds: float  # compiling included
    neighbor_recall: float | None  # measured, where neighbours were searched approximately


def jobs_of(config: ml_collections.ConfigDict) -> list[Job]:
    """The ways of predicting that a config asks for, in its order."""
    section = config.prediction
    variants = list(VARIANTS) if section.variant == "both" else [section.variant]
    points = {"with": [True], "without": [False], "both": [True, False]}[section.unlabelled]
    jobs = []
    for predictor in section.predictors.split(",") if section.predictors else []:
        if predictor == "network":
            jobs.append(Job(predictor, None, True, predictor))
            continue
        for variant, unlabelled in itertools.product(variants, points):
            parts = [predictor, variant if len(variants) > 1 else "", "" if unlabelled else "labelled"]
            jobs.append(Job(predictor, variant, unlabelled, "_".join(part for part in parts if part)))
    return jobs


def check(config: ml_collections.ConfigDict, federation: data.FederatedData) -> None:
    """Raises ConfigError where a prediction that is asked for makes no sense for this federation."""
    jobs = jobs_of(config)
    if not jobs:
        return
    holders = np.unique(np.asarray(federation.test_client))
    holders = holders[holders >= 0]
    if not holders.size:
        raise ConfigError(
            f"config.prediction.predictors is {config.prediction.predictors!r}, but no test example belongs to a "
            "client. Hold some out, for example with --config.data.client_test_fraction=0.2 or "
            "--config.data.left_out_client=0, or use a dataset whose test examples have clients"
        )
    labels = np.concatenate([np.asarray(federation.num_labelled), np.zeros(federation.num_new_clients, np.int32)])
    if any(job.predictor == "per_client_lp" for job in jobs) and not labels[holders].any():
        raise ConfigError(
            "config.prediction.predictors names per_client_lp, which labels a client's examples from this client's "
            f"own labels, but no client with new examples has any (leave-one-client-out: {holders.size} such "
            "clients). Leave it out: --config.prediction.predictors=network,xclp"
        )


def predict(
    experiment: Experiment,
    method: Method,
    state: ServerState,
    key: Key[Array, ""],
    federation: data.FederatedData,
    report: Callable[[str], None] = lambda line: None,
) -> list[Outcome]:
    """Labels the test examples of all clients in every way that the config asks for.

    Args:
        experiment: config and dataset.
        method: gives the network's predictions and features.
        state: of the method, after training.
        key: the run's key; projections and groups follow from it.
        federation: see `check`.
        report: is told what is being done, a line for each way.

    Returns:
        One outcome per job of the config.

    Raises:
        ConfigError: a setting cannot be used.
    """
    config = experiment.config.prediction
    key = named_key(key, "prediction")
    outcomes = []
    for job in jobs_of(experiment.config):
        report(f"predicting: {job.name} ...")
        begin = time.perf_counter()
        with configs.naming("prediction"):
            if job.predictor == "network":
                found, recall = _network(method, state, federation), None
            else:
                found, recall = _graph(config, job, _embedding(config, method, state), key, federation)
        found = jax.block_until_ready(found)
        seconds = time.perf_counter() - begin
        num_clients = federation.num_clients + federation.num_new_clients
        truth = federation.labels[federation.test_index]
        scores = score_labels(found.labels, truth, federation.test_client, num_clients, federation.num_classes)
        outcomes.append(Outcome(job, found, scores, seconds, recall))
    return outcomes


def _network(method: Method, state: ServerState, federation: data.FederatedData) -> Predictions:
    log_probs = map_rows(lambda inputs: method.predict(state, inputs), federation.inputs, federation.test_index)
    certainty = graph.confidence(jnp.exp(log_probs))
    return Predictions(jnp.argmax(log_probs, axis=1).astype(jnp.int32), certainty)


def _embedding(config: ml_collections.ConfigDict, method: Method, state: ServerState) -> Callable[[Array], Array]:
    if config.features == "inputs":
        return lambda inputs: inputs.reshape(inputs.shape[0], -1).astype(jnp.result_type(float))
    embed = method.embed
    if embed is None:
        raise ConfigError("config.prediction.features is 'network', but this method has none; use 'inputs'")
    return lambda inputs: map_rows(
        lambda some: embed(state, some), inputs, jnp.arange(inputs.shape[0], dtype=jnp.int32)
    )


def _graph(
    config: ml_collections.ConfigDict,
    job: Job,
    embed: Callable[[Array], Array],
    key: Key[Array, ""],
    federation: data.FederatedData,
) -> tuple[Predictions, float | None]:
    """Labels by propagation, and the measured recall of an approximate search."""
    num_clients = federation.num_clients + federation.num_new_clients
    similarity = "lsh"
    if job.predictor == "per_client_lp":
        num_graphs, graph_of, similarity = num_clients, jnp.arange(num_clients, dtype=jnp.int32), config.similarity
    else:
        num_graphs, graph_of = config.groups, random_groups(named_key(key, "groups"), num_clients, config.groups)
    given = {name: config[name] for name in VARIANTS["paper"] if config[name] is not None}
    search = _search(config)
    found = propagate_labels(
        key,
        federation,
        embed,
        points_of(federation, job.unlabelled),
        graph_of,
        num_graphs,
        similarity=similarity,
        num_bits=config.num_bits,
        num_neighbors=config.num_neighbors,
        alpha=config.alpha,
        **{**VARIANTS[job.variant or "paper"], **given},
        neighbor_search=search,
        new_batch_size=config.new_batch_size,
    )
    return found, search.recall if isinstance(search, _ApproximateSearch) else None


def _search(config: ml_collections.ConfigDict) -> Callable[..., Neighbors]:
    if config.neighbor_search == "approximate":
        return _ApproximateSearch()
    devices = jax.device_count()
    if devices == 1 or config.groups > 1:
        return nearest_neighbors
    return partial(nearest_neighbors, mesh=jax.make_mesh((devices,), ("points",)))


class _ApproximateSearch:
    """`approximate_neighbors`, and how many of the true neighbours the last search found."""

    def __init__(self) -> None:
        self.recall: float | None = None

    def __call__(self, codes: Array, num_bits: int, num_neighbors: int, valid: Array | None = None) -> Neighbors:
        neighbors = approximate_neighbors(codes, num_bits, num_neighbors, valid)
        recall = neighbor_recall(neighbors, codes, num_bits, valid)
        if not isinstance(recall, jax.core.Tracer):
            self.recall = float(recall)
        return neighbors


def summary_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The outcomes as `summary.json` holds them: shares in [0, 1], None where no example has a true label."""
    rows = []
    for outcome in outcomes:
        scores = jax.tree.map(lambda values: np.asarray(values, np.float64), outcome.scores)
        accuracies = scores.client_accuracy[scores.client_examples > 0]
        balanced = scores.client_balanced_accuracy[scores.client_examples > 0]
        row: dict[str, Any] = {
            "name": outcome.job.name,
            "predictor": outcome.job.predictor,
            "variant": outcome.job.variant,
            "unlabelled": outcome.job.unlabelled,
        }
        if accuracies.size:
            row |= {
                "accuracy": float(scores.accuracy),
                "balanced_accuracy": float(scores.balanced_accuracy),
                "coverage": float(scores.coverage),
                "mean_client_accuracy": float(accuracies.mean()),
                "lowest_client_accuracy": float(accuracies.min()),
                "mean_client_balanced_accuracy": float(balanced.mean()),
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
    columns = [(np.asarray(one.found.labels)[place], np.asarray(one.found.confidence)[place]) for one in outcomes]
    train = len(experiment.dataset.train)
    header = ["split", "row", "client", "label"]
    header += [column for one in outcomes for column in (one.job.name, f"{one.job.name}_confidence")]
    lines = (
        [
            "train" if row < train else "test",
            int(row if row < train else row - train),
            names[client[where]],
            _class_name(classes, label),
            *itertools.chain.from_iterable(
                (_class_name(classes, labels[i]), f"{confidence[i]:.4f}") for labels, confidence in columns
            ),
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
