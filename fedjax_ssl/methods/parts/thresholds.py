"""Which pseudo-labels count: rules of thresholds, and where their state lives in a federation.

A rule looks at the labels' probabilities in every local step. What it knows is in two parts: what
is common to the clients, and what a client has of its own. With `threshold_scope="global"` the
common part is sent to the clients, moves with their steps, and comes back: FreeMatch's and
SoftMatch's as a weighted mean, FlexMatch's counts as the sum of their changes. With "client" both
stay at the client, and nothing is sent. With "round" a client learns both anew in every round, from
what the received model says of all its examples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Client, Setup
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.methods.parts.settings import Decay, Positive, Share, Weight
from fedjax_ssl.objectives import (
    FreeMatch,
    SoftMatch,
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
        threshold_scope: what the rule has learned is "global", sent, moved by the clients' steps
            and averaged; or each "client" keeps its own; or it begins in every "round" with what
            the received model says of the client's examples.
        threshold_decay: of FreeMatch's and SoftMatch's averages, by local step.
        threshold_floor: the smallest threshold of a class of FlexMatch and FreeMatch.
        threshold_ceiling: the largest mean confidence of FreeMatch.
        fairness_weight: of FreeMatch's fairness beside the loss of unlabelled examples.
        warm_up: FlexMatch's examples that nobody was confident of yet lower all thresholds.
        deviations: SoftMatch's weights fall the steeper, the larger it is.
        alignment: SoftMatch's predictions are aligned with "uniform" classes, with the classes of
            the client's "labels", or not ("none").
    """

    threshold_rule: Literal["fixed", "flexmatch", "freematch", "softmatch"] = "fixed"
    threshold_scope: Literal["global", "client", "round"] = "global"
    threshold_decay: Decay = 0.999
    threshold_floor: Share = 0.0
    threshold_ceiling: Share = 1.0
    fairness_weight: Weight = 0.001
    warm_up: bool = True
    deviations: Positive = 2.0
    alignment: Literal["uniform", "labels", "none"] = "uniform"


class Known(NamedTuple):
    """What a rule has learned."""

    common: PyTree = ()
    own: PyTree = ()


class Batch(NamedTuple):
    """A batch of stream "unlabelled", as a rule sees it."""

    probabilities: Float[Array, "b K"]  # of whose labels they are; no gradient
    mask: Bool[Array, " b"]
    place: Int[Array, " b"]  # in `Client.rows`
    client: Client


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
    labelled: Callable[[Known, Batch], Known] | None = None
    # ^ (before the first step, all examples of a client as a batch) -> what it knows by them alone;
    # None: nothing


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
        return _flexmatch(setup, how, threshold)
    if how.threshold_rule == "freematch":
        return _freematch(setup, how)
    if how.threshold_rule == "softmatch":
        if how.alignment == "labels" and not setup.max_labelled:
            raise ValueError(
                "alignment is 'labels', but no client has a label; with labels at the server only "
                "take 'uniform' or 'none'"
            )
        return _softmatch(setup, how)

    def fixed(probabilities: Float[Array, "b K"]) -> Bool[Array, " b"]:
        largest = jnp.max(probabilities, axis=1)
        return largest > threshold if above else largest >= threshold

    return Rule(lambda known, batch: (fixed, known))


def _reach(thresholds: Float[Array, " K"], floor: float | Array) -> Weigh:
    """Return which rows' largest probability reaches the threshold of its class."""
    limits = jnp.maximum(thresholds, floor)
    return lambda q: jnp.max(q, axis=1) >= limits[jnp.argmax(q, axis=1)]


class _Counted(NamedTuple):
    """FlexMatch's common part."""

    counts: Float[Array, " K+1"]  # of examples by last confident class; the last one: none yet
    rates: Float[Array, " K"]


def _flexmatch(setup: Setup, how: Thresholds, threshold: float | Array) -> Rule:
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
        weigh = _reach(flexmatch_thresholds(common.rates, threshold), how.threshold_floor)
        sure = batch.mask & (jnp.max(batch.probabilities, axis=1) >= threshold)
        labels = jnp.argmax(batch.probabilities, axis=1).astype(jnp.int32)
        own = last_labels(known.own, batch.place, labels, sure)
        counts = common.counts + histogram(own) - histogram(known.own)
        rates = flexmatch_rates(counts, common.rates, how.warm_up)
        return weigh, Known(_Counted(counts, rates), own)

    def summed(sent: _Counted, changes: Float[Array, " K+1"]) -> _Counted:
        counts = sent.counts + changes
        return _Counted(counts, flexmatch_rates(counts, sent.rates, how.warm_up))

    return Rule(look, start, summed, labelled=lambda known, batch: look(known, batch)[1])


def _freematch(setup: Setup, how: Thresholds) -> Rule:
    def moved(known: Known, batch: Batch, decay: float | Array) -> FreeMatch:
        return freematch_update(
            known.common, batch.probabilities, batch.mask, decay, how.threshold_ceiling
        )

    def look(known: Known, batch: Batch) -> tuple[Weigh, Known]:
        state = moved(known, batch, how.threshold_decay)
        return _reach(freematch_thresholds(state), how.threshold_floor), Known(state)

    def fairness(known: Known, logits: Array, counted: Array) -> Array:
        state: FreeMatch = known.common
        return how.fairness_weight * class_fairness(logits, counted, state)

    return Rule(
        look,
        lambda examples, places: Known(freematch_start(setup.num_classes)),
        fairness=fairness,
        labelled=lambda known, batch: Known(moved(known, batch, 0.0)),
    )


def _softmatch(setup: Setup, how: Thresholds) -> Rule:
    uniform = jnp.full((setup.num_classes,), 1.0 / setup.num_classes)

    def target_of(client: Client) -> Array | None:
        if how.alignment == "none":
            return None
        if how.alignment == "uniform":
            return uniform
        counts = jnp.sum(jax.nn.one_hot(client.observed, setup.num_classes), axis=0)
        total = jnp.sum(counts)
        return jnp.where(total > 0, counts / jnp.maximum(total, 1.0), uniform)

    def moved(known: Known, batch: Batch, decay: float | Array) -> SoftMatch:
        target = target_of(batch.client)
        return softmatch_update(known.common, batch.probabilities, batch.mask, target, decay)

    def look(known: Known, batch: Batch) -> tuple[Weigh, Known]:
        target = target_of(batch.client)
        state = moved(known, batch, how.threshold_decay)
        return lambda q: softmatch_weights(state, q, target, how.deviations), Known(state)

    return Rule(
        look,
        lambda examples, places: Known(softmatch_start(setup.num_classes)),
        labelled=lambda known, batch: Known(moved(known, batch, 0.0)),
    )
