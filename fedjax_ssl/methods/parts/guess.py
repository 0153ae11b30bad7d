"""Pseudo-labels of a local step: whose they are, and which rows count.

A step's guess for an unlabelled example is made of class probabilities of the model in training,
of the one that the client received, or of both; which rows count is said by a rule of thresholds
(`fedjax_ssl.methods.parts.thresholds`). Every consistency method takes its labels from here
(`fedjax_ssl.methods.consistency`), and SAGE what the received model says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Client, RoundResult, Setup, Step, Term, View
from fedjax_ssl.federated.contract import (
    AtClient,
    AtServer,
    Broadcast,
    ClientResult,
    ForLog,
    Metrics,
    PyTree,
    RoundContext,
)
from fedjax_ssl.methods.parts.consistency import UNLABELLED
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    diagnose_pseudo_labels,
)
from fedjax_ssl.methods.parts.thresholds import Batch, Known, Rule, Thresholds, Weigh, rule_of

# (step, inputs as the network sees them, scores of the model in training) -> scores of who labels
Label = Callable[[Step, Array, Array], Array]


@checked
@dataclass(frozen=True)
class LabelsFrom:
    """Settings of whose pseudo-labels are learned.

    Attributes:
        labels_from: whose prediction for an unlabelled example is its label: of the "local" model,
            which trains; of the "global" one as the client received it, frozen and with its running
            batch statistics; or "either": the label is the global one, and counts where either
            model is confident.
    """

    labels_from: Literal["local", "global", "either"] = "local"


@checked
@dataclass(frozen=True)
class Guessing(Thresholds, LabelsFrom):
    """Settings of pseudo-labels: whose, and which count."""


def received_logits(setup: Setup, step: Step, inputs: Float[Array, "b ..."]) -> Float[Array, "b K"]:
    """Return the scores of the model that the client received: frozen, as it predicts. No gradient
    is computed of this pass.
    """
    frozen = step.start_network
    outputs, _ = setup.model.apply(frozen.params, frozen.model_state, inputs, train=False)
    return outputs.logits


def labeller(setup: Setup, how: LabelsFrom) -> Label:
    """Return the function that has the scores of whose labels are learned.

    Args:
        setup: the run.
        how: the settings.

    Raises:
        ValueError: labels of a received model, where clients receive none.
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


class Guess(NamedTuple):
    """The pseudo-labels of a batch of stream "unlabelled"."""

    logits: Float[Array, "b K"]  # of whose labels they are
    labels: Int[Array, " b"]
    counted: Bool[Array, " b"] | Float[Array, " b"]  # rows that are learned from, or a weight each
    known: Known = Known()  # what the rule has learned, after the step


class Local(NamedTuple):
    """A client's state within a round; at the server, what it starts from."""

    notes: Int[Array, " n"]  # by example: step and class of its last pseudo-label
    known: Known


