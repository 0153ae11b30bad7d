"""Which pseudo-labels count: rules of thresholds.

A rule looks at the labels' probabilities in every local step. What it knows is in two parts: what
is common to the clients, and what a client has of its own. The common part is sent to the clients,
moves with their steps, and comes back: FreeMatch's and SoftMatch's as a weighted mean, FlexMatch's
counts as the sum of their changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Setup
from fedjax_ssl.federated.contract import PyTree
from fedjax_ssl.methods.parts.settings import Decay
from fedjax_ssl.objectives import (
    FreeMatch,
    class_fairness,
    flexmatch_rates,
    flexmatch_thresholds,
    freematch_start,
    freematch_thresholds,
    freematch_update,
    last_labels,
    softmatch_start,
    softmatch_update,
    softmatch_weights,
)

FAIRNESS_WEIGHT = 0.001  # of FreeMatch's fairness beside the loss of unlabelled examples

# probabilities [b, K] -> rows that count [b], or a weight of each
Weigh = Callable[[Array], Array]


@checked
@dataclass(frozen=True)
class Thresholds:
    """Settings of the rule by which pseudo-labels count.

    Attributes:
        threshold_rule: "fixed": the method's threshold; "flexmatch": lower for classes that few
            examples are confident of; "freematch": the mean confidence, lower for classes that are
            predicted less; "softmatch": a weight that falls below the mean confidence.
        threshold_decay: of FreeMatch's and SoftMatch's averages, by local step.
    """

    threshold_rule: Literal["fixed", "flexmatch", "freematch", "softmatch"] = "fixed"
    threshold_decay: Decay = 0.999


class Known(NamedTuple):
    """What a rule has learned."""

    common: PyTree = ()
    own: PyTree = ()


class Batch(NamedTuple):
    """A batch of stream "unlabelled", as a rule sees it."""

    probabilities: Float[Array, "b K"]  # of whose labels they are; no gradient
    mask: Bool[Array, " b"]
    place: Int[Array, " b"]  # in `Client.rows`


class Rule(NamedTuple):
    """A rule as functions."""

    look: Callable[[Known, Batch], tuple[Weigh, Known]]
    # ^ (before a step, its batch) -> (which rows count, after it)
    start: Callable[[Array, int], Known] = lambda examples, places: Known()
    # ^ (number of unlabelled examples, rows of a client's table) -> before the first step
    summed: Callable[[PyTree, Array], PyTree] | None = None
    # ^ (common part that was sent, sum of the changes of its counts) -> the next one; None: the
    # mean of what the clients end with, who have nothing of their own
    fairness: Callable[[Known, Array, Array], Array] | None = None
    # ^ (after the step, scores that learn, rows that count) -> a loss beside the method's


def rule_of(setup: Setup, how: Thresholds, threshold: float | Array, above: bool = False) -> Rule:
    """Return the rule that the settings name.

    Args:
        setup: the run.
        how: the settings.
        threshold: tau of a fixed threshold and of FlexMatch.
        above: a row counts above a fixed threshold and not at it.

    Raises:
        ValueError: settings that the federation cannot have.
    """
    if how.threshold_rule == "flexmatch":
        if setup.num_parts > 1:
            raise ValueError(
                "threshold_rule is 'flexmatch', which remembers a class for every example, but "
                f"unlabelled examples come in {setup.num_parts} parts; take another rule, or leave "
                "config.partition.parts at 1"
            )
        return _flexmatch(setup, threshold)
    if how.threshold_rule == "freematch":
        return _freematch(setup, how)
    if how.threshold_rule == "softmatch":
        return _softmatch(setup, how)

    def fixed(probabilities: Float[Array, "b K"]) -> Bool[Array, " b"]:
        largest = jnp.max(probabilities, axis=1)
        return largest > threshold if above else largest >= threshold

    return Rule(lambda known, batch: (fixed, known))


def _reach(thresholds: Float[Array, " K"]) -> Weigh:
    """Return which rows' largest probability reaches the threshold of its class."""
    return lambda q: jnp.max(q, axis=1) >= thresholds[jnp.argmax(q, axis=1)]


class _Counted(NamedTuple):
    """FlexMatch's common part."""

    counts: Float[Array, " K+1"]  # of examples by last confident class; the last one: none yet
    rates: Float[Array, " K"]


def _flexmatch(setup: Setup, threshold: float | Array) -> Rule:
    classes = setup.num_classes

    def start(examples: Array, places: int) -> Known:
        counts = jnp.zeros(classes + 1).at[classes].set(examples.astype(jnp.result_type(float)))
        common = _Counted(counts, jnp.zeros(classes))
        return Known(common, jnp.full((places,), -1, jnp.int32))

    def histogram(labels: Int[Array, " n"]) -> Float[Array, " K+1"]:
        # -1 is the last one
        return jnp.zeros(classes + 1).at[labels].add(1.0)

    def look(known: Known, batch: Batch) -> tuple[Weigh, Known]:
        common: _Counted = known.common
        weigh = _reach(flexmatch_thresholds(common.rates, threshold))
        sure = batch.mask & (jnp.max(batch.probabilities, axis=1) >= threshold)
        labels = jnp.argmax(batch.probabilities, axis=1).astype(jnp.int32)
        own = last_labels(known.own, batch.place, labels, sure)
        counts = common.counts + histogram(own) - histogram(known.own)
        rates = flexmatch_rates(counts, common.rates)
        return weigh, Known(_Counted(counts, rates), own)

    def summed(sent: _Counted, changes: Float[Array, " K+1"]) -> _Counted:
        counts = sent.counts + changes
        return _Counted(counts, flexmatch_rates(counts, sent.rates))

    return Rule(look, start, summed)


def _freematch(setup: Setup, how: Thresholds) -> Rule:
    def look(known: Known, batch: Batch) -> tuple[Weigh, Known]:
        state = freematch_update(known.common, batch.probabilities, batch.mask, how.threshold_decay)
        return _reach(freematch_thresholds(state)), Known(state)

    def fairness(known: Known, logits: Array, counted: Array) -> Array:
        state: FreeMatch = known.common
        return FAIRNESS_WEIGHT * class_fairness(logits, counted, state)

    return Rule(
        look,
        lambda examples, places: Known(freematch_start(setup.num_classes)),
        fairness=fairness,
    )


def _softmatch(setup: Setup, how: Thresholds) -> Rule:
    uniform = jnp.full((setup.num_classes,), 1.0 / setup.num_classes)

    def look(known: Known, batch: Batch) -> tuple[Weigh, Known]:
        state = softmatch_update(
            known.common, batch.probabilities, batch.mask, uniform, how.threshold_decay
        )
        return lambda q: softmatch_weights(state, q, uniform), Known(state)

    return Rule(look, lambda examples, places: Known(softmatch_start(setup.num_classes)))
