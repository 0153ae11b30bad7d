"""Pseudo-labels of a local step: the model that gives them, and the rows that count.

The pseudo-label of an unlabelled example in a step comes from class probabilities of the model in
training, of the model that the client received, or of both. A fixed threshold decides which rows
count, or FreeMatch's, whose averages are sent to clients, move with their steps, and come back as a
weighted mean. All consistency methods (`fedjax_ssl.methods.consistency`) and SAGE use this file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Client, RoundResult, Setup, Step, Term, View
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Broadcast,
    ForLog,
    Metrics,
    PyTree,
    RoundContext,
)
from fedjax_ssl.methods.parts.setting_types import Decay
from fedjax_ssl.methods.parts.terms import (
    UNLABELLED,
    PseudoLabels,
    diagnose_pseudo_labels,
)
from fedjax_ssl.objectives import (
    FreeMatch,
    class_fairness,
    freematch_start,
    freematch_thresholds,
    freematch_update,
)
from fedjax_ssl.registry import UsedWith

# weight of FreeMatch's fairness loss, relative to the loss of unlabelled examples
FAIRNESS_WEIGHT = 0.001

# (step, inputs as the network sees them, scores of the model in training) -> scores of the model
# that labels
Label = Callable[[Step, Array, Array], Array]


@checked
@dataclass(frozen=True)
class LabelsFrom:
    """Settings: the model that gives the pseudo-labels.

    Attributes:
        labels_from: model whose prediction labels an unlabelled example: "local", the model in
            training; "global", the model as the client received it, frozen and with its running
            batch statistics; or "either": the global model labels, and the label counts if either
            model is confident.
    """

    labels_from: Literal["local", "global", "either"] = "local"


@checked
@dataclass(frozen=True)
class Guessing(LabelsFrom):
    """Settings of pseudo-labels: the model that gives them, and the rule for those that count.

    Attributes:
        threshold_rule: "fixed": the method's threshold; "freematch": the mean confidence, lower for
            classes that are predicted less often.
        threshold_decay: decay of FreeMatch's averages per local step.
    """

    threshold_rule: Literal["fixed", "freematch"] = "fixed"
    threshold_decay: Annotated[Decay, UsedWith("threshold_rule=freematch")] = 0.999


def received_logits(setup: Setup, step: Step, inputs: Float[Array, "b ..."]) -> Float[Array, "b K"]:
    """Return the scores of the received model, frozen and in evaluation mode. No gradient flows
    through this pass.
    """
    frozen = step.start_network
    outputs, _ = setup.model.apply(frozen.params, frozen.model_state, inputs, train=False)
    return outputs.logits


def labeller(setup: Setup, how: LabelsFrom) -> Label:
    """Return the function that computes the scores from which pseudo-labels are taken.

    Args:
        setup: the run.
        how: the settings.

    Raises:
        ValueError: the received model should label, but clients receive none.
    """
    if how.labels_from == "local":
        return lambda step, inputs, own: own
    if setup.federated_optimizer.alone:
        raise ValueError(
            f"labels_from is {how.labels_from!r}, but clients that train alone receive no model; "
            "labels_from='local' has labels of their own, and another config.federated.name "
            "sends them one"
        )
    return lambda step, inputs, own: received_logits(setup, step, inputs)


# probabilities [b, K] -> mask of rows that count [b]
Counts = Callable[[Array], Array]


class Guess(NamedTuple):
    """The pseudo-labels of a batch of stream "unlabelled"."""

    logits: Float[Array, "b K"]  # logits of the model that labels
    labels: Int[Array, " b"]
    counted: Bool[Array, " b"]  # rows that count in the loss
    averages: FreeMatch | tuple[()] = ()  # FreeMatch's averages after the step


class Local(NamedTuple):
    """A client's state within a round; at the server, the state that clients start from."""

    notes: Int[Array, " n"]  # step and class of each example's last pseudo-label, in one number
    averages: FreeMatch | tuple[()] = ()