class Guesses(NamedTuple):
    """Pseudo-labels of a method's steps."""

    setup: Setup
    how: Guessing
    label: Label
    rule: Rule
    labelled_too: bool  # labelled examples are among the unlabelled ones

    def __call__(
        self, step: Step, inputs: Float[Array, "b ..."], own: Float[Array, "b K"]
    ) -> Guess:
        """Label a batch.

        Args:
            step: the step.
            inputs: of stream "unlabelled" as the network sees them.
            own: scores of the model in training for them.
        """
        return self.judged(step, self.label(step, inputs, own), own)

    def judged(self, step: Step, logits: Float[Array, "b K"], own: Float[Array, "b K"]) -> Guess:
        """Decide which rows count, by the scores of whose the labels are and of the own model."""
        weigh, known = self.weigh(step, logits)
        counted = weigh(jax.nn.softmax(jax.lax.stop_gradient(logits)))
        if self.how.labels_from == "either":
            counted = jnp.maximum(counted, weigh(jax.nn.softmax(jax.lax.stop_gradient(own))))
        return Guess(logits, jnp.argmax(logits, axis=1).astype(jnp.int32), counted, known)

    def weigh(self, step: Step, logits: Float[Array, "b K"]) -> tuple[Weigh, Known]:
        """Return which rows count, and what the rule has learned of these scores."""
        rows = step.streams[UNLABELLED]
        probabilities = jax.nn.softmax(jax.lax.stop_gradient(logits))
        batch = Batch(probabilities, rows.mask, rows.position)
        return self.rule.look(step.local.known, batch)

    def term(
        self,
        name: str,
        views: tuple[View, ...],
        loss: Callable[[Step], tuple[Array, Guess, Array]],
    ) -> Term:
        """Return a term whose loss says its pseudo-labels: "pseudo_label_accuracy" and
        "pseudo_label_coverage" are logged.

        They are about the last pseudo-label that an example got in the round.

        Args:
            name: name of the term.
            views: views that the loss reads.
            loss: step -> (scalar, `Guess`, scores [b, K] that learn it).
        """
        # One number per example holds step and label, of which the largest is kept: the same in
        # any order.
        codes = self.setup.num_classes + 1

        def note(step: Step) -> tuple[Array, Local]:
            value, guess, learns = loss(step)
            batch = step.streams[UNLABELLED]
            counted = guess.counted.astype(bool)
            if self.rule.fairness is not None:
                beside = self.rule.fairness(guess.known, learns, batch.mask & counted)
                value = value + beside.astype(value.dtype)
            notes: Array = step.local.notes
            code = jnp.where(counted, guess.labels.astype(jnp.int32) + 1, 0)
            place = jnp.where(batch.mask, batch.position, notes.shape[0])
            notes = notes.at[place].max(step.number * codes + code, mode="drop")
            return value, Local(notes, guess.known)

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

    @property
    def _learns(self) -> bool:
        """Whether the rule learns anything."""
        return bool(jax.tree.leaves(self.rule.start(jnp.zeros(()), 1)))

    def _start(self, clients: Client, places: int) -> Known:
        """Return what the rule knows of the examples of a client, or of all of them together."""
        examples = clients.num_examples
        if not self.labelled_too:
            examples = examples - clients.num_labelled
        return self.rule.start(jnp.sum(examples), places)

    def _at_server(self) -> AtServer:
        def init(key: Array, params: PyTree, model_state: PyTree, clients: Client) -> Local:
            common = self._start(clients, 0).common
            return Local(jnp.zeros(clients.rows.shape[1:], jnp.int32), Known(common))

        if not self._learns:
            return AtServer(init=init)

        def update(state: Local, outcome: RoundResult) -> Local:
            common = state.known.common
            if self.rule.summed is None:
                return state._replace(known=Known(outcome.mean_or(common)))
            arrived = outcome.counts[:, None]
            total = jnp.sum(jnp.where(arrived, outcome.uploads, 0.0), axis=0)
            return state._replace(known=Known(self.rule.summed(common, total)))

        def send(state: Local, context: RoundContext) -> tuple[Broadcast, Local]:
            return Broadcast(shared=state.known.common), state

        return AtServer(init=init, prepare=send, server_update=update)

    def _at_client(self, name: str) -> AtClient:
        keeps_own = self.rule.summed is not None

        def keep(params: PyTree, model_state: PyTree, client: Client) -> PyTree:
            return self._start(client, client.observed.shape[0]).own

        def start(state: Local, params: PyTree, model_state: PyTree, kept: PyTree) -> Local:
            return Local(state.notes, Known(state.known.common, kept))

        def change(trained: ClientResult) -> PyTree:
            sent = trained.now.shared[name]
            return trained.local[name].known.common.counts - sent.counts

        def remember(trained: ClientResult) -> PyTree:
            return trained.local[name].known.own

        def mean(trained: ClientResult) -> PyTree:
            return trained.local[name].known.common

        nothing = AtClient()
        sends = self._learns
        return AtClient(
            keep=keep,
            start=start,
            collect=change if sends and keeps_own else nothing.collect,
            average=mean if sends and not keeps_own else nothing.average,
            remember=remember if self._learns else None,
        )


def guesses_of(
    setup: Setup,
    how: Guessing,
    threshold: float | Array = 0.0,
    labelled_too: bool = False,
    above: bool = False,
) -> Guesses:
    """Return the pseudo-labels of a method.

    Args:
        setup: the run.
        how: the settings.
        threshold: of the largest probability, from which on a row counts by the rule "fixed", and
            an example is learned by "flexmatch".
        labelled_too: labelled examples are among the unlabelled ones.
        above: a row counts above a fixed threshold and not at it.

    Raises:
        ValueError: settings that the federation cannot have.
    """
    rule = rule_of(setup, how, threshold, above)
    return Guesses(setup, how, labeller(setup, how), rule, labelled_too)
