"""Pseudo-labels of a local step: whose they are, and which rows count.

A step's guess for an unlabelled example is made of class probabilities of the model in training,
of the one that the client received, or of both. Every consistency method takes its labels from
here (`fedjax_ssl.methods.consistency`), and SAGE what the received model says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import RoundResult, Setup, Step, Term, View
from fedjax_ssl.federated.method import AtClient, AtServer, ForLog, Metrics
from fedjax_ssl.methods.parts.consistency import UNLABELLED
from fedjax_ssl.methods.parts.terms import PseudoLabels, diagnose_pseudo_labels


@checked
@dataclass(frozen=True)
class Guessing:
    """Settings of pseudo-labels.

    Attributes:
        labels_from: whose prediction for an unlabelled example is its label: of the "local" model,
            which trains; of the "global" one as the client received it, frozen and with its running
            batch statistics; or "either": the label is the global one, and counts where either
            model is confident.
    """

    labels_from: Literal["local", "global", "either"] = "local"


class Guess(NamedTuple):
    """The pseudo-labels of a batch of stream "unlabelled"."""

    logits: Float[Array, "b K"]  # of whose labels they are
    labels: Int[Array, " b"]
    counted: Bool[Array, " b"]  # rows whose label is learned from


def received_logits(setup: Setup, step: Step, inputs: Float[Array, "b ..."]) -> Float[Array, "b K"]:
    """Return the scores of the model that the client received: frozen, as it predicts. No gradient
    is computed of this pass.
    """
    frozen = step.start_network
    outputs, _ = setup.model.apply(frozen.params, frozen.model_state, inputs, train=False)
    return outputs.logits


@dataclass(frozen=True)
class Guesses:
    """Makes the pseudo-labels of a method's steps.

    Attributes:
        setup: the run.
        how: the settings.
        threshold: of the largest probability, which counts a row from there on.
        above: a row counts above the threshold and not at it.

    Raises:
        ValueError: labels of a received model, where clients receive none.
    """

    setup: Setup
    how: Guessing
    threshold: float | Array = 0.0
    above: bool = False

    def __post_init__(self) -> None:
        if self.how.labels_from != "local" and self.setup.federated_optimizer.alone:
            raise ValueError(
                f"labels_from is {self.how.labels_from!r}, but clients that train alone receive no "
                "model; labels_from='local' has labels of their own, and another "
                "config.federated.name sends them one"
            )

    def __call__(
        self, step: Step, inputs: Float[Array, "b ..."], own: Float[Array, "b K"]
    ) -> Guess:
        """Label a batch.

        Args:
            step: gives the received network.
            inputs: as the network sees them.
            own: scores of the model in training for them.
        """
        logits = own
        if self.how.labels_from != "local":
            logits = received_logits(self.setup, step, inputs)
        return self.judged(logits, own)

    def judged(self, logits: Float[Array, "b K"], own: Float[Array, "b K"]) -> Guess:
        """Decide which rows count, by the scores of whose the labels are and of the own model."""
        counted = self._sure(logits)
        if self.how.labels_from == "either":
            counted = counted | self._sure(own)
        return Guess(logits, jnp.argmax(logits, axis=1).astype(jnp.int32), counted)

    def _sure(self, logits: Float[Array, "b K"]) -> Bool[Array, " b"]:
        largest = jnp.max(jax.nn.softmax(jax.lax.stop_gradient(logits)), axis=1)
        return largest > self.threshold if self.above else largest >= self.threshold

    def term(
        self, name: str, views: tuple[View, ...], loss: Callable[[Step], tuple[Array, Guess]]
    ) -> Term:
        """Return a term whose loss says its pseudo-labels: "pseudo_label_accuracy" and
        "pseudo_label_coverage" are logged.

        They are about the last pseudo-label that an example got in the round.

        Args:
            name: name of the term.
            views: views that the loss reads.
            loss: step -> (scalar, `Guess`).
        """
        # One number per example holds step and label, of which the largest is kept: the same in
        # any order.
        codes = self.setup.num_classes + 1

        def note(step: Step) -> tuple[Array, Int[Array, " n"]]:
            value, guess = loss(step)
            batch = step.streams[UNLABELLED]
            size = step.local.shape[0]
            code = jnp.where(guess.counted, guess.labels.astype(jnp.int32) + 1, 0)
            place = jnp.where(batch.mask, batch.position, size)
            return value, step.local.at[place].max(step.number * codes + code, mode="drop")

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
            server=AtServer(
                init=lambda key, params, model_state, clients: jnp.zeros(
                    clients.rows.shape[1:], jnp.int32
                )
            ),
            client=AtClient(start=lambda nothing, params, model_state, kept: nothing),
            log=ForLog(measure=lambda trained: trained.local[name], diagnose=diagnose),
        )
