"""Terms for labels seen through a channel: class labels, coarse labels and unlabelled sets in one
loss.

A client observes the class of an example through its own matrix: the identity for labels, a
correspondence for coarse labels (FedMT), class shares of sets for memberships (FedUL). Clients of
all kinds train in the same step, because only the matrix differs.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedjax_ssl import objectives
from fedjax_ssl.checks import check_choices, check_numbers, is_zero
from fedjax_ssl.data import FederatedData, WeakLabels
from fedjax_ssl.federated import (
    AtServer,
    Client,
    Setup,
    Stage,
    Step,
    Stream,
    Term,
    Training,
    View,
    known_epochs,
    never,
)
from fedjax_ssl.federated.contract import Broadcast, RoundContext
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.objectives import Channel, RowLoss, batch_mean, cross_entropy, l1_norm

KNOWN = ("labels", "coarse", "sets")  # kinds of labels that have a channel
SURROGATE_LOSSES = {
    "nll": objectives.channel_cross_entropy,
    "ce_on_probs": objectives.channel_cross_entropy_on_probs,
}


def channel_of(weak: WeakLabels, use_test_prior: bool = True) -> Channel:
    """Return the channel of one client's weak labels; vmap it over clients.

    Args:
        weak: weak labels of one client.
        use_test_prior: False: do not divide by the test prior, as in FedUL's released code.
    """
    prior = weak.prior if use_test_prior else jnp.ones_like(weak.prior)
    sets = objectives.set_channel(weak.matrix, weak.share, prior)
    coarse = objectives.correspondence_channel(weak.matrix)
    return jax.tree.map(partial(jnp.where, weak.from_sets), sets, coarse)


def own_channel(use_test_prior: bool = True) -> Callable[[Step], Channel | None]:
    """Return the channel of a client, as the federation states it."""

    def channel(step: Step) -> Channel | None:
        return None if step.client.weak is None else channel_of(step.client.weak, use_test_prior)

    return channel


def channel_losses(
    logits: Float[Array, "b K"],
    batch: Stream,
    channel: Channel | None,
    surrogate_loss: str = "nll",
    loss: RowLoss = cross_entropy,
) -> Float[Array, " b"]:
    """Return the loss of every row: cross-entropy of its class label, or of its weak label through
    the channel; 0 without either.

    Args:
        logits: class scores.
        batch: the rows.
        channel: channel of the client; None if no client has weak labels.
        surrogate_loss: "nll", or "ce_on_probs" as in the released code of FedUL, which is not a
            proper loss.
        loss: loss of the class labels, such as `Setup.loss`.
    """
    losses = loss(logits, batch.observed)
    if channel is None or batch.weak is None:
        return losses
    weak = SURROGATE_LOSSES[surrogate_loss](logits, batch.weak, channel)
    return jnp.where(batch.observed >= 0, losses, weak.astype(losses.dtype))


def channel_term(
    setup: Setup,
    stream: str = "labelled",
    channel: Callable[[Step], Channel | None] | None = None,
    surrogate_loss: str = "nll",
    view: View | None = None,
    kinds: tuple[str, ...] = KNOWN,
) -> Term:
    """Return the cross-entropy of the observations through each client's channel, averaged over the
    batch.

    Args:
        setup: the run.
        stream: stream with the rows; a row without any label counts in the batch size and has no
            loss.
        channel: matrix through which the client observes classes; by default the federation's.
        surrogate_loss: see `channel_losses`.
        view: view of the rows, by default weakly augmented.
        kinds: kinds of labels that count, see `FederatedData.kinds`.

    Raises:
        ValueError: for an unknown loss.
    """
    check_choices(SURROGATE_LOSSES, surrogate_loss=surrogate_loss)
    seen = view or augmented_view(setup, stream)
    channel = channel or own_channel()

    def loss(step: Step) -> Array:
        batch = step.streams[stream]
        losses = channel_losses(
            step.outputs[seen.name].logits, batch, channel(step), surrogate_loss, setup.loss
        )
        if kinds == KNOWN:
            return batch_mean(losses, batch.mask)
        counted = jnp.where(batch.observed >= 0, "labels" in kinds, knows(step.client))
        return batch_mean(losses, batch.mask, counted)

    def knows(clients: Client) -> Bool[Array, "*p"] | bool:
        """Return the mask of the clients whose weak labels are of these kinds."""
        if clients.weak is None:
            return False
        return jnp.where(clients.weak.from_sets, "sets" in kinds, "coarse" in kinds)

    def participates(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
        clients = context.clients
        takes_part = context.valid & learns(clients)
        if kinds == KNOWN:
            return takes_part
        labelled = clients.num_labelled > 0
        return takes_part & ((labelled & ("labels" in kinds)) | (~labelled & knows(clients)))

    return Term("channel", (seen,), loss, server=AtServer(participates=participates))


def learns(clients: Client) -> Bool[Array, " p"]:
    """Return the mask of the clients whose observations say something about the class.

    With one set alone, or with sets of equal shares, the loss is constant. Such a client would only
    add noise (FedUL section 13), so it does not train. The same holds for a single coarse label.
    """
    has_labels = clients.num_labelled > 0
    weak = clients.weak
    if weak is None:
        return has_labels
    # The loss is constant if all classes give the same observations, up to a factor: a matrix of
    # rank 1.
    present = (weak.share > 0)[:, :, None] & (weak.matrix > 0)
    rows = jnp.where(present, weak.matrix, 0.0)
    rows = rows / jnp.maximum(rows.sum(axis=2, keepdims=True), 1e-12)
    real = jnp.any(present, axis=2)
    first = jnp.take_along_axis(rows, jnp.argmax(real, axis=1)[:, None, None], axis=1)
    different = real & jnp.any(jnp.abs(rows - first) > 1e-6, axis=2)
    # the correspondence is still to be estimated
    unknown = ~weak.from_sets & ~jnp.any(real, axis=1)
    return has_labels | ((weak.num_examples > 0) & (jnp.any(different, axis=1) | unknown))


def check_one_space(federation: FederatedData) -> list[str]:
    """Raise ValueError for clients with different spaces of coarse labels, if one head or count is
    for all clients; a `Method.check`.
    """
    weak = federation.weak
    matrices = np.zeros(0) if weak is None else np.asarray(weak.matrix)[np.asarray(weak.has_coarse)]
    if matrices.size and (matrices != matrices[0]).any():
        raise ValueError(
            "clients have coarse labels of different spaces (correspondence), and with these "
            "settings the method has one head or one estimate for all of them; name one space, "
            "or use fedmt or fedrep with their defaults"
        )
    return []


def with_l1(terms: tuple[Term, ...], weight: float | Array) -> tuple[Term, ...]:
    """Return the terms plus one for weight * sum of |w| over all parameters (FedUL, section 3);
    nothing is added for a weight of 0.

    Raises:
        ValueError: if the weight is negative.
    """
    check_numbers(l1=weight)
    if is_zero(weight):
        return terms
    return (
        *terms,
        Term(
            "l1", (), lambda step: l1_norm(step.params), weight, server=AtServer(participates=never)
        ),
    )


def known_stage(
    setup: Setup, terms: tuple[Term, ...], l1: float | Array = 0.0, drop_last: bool = False
) -> Stage:
    """Return the stage of epochs over examples with a class label or a weak label, by the clients
    that have some.

    Raises:
        ValueError: if the weight of the L1 norm is negative.
    """
    sampler = known_epochs(setup.batch_size, setup.local_epochs, setup.max_known, drop_last)
    return Stage(
        Training(with_l1(terms, l1), sampler),
        labelled_quota="only",
        count_labels=lambda clients: clients.num_known,
    )


def check_channels(data: FederatedData) -> list[str]:
    """Check a federation's weak labels on the host, before training.

    Returns:
        Notes, a sentence each: clients whose sets or coarse labels leave classes undetermined, and
        whether the federation as a whole does (FedUL, section 2: identifiability). A correspondence
        that is still to be estimated gets no note.

    Raises:
        ValueError: class shares, a correspondence, observations or a test prior are impossible, or
            no client's observations say anything about the class.
    """
    weak = data.weak
    if weak is None:
        return []
    from_sets = np.asarray(weak.from_sets)
    labelled = np.asarray(data.num_labelled) > 0
    known_count = np.asarray(weak.num_examples)
    count = np.asarray(weak.num_observations)
    known = known_count > 0
    labels = np.asarray(weak.labels)
    matrix = np.asarray(weak.matrix, np.float64)
    share = np.asarray(weak.share, np.float64)
    if np.any(known & from_sets):
        objectives.check_test_prior(np.asarray(weak.prior), data.num_classes)
    with_sets = known & from_sets
    if np.any(with_sets) and np.all(known_count[with_sets] < count[with_sets]):
        raise ValueError(
            f"every client with sets has at least {count[with_sets].min()} of them, but at most "
            f"{known_count[with_sets].max()} examples to put into them; ask for fewer sets"
        )
    # The correspondence is still unknown.
    estimated = known & ~from_sets & ~matrix.any(axis=(1, 2))
    for client in np.flatnonzero(known):
        mine = matrix[client, : count[client]]
        seen = objectives.check_observed(labels[client], count[client], client=int(client))
        if from_sets[client]:
            objectives.check_set_priors(mine, share[client, : count[client]], client=int(client))
        elif not estimated[client]:
            objectives.check_correspondence(mine, seen, client=int(client))
    # If no client has sets, a class with test prior 0 does no harm.
    prior = np.where(np.asarray(weak.prior) > 0, np.asarray(weak.prior, np.float64), 1.0)
    as_sets = share[:, :, None] * matrix / prior
    weights = np.where(from_sets[:, None, None], as_sets, matrix)
    sees_classes = np.eye(data.num_classes)
    matrices = [
        np.concatenate(
            [
                sees_classes[: data.num_classes * labelled[c]],
                weights[c, : count[c] * (known & ~estimated)[c]],
            ]
        )
        for c in range(data.num_clients)
    ]
    matrices += [sees_classes] * bool(int(data.num_server))
    # Coarse labels always leave classes undetermined: no note for them.
    notes = objectives.channel_warnings(matrices, quiet=np.flatnonzero(known & ~from_sets).tolist())
    if estimated.any():
        return notes
    if all(objectives.is_constant(one) or not one.any() for one in matrices):
        raise ValueError(
            "no client's observations tell anything about the class: each has one set, or sets "
            "with equal class shares; give at least one client a second set with other shares, "
            "or class labels"
        )
    directions = objectives.open_directions(matrices)
    return notes + objectives.open_note(directions, data.num_classes)
