"""Training on labelled and unlabelled examples in one step: what FixMatch, UDA, MixMatch and their like have in common.

A local step takes B labelled and mu B unlabelled examples and minimizes labelled_weight L_s + unlabelled_weight L_u; a
client that has only the one or the other minimizes what it has. Where the server has labelled examples it minimizes
labelled_weight L_s on them in every round, before the clients train or after it.

References:
    Jeong et al., Federated semi-supervised learning with inter-client consistency and disjoint learning, ICLR 2021,
    arXiv 2006.12097: section 5, how these methods are federated for both of its scenarios.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import check_choices, check_numbers, check_weights, check_whole_numbers, is_zero
from fedjax_ssl.federated import Method, Sampler, ServerTraining, Setup, Stage, Step, Term, federated_method
from fedjax_ssl.federated.method import AtClient, AtServer, ForLog, Metrics, PyTree, RoundResult, ServerState, View
from fedjax_ssl.federated.paired_batches import paired_batches, passes
from fedjax_ssl.federated.sampler import labelled_epochs
from fedjax_ssl.federated.terms import PseudoLabels, augmented_view, diagnose_pseudo_labels, supervised_term
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.moving_average import averaged_network, moving_average_term

LABELLED, UNLABELLED = "labelled", "unlabelled"  # streams
CONSISTENCY = "consistency"  # the term on unlabelled examples


class Shared(NamedTuple):
    """Settings of every method of this family, as `fedjax_ssl.methods.fixmatch` explains them."""

    labelled_weight: float | Array
    unlabelled_weight: float | Array
    unlabelled_ratio: int
    labelled_too: bool
    ema_decay: float | Array
    server_turn: str
    server_batch_size: int
    server_epochs: int

    def check(self) -> None:
        """Raises ValueError for a setting outside its range."""
        check_weights(labelled_weight=self.labelled_weight, unlabelled_weight=self.unlabelled_weight)
        check_whole_numbers(unlabelled_ratio=self.unlabelled_ratio)
        check_numbers("[0, 1)", ema_decay=self.ema_decay)
        check_choices(("before", "after"), server_turn=self.server_turn)
        check_whole_numbers(server_batch_size=self.server_batch_size, server_epochs=self.server_epochs)


def consistency_method(
    setup: Setup,
    shared: Shared,
    unsupervised: Term,
    supervised: Term | None = None,
    network: Callable[[ServerState], tuple[PyTree, PyTree]] | None = None,
) -> Method:
    """A method with a supervised and an unsupervised term; one that nobody has examples for, or without weight, is out.

    Args:
        setup: the run.
        shared: settings.
        unsupervised: on stream "unlabelled", of weight 1.
        supervised: on stream "labelled", of weight 1; cross-entropy by default.
        network: state -> network that predicts, made by the unsupervised term, which then stays in any case; by default
            the global one, or its moving average.

    Raises:
        ValueError: a setting outside its range, or neither clients nor server have anything to learn from.
    """
    shared.check()
    supervised = (supervised or supervised_term(setup))._replace(weight=shared.labelled_weight)
    terms = (supervised,) if setup.max_labelled else ()
    there = setup.max_unlabelled + setup.max_labelled * shared.labelled_too
    if network is not None or (there and not is_zero(shared.unlabelled_weight)):
        terms = (*terms, unsupervised._replace(weight=shared.unlabelled_weight))
    return training_method(setup, shared, terms, supervised, network)


def training_method(
    setup: Setup,
    shared: Shared,
    terms: tuple[Term, ...],
    supervised: Term,
    network: Callable[[ServerState], tuple[PyTree, PyTree]] | None = None,
) -> Method:
    """A method of these terms at the clients, and of the supervised one at a server that has labelled examples.

    Args:
        setup: the run.
        shared: settings, checked.
        terms: of the clients, weighted; none where they have nothing to learn from.
        supervised: of the server, weighted.
        network: state -> network that predicts; by default the global one, or its moving average.

    Raises:
        ValueError: neither clients nor server have anything to learn from.
    """
    at_server: tuple[Term, ...] = (supervised._replace(name="server_supervised"),) if setup.max_server else ()
    if not terms and not at_server:
        raise ValueError(
            "there is nothing to learn from: no client has a label, the server has none, and unlabelled examples are "
            f"missing or have unlabelled_weight {shared.unlabelled_weight!r}"
        )
    if not is_zero(shared.ema_decay):
        average, network = moving_average_term(shared.ema_decay), averaged_network
        # It follows what the round ends with.
        if at_server and (shared.server_turn == "after" or not terms):
            at_server = (*at_server, average)
        else:
            terms = (*terms, average)
    server = None
    if at_server:
        epochs = labelled_epochs(shared.server_batch_size, shared.server_epochs, setup.max_server)
        server = ServerTraining(at_server, epochs, when=(shared.server_turn,))
    stage = Stage(terms, pair_sampler(setup, shared) if terms else None, server=server)
    return federated_method(setup, (stage,), network=network, needs=("labels", "server"))


def pair_sampler(setup: Setup, shared: Shared) -> Sampler:
    """Streams "labelled" (B examples) and "unlabelled" (mu B): epochs over the unlabelled examples."""
    size = shared.unlabelled_ratio * setup.batch_size
    steps = passes(setup.batch_size, size, setup.local_epochs, setup.max_labelled, setup.max_unlabelled)
    bounds = setup.max_labelled, setup.max_unlabelled
    return paired_batches(setup.batch_size, size, steps, *bounds, labelled_too=shared.labelled_too)


def strong_view(setup: Setup, stream: str = UNLABELLED) -> View:
    """The view of a stream under the run's strong augmentation; under the weak one where it has none."""
    strong = setup.strong_augment or setup.augment
    return View(f"{stream}/strong", stream, lambda key, streams: setup.normalize(strong(key, streams[stream].inputs)))