class Guesses(NamedTuple):
    """Pseudo-labels of a method's steps."""

    setup: Setup
    how: Guessing
    label: Label
    threshold: float | Array
    # ^ smallest confidence of a row that counts, if the rule is a fixed threshold
    above: bool  # a row counts above a fixed threshold, not at it

    def __call__(
        self, step: Step, inputs: Float[Array, "b ..."], own: Float[Array, "b K"]
    ) -> Guess:
        """Label a batch.

        Args:
            step: the step.
            inputs: inputs of stream "unlabelled" as the network sees them.
            own: scores of the model in training for these inputs.
        """
        return self.judged(step, self.label(step, inputs, own), own)

    def judged(self, step: Step, logits: Float[Array, "b K"], own: Float[Array, "b K"]) -> Guess:
        """Decide which rows count, from the scores that give the labels and the model's own
        scores.
        """
        counts, averages = self._rule(step, logits)
        counted = counts(jax.nn.softmax(jax.lax.stop_gradient(logits)))
        if self.how.labels_from == "either":
            counted = counted | counts(jax.nn.softmax(jax.lax.stop_gradient(own)))
        return Guess(logits, jnp.argmax(logits, axis=1).astype(jnp.int32), counted, averages)

    def _rule(self, step: Step, logits: Float[Array, "b K"]) -> tuple[Counts, Any]:
        """Return the mask of rows that count, and FreeMatch's averages after these scores."""
        if not self._adapts:
            return at_threshold(self.threshold, self.above), ()
        probabilities = jax.nn.softmax(jax.lax.stop_gradient(logits))
        mask = step.streams[UNLABELLED].mask
        decay = self.how.threshold_decay
        averages = freematch_update(step.local.averages, probabilities, mask, decay)
        thresholds = freematch_thresholds(averages)
        return lambda q: jnp.max(q, axis=1) >= thresholds[jnp.argmax(q, axis=1)], averages

    @property
    def _adapts(self) -> bool:
        return self.how.threshold_rule == "freematch"

    def term(
        self,
        name: str,
        views: tuple[View, ...],
        loss: Callable[[Step], tuple[Array, Guess, Array]],
    ) -> Term:
        """Return a term whose loss also returns its pseudo-labels; "pseudo_label_accuracy" and
        "pseudo_label_coverage" are logged.

        They count the last pseudo-label of each example in the round.

        Args:
            name: name of the term.
            views: views that the loss reads.
            loss: step -> (scalar, `Guess`, scores [b, K] that are trained towards it).
        """
        # Step and label are one number per example, of which the maximum is kept: independent of
        # the order.
        codes = self.setup.num_classes + 1

        def note(step: Step) -> tuple[Array, Local]:
            value, guess, learns = loss(step)
            batch = step.streams[UNLABELLED]
            if self._adapts:
                averages: Any = guess.averages
                fairness = class_fairness(learns, batch.mask & guess.counted, averages)
                value = value + (FAIRNESS_WEIGHT * fairness).astype(value.dtype)
            notes: Array = step.local.notes
            code = jnp.where(guess.counted, guess.labels.astype(jnp.int32) + 1, 0)
            place = jnp.where(batch.mask, batch.position, notes.shape[0])
            notes = notes.at[place].max(step.number * codes + code, mode="drop")
            return value, Local(notes, guess.averages)

        def diagnose(outcome: RoundResult, truth: Int[Array, "p n"], notes: Any) -> Metrics:
            labels = jnp.where(outcome.counts[:, None], notes % codes - 1, -1)
            unused = jnp.zeros(labels.shape)
            metrics = diagnose_pseudo_labels(
                PseudoLabels(labels, unused, unused), truth, outcome.context.clients
            )
            logged = ("pseudo_label_accuracy", "pseudo_label_coverage")
            return {name: metrics[name] for name in logged}

        return Term(
            name,
            views,
            note,
            server=self._at_server(),
            client=self._at_client(name),
            log=ForLog(measure=lambda trained: trained.local[name].notes, diagnose=diagnose),
        )

    def _at_server(self) -> AtServer:
        averages = freematch_start(self.setup.num_classes) if self._adapts else ()

        def init(key: Array, params: PyTree, model_state: PyTree, clients: Client) -> Local:
            return Local(jnp.zeros(clients.rows.shape[1:], jnp.int32), averages)

        def update(state: Local, outcome: RoundResult) -> Local:
            return state._replace(averages=outcome.mean_or(state.averages))

        def send(state: Local, context: RoundContext) -> tuple[Broadcast, Local]:
            return Broadcast(shared=state.averages), state

        if not self._adapts:
            return AtServer(init=init)
        return AtServer(init=init, prepare=send, server_update=update)

    def _at_client(self, name: str) -> AtClient:
        client = AtClient(start=lambda state, params, model_state, kept: state)
        if not self._adapts:
            return client
        return client._replace(average=lambda trained: trained.local[name].averages)


def at_threshold(threshold: float | Array, above: bool = False) -> Counts:
    """Return the mask of rows whose largest probability reaches a threshold, or is above it."""

    def counts(probabilities: Float[Array, "b K"]) -> Bool[Array, " b"]:
        largest = jnp.max(probabilities, axis=1)
        return largest > threshold if above else largest >= threshold

    return counts


def guesses_of(
    setup: Setup, how: Guessing, threshold: float | Array = 0.0, above: bool = False
) -> Guesses:
    """Return the pseudo-labels of a method.

    Args:
        setup: the run.
        how: the settings.
        threshold: smallest confidence of a row that counts under the rule "fixed".
        above: a row counts above a fixed threshold, not at it.

    Raises:
        ValueError: settings that the federation cannot have.
    """
    return Guesses(setup, how, labeller(setup, how), threshold, above)
