"""Detailed scores of a trained model at the end of a run, from the probabilities of its test
examples.

The model is the one that `predict` uses. Scores are computed with NumPy on the host, apart from the
compiled evaluation.

    summary.json                the scores of all test examples with a label, under "scores"
    test_predictions.csv        a line per test example
    test_scores_by_client.csv   a line per client that has test examples with a label

References:
    Temperature scaling: Guo et al., On calibration of modern neural
    networks, ICML 2017. The interval: Wilson, Probable inference, the law of succession, and
    statistical inference, JASA 1927.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_ssl.data import HostInputs
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.data.reading.own import SHOWN
from fedjax_ssl.data.sites_apart import remedy
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import ServerState
from fedjax_ssl.federated.evaluation import ECE_BINS
from fedjax_ssl.runs.build import Built
from fedjax_ssl.runs.prediction_files import as_csv, example_columns
from fedjax_ssl.runs.program import Program

BATCH = 512  # examples per forward pass, at most
TOP = (2, 3, 5)
LEVEL = 0.95  # level of the interval of an accuracy
MOST_NUMBERS = 200_000  # probabilities in a file that is always written, at most; about 2 MB
MOST_CLASSES = 100  # up to this number of classes, summary.json has the confusion matrix
# Fewest validation examples for a temperature. In six runs on digits (FedAvg, XCLP, FixMatch), 40
# draws each, the mean loss on test examples grew by up to 0.37 nats with 20 of them; with 100 it
# changed by -0.04 to +0.01.
FEWEST = 100
FEW = 10  # with fewer test examples, equal predictions are likely
HOTTEST = 20.0  # the search for a temperature is from 1/20 to 20
BY_CLASS = ("recall", "precision", "f1", "support")
_SCALED = ("loss", "ece")  # scores that the temperature changes


class Scored(NamedTuple):
    """The test examples of a trained model, predicted and scored.

    Attributes:
        fields: for `summary.json`.
        seconds: seconds, about those of an evaluation on test and validation examples.
        files: contents by name of the file.
        temperature: for `model.json`; None if none was fitted.
        notes: lines for the user.
    """

    fields: dict[str, Any]
    seconds: float
    files: dict[str, str]
    temperature: dict[str, Any] | None
    notes: list[str]


def score_run(program: Program, round: int, state: ServerState, names: Sequence[str]) -> Scored:
    """Predict the test examples and score them.

    If clients have their own models, each predicts its client's test examples; the global model
    predicts all others.

    Args:
        program: the run's.
        round: rounds behind the model.
        state: state after that round, on one device.
        names: names of the clients.
    """
    built = program.built
    federation = built.federation
    alone = built.method.recipe.alone
    labels = np.asarray(federation.labels)
    rows = np.asarray(federation.test_index)[: int(federation.num_test)]
    client = np.asarray(federation.test_client)[: len(rows)]
    has_own = built.method.predict_for is not None
    owned = (client >= 0) & (client < federation.num_clients) & has_own
    plain, seconds = _predict(program, state, rows, np.where(owned, client, -1))
    held_out = real_rows(federation.valid_index, federation.num_valid)
    seconds *= 1 + len(held_out) / max(len(rows), 1)
    value, notes = _temperature(program, state, held_out[labels[held_out] >= 0])
    log_probs = plain if value is None else np.where(owned[:, None], plain, scaled(plain, value))

    there = ~np.isnan(log_probs).any(axis=1)
    lost = int((~there).sum())
    if lost:
        own = "no client's own, where clients trained alone"
        why = own if alone else "predicted as no number"
        notes.append(f"not in the detailed scores: {counted(lost, 'test example')}, {why}")
    known = there & (labels[rows] >= 0)
    fields = dict[str, Any]()
    temperature = None
    if known.any():
        fields = {
            "round": round,
            "model": "clients' own" if owned.any() else "global",
            "classes": list(built.experiment.dataset.class_names),
            **scores(log_probs[known], labels[rows[known]]),
        }
        predicted = log_probs[known].argmax(axis=1)
        told = predicted, labels[rows[known]], client[known], names, fields["classes"]
        notes += one_class(*told, built.experiment.config)
    if value is not None:
        examples = int((labels[held_out] >= 0).sum())
        temperature = {"value": value, "round": round, "examples": examples}
        if known.any():
            before = scores(plain[known], labels[rows[known]])
            uncalibrated = {f"uncalibrated_{one}": before[one] for one in _SCALED}
            fields |= {"temperature": value, **uncalibrated}
    files, note = _test_predictions(built, log_probs, there)
    notes += note
    whose = np.where(known, client, -1)
    each = {
        names[c]: scores(log_probs[whose == c], labels[rows[whose == c]])
        for c in np.unique(whose[whose >= 0])
    }
    if each:
        classes = built.experiment.dataset.class_names
        few = len(each) * len(classes) * len(BY_CLASS) <= MOST_NUMBERS
        lines = [_in_columns(*one, classes if few else ()) for one in each.items()]
        files["test_scores_by_client.csv"] = as_csv(lines, "%.6f")
    return Scored({"scores": fields} if fields else {}, seconds, files, temperature, notes)


def one_class(
    predicted: Int[np.ndarray, " n"],
    labels: Int[np.ndarray, " n"],
    client: Int[np.ndarray, " n"],
    names: Sequence[str],
    classes: Sequence[str],
    config: Mapping[str, Any],
) -> list[str]:
    """Return a note if a model predicts one class for all test examples of several classes, in
    total or of a client.

    Args:
        predicted: class of every test example.
        labels: its true class.
        client: owner of every test example, -1 = none.
        names: names of the clients.
        classes: names of the classes.
        config: config of the run.
    """

    def stuck(chosen: Bool[np.ndarray, " n"]) -> bool:
        enough = chosen.sum() >= FEW and len(np.unique(labels[chosen])) > 1
        return bool(enough) and len(np.unique(predicted[chosen])) == 1

    helps = remedy(config)
    if stuck(np.ones(len(labels), bool)):
        return [
            f"the model predicts {classes[predicted[0]]!r} for all {len(labels):,} test examples, "
            f"as one does that has learned nothing: {helps}"
        ]
    clients = [names[one] for one in np.unique(client[client >= 0]) if stuck(client == one)]
    if not clients:
        return []
    shown = ", ".join(clients[:SHOWN]) + (", ..." if len(clients) > SHOWN else "")
    return [f"one class is predicted for all test examples of {shown}: {helps}"]


def _temperature(
    program: Program, state: ServerState, rows: Int[np.ndarray, " v"]
) -> tuple[float | None, list[str]]:
    """Fit the temperature of the global model on validation examples, and note it."""
    if not len(rows) or program.built.method.recipe.alone:
        return None, []
    examples = counted(len(rows), "validation example")
    value = None
    if len(rows) >= FEWEST:
        log_probs, _ = _predict(program, state, rows, np.full(rows.shape, -1))
        value = fit_temperature(log_probs, np.asarray(program.built.federation.labels)[rows])
    if value is None:
        return None, [
            f"probabilities are not calibrated: there are {examples}, and calibration takes at "
            f"least {FEWEST} with wrong predictions among them"
        ]
    where = (
        "the probabilities of predict and of the detailed scores (predict --uncalibrated: "
        "without it)"
    )
    return value, [f"temperature {value:.3g}, fitted on {examples}, scales {where}"]


def _test_predictions(
    built: Built, log_probs: Float[np.ndarray, "m K"], there: Bool[np.ndarray, " m"]
) -> tuple[dict[str, str], list[str]]:
    """Write a line per predicted test example, unless there are too many, with a note."""
    classes = built.experiment.dataset.class_names
    numbers = int(there.sum()) * len(classes)
    asked = built.experiment.config.test_predictions
    if not numbers or asked == "none":
        return {}, []
    if asked == "auto" and numbers > MOST_NUMBERS:
        return {}, [
            f"no test_predictions.csv: {numbers:,} probabilities (config.test_predictions=all "
            "writes them)"
        ]
    natural = built.experiment.config.partition.name == "natural"
    dataset = built.experiment.dataset
    columns = example_columns(dataset, built.federation, np.flatnonzero(there), natural)
    columns["prediction"] = np.array(classes, object)[log_probs[there].argmax(axis=1)]
    for name, probability in zip(classes, np.exp(log_probs[there]).T, strict=True):
        columns[f"probability_{name}"] = probability
    return {"test_predictions.csv": as_csv(columns, "%.6f")}, []


def _predict(
    program: Program,
    state: ServerState,
    rows: Int[np.ndarray, " m"],
    model: Int[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, "m K"], float]:
    """Return log-probabilities by each example's model, a client's or (-1) the global one; NaN
    without a model.

    The second result is the seconds of all forward passes without compiling, from the median of all
    but the first.
    """
    host = HostInputs(program.built.experiment.dataset)
    found = np.full((len(rows), program.built.federation.num_classes), np.nan, np.float32)
    # Sorted so that a client's model is fetched once, and inputs are read from front to back.
    order = np.lexsort((rows, model))
    groups = [
        part for part in np.split(order, np.flatnonzero(np.diff(model[order])) + 1) if len(part)
    ]
    size = min(BATCH, 1 << (max(map(len, groups), default=1) - 1).bit_length())
    calls = [
        (None if client < 0 else client, batch)
        for client, group in ((int(model[group[0]]), group) for group in groups)
        if client >= 0 or not program.built.method.recipe.alone
        for batch in np.split(group, range(size, len(group), size))
    ]
    taken = list[float]()
    for own, batch in calls + calls[-1:]:  # one extra call, so that at least one compiles nothing
        inputs = host.read(rows[batch], size)
        begin = time.perf_counter()
        found[batch] = program.predict(state, own, inputs)[: len(batch)]
        taken.append(time.perf_counter() - begin)
    return found, statistics.median(taken[1:]) * len(calls) if calls else 0.0


def scores(log_probs: Float[np.ndarray, "n K"], labels: Int[np.ndarray, " n"]) -> dict[str, Any]:
    """Score predicted probabilities.

    Args:
        log_probs: natural logarithms of probabilities; rows sum to 1.
        labels: true classes, for at least one example.

    Returns:
        "examples", "accuracy" and the ends of its 95 % Wilson interval, "top_2_accuracy" and so on,
        "loss" (nats), "ece"; by class "recall", "precision", "f1" (None if undefined) and
        "support"; "confusion" [true][predicted] of up to `MOST_CLASSES` classes.

    Example:
        >>> import numpy as np
        >>> found = scores(np.log([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), np.array([0, 1, 1]))
        >>> found["accuracy"], found["recall"], found["confusion"]
        (0.666667, [1.0, 0.5], [[1, 0], [1, 1]])
    """
    count, classes = log_probs.shape
    probabilities = np.exp(log_probs.astype(float))
    predicted = log_probs.argmax(axis=1)
    own = np.take_along_axis(log_probs, labels[:, None], axis=1)
    place = (log_probs > own).sum(axis=1)
    confidence = probabilities.max(axis=1)
    right = predicted == labels
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(
        classes, classes
    )
    hits = confusion.diagonal()
    support = confusion.sum(axis=1)
    claimed = confusion.sum(axis=0)
    low, high = wilson(int(right.sum()), count)
    bins = np.clip(np.ceil(confidence * ECE_BINS).astype(int) - 1, 0, ECE_BINS - 1)
    sure, good = (np.bincount(bins, w, minlength=ECE_BINS) for w in (confidence, right))
    found: dict[str, Any] = {
        "examples": count,
        "accuracy": _short(right.mean()),
        "accuracy_low": _short(low),
        "accuracy_high": _short(high),
        **{f"top_{k}_accuracy": _short((place < k).mean()) for k in TOP if k < classes},
        "loss": _short(-own.mean(dtype=float)),
        "ece": _short(np.abs(good - sure).sum() / count),
        "recall": _ratios(hits, support),
        "precision": _ratios(hits, claimed),
        "f1": _ratios(2 * hits, support + claimed),
        "support": support.tolist(),
    }
    if classes <= MOST_CLASSES:
        found["confusion"] = confusion.tolist()
    return found


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the bounds of Wilson's interval for a share, at `LEVEL`."""
    z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = right / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    low = 0.0 if right == 0 else middle - half
    high = 1.0 if right == count else middle + half
    return low, high


def _short(value: Any) -> float | None:
    return round(float(value), 6) if math.isfinite(value) else None


def _ratios(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    return [
        _short(one / of) if of else None
        for one, of in zip(part.tolist(), whole.tolist(), strict=True)
    ]


def fit_temperature(
    log_probs: Float[np.ndarray, "n K"], labels: Int[np.ndarray, " n"]
) -> float | None:
    """Find the temperature with the smallest loss; None if it is not within 1/20 to 20, for example
    if all predictions are right.
    """

    def loss(log_temperature: float) -> float:
        return float(
            -np.take_along_axis(
                scaled(log_probs, math.exp(log_temperature)), labels[:, None], 1
            ).mean()
        )

    import scipy.optimize  # slow to import, and few runs fit a temperature

    limit = math.log(HOTTEST)
    found = scipy.optimize.minimize_scalar(
        loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-6}
    )
    return math.exp(found.x) if math.isfinite(found.fun) and abs(found.x) < 0.99 * limit else None


def scaled(log_probs: Float[np.ndarray, "n K"], temperature: float) -> Float[np.ndarray, "n K"]:
    """Divide the logits by a temperature."""
    from scipy.special import log_softmax  # slow to import

    return np.asarray(log_softmax(log_probs.astype(float) / temperature, axis=1))


def _in_columns(client: str, found: Mapping[str, Any], classes: Sequence[str]) -> dict[str, Any]:
    """Make a row of the scores of a client, with those of some classes."""
    row = {name: value for name, value in found.items() if not isinstance(value, list | dict)}
    by_class = {
        f"{score}_{name}": found[score][k] for score in BY_CLASS for k, name in enumerate(classes)
    }
    return {"client": client, **row, **by_class}