def weak_views(setup: Setup, number: int) -> tuple[View, ...]:
    """Independent weakly augmented views of stream "unlabelled"."""
    first = augmented_view(setup, UNLABELLED)
    return (first, *(first._replace(name=f"{first.name}/{place}") for place in range(1, number)))


def second_pass(setup: Setup, step: Step, params: PyTree, model_state: PyTree) -> tuple[Float[Array, "b K"], PyTree]:
    """Another weakly augmented view of stream "unlabelled" through a network in training mode, by itself.

    Args:
        setup: the run.
        step: the step.
        params: of the network.
        model_state: its running statistics.

    Returns:
        (logits, running statistics after it).
    """
    batch = step.streams[UNLABELLED]
    inputs = setup.normalize(setup.augment(named_key(step.key, "second view"), batch.inputs))
    key = named_key(step.key, "second dropout")
    outputs, state = setup.model.apply(params, model_state, inputs, train=True, key=key, mask=batch.mask)
    return outputs.logits, state


class Guess(NamedTuple):
    """The pseudo-labels of a batch of stream "unlabelled", for the log."""

    labels: Int[Array, " b"]
    counted: Bool[Array, " b"]  # rows whose label is learned from


def guessing_term(
    name: str, views: tuple[View, ...], num_classes: int, loss: Callable[[Step], tuple[Array, Guess]]
) -> Term:
    """A term whose loss says its pseudo-labels: "pseudo_label_accuracy" and "pseudo_label_coverage" are logged.

    They are about the last pseudo-label that an example got in the round.

    Args:
        name: of the term.
        views: that the loss reads.
        num_classes: K.
        loss: step -> (scalar, `Guess`).
    """
    # One number per example holds step and label, of which the largest is kept: the same in any order.
    codes = num_classes + 1

    def note(step: Step) -> tuple[Array, Int[Array, " n"]]:
        value, guess = loss(step)
        batch, size = step.streams[UNLABELLED], step.local.shape[0]
        said = step.number * codes + jnp.where(guess.counted, guess.labels.astype(jnp.int32) + 1, 0)
        place = jnp.where(batch.mask, batch.position, size)
        return value, step.local.at[place].max(said, mode="drop")

    def diagnose(outcome: RoundResult, truth: Int[Array, "p n"], notes: Any) -> Metrics:
        labels = jnp.where(outcome.counts[:, None], notes % codes - 1, -1)
        unused = jnp.zeros(labels.shape)
        metrics = diagnose_pseudo_labels(PseudoLabels(labels, unused, unused), truth, outcome.round.clients)
        return {name: metrics[name] for name in ("pseudo_label_accuracy", "pseudo_label_coverage")}

    return Term(
        name,
        views,
        note,
        server=AtServer(init=lambda key, params, model_state, everyone: jnp.zeros(everyone.rows.shape[1:], jnp.int32)),
        client=AtClient(start=lambda nothing, params, model_state, kept: nothing),
        log=ForLog(measure=lambda trained: trained.local[name], diagnose=diagnose),
    )
