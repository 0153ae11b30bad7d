"""Training on confident pseudo-labels: the shared part of SemiFL, FedMT, (FL)^2 and CBAFed.

Once per round, with the model just received, every client labels all its examples. It trains on the
confident ones; SemiFL and FedMT do so under strong augmentation, and on mixtures of these with any
of its examples.

References:
    Diao, Ding, Tarokh, SemiFL, NeurIPS 2022, arXiv 2106.01432: section 3 and algorithm 1.
    FedMT, arXiv 2210.02042: algorithm 1, lines 8 to 20.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_ssl.checks import is_zero
from fedjax_ssl.federated import (
    Client,
    RoundContext,
    RoundResult,
    Sampler,
    Schedule,
    Setup,
    Step,
    Stream,
    Term,
    View,
)
from fedjax_ssl.federated.contract import (
    AtServer,
    Broadcast,
    ForLog,
    Metrics,
    Now,
    PyTree,
    never,
)
from fedjax_ssl.federated.forward import labelling_key
from fedjax_ssl.federated.sampler import batches_per_epoch, masked_permutation
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.terms import (
    PseudoLabels,
    diagnose_pseudo_labels,
    examples_mask,
    network_outputs,
)
from fedjax_ssl.methods.parts.views_and_teachers import strong_view
from fedjax_ssl.objectives import (
    at_least_float32,
    batch_cross_entropy,
    mixup,
    mixup_cross_entropy,
    mixup_share,
)

# the term that sends pseudo-labels; other terms find its `ConfidentLabels` by this name
CONFIDENT = "confident"


class ConfidentLabels(NamedTuple):
    """Pseudo-labels of a client before it trains; with a leading axis p for the cohort."""

    labels: Int[Array, " n"]  # class label, or the network's prediction; -1 on padding
    confident: Bool[Array, " n"]  # examples to train on
    confidence: Float[Array, " n"]  # largest probability; 1 for class labels
    extra: PyTree = ()  # further fields of a method


class Choice(NamedTuple):
    """Pseudo-labels of a cohort's examples, and the mask of examples to train on."""

    labels: Int[Array, "p n"]
    confident: Bool[Array, "p n"]


Choose = Callable[[PyTree, RoundContext, Float[Array, "p n K"]], Choice]
# ^ (state of the term, round, class probabilities) -> choice. An example with probabilities that
# are not finite must count as confident: its client then trains, is dropped, and is counted as
# dropped.
Extra = Callable[[RoundContext, Float[Array, "p n K"], Bool[Array, "p n"]], PyTree]
# ^ (round, class probabilities, mask of confident examples) -> extra, leading axis p


def above(threshold: float | Array, strict: bool = False) -> Choose:
    """Return a rule that labels by the likeliest class, if its probability reaches a threshold.

    Args:
        threshold: threshold of the largest class probability.
        strict: confident only above the threshold, not at it.
    """

    def choose(
        state: PyTree, context: RoundContext, probabilities: Float[Array, "p n K"]
    ) -> Choice:
        largest = jnp.max(probabilities, axis=-1)
        unsure = (largest <= threshold) if strict else (largest < threshold)
        return Choice(jnp.argmax(probabilities, axis=-1).astype(jnp.int32), ~unsure)

    return choose


def has_confident(sent: Broadcast, context: RoundContext) -> Bool[Array, " p"]:
    """Return the mask of clients with a confident example."""
    return jnp.any(sent.own.confident, axis=1)


def confident_term(
    setup: Setup,
    choose: Choose,
    extra: Extra = lambda context, probabilities, confident: (),
    diagnose: Callable[[RoundResult], Metrics] = lambda outcome: {},
) -> Term:
    """Return a term without a loss that labels the cohort's examples before local training, and
    sends the labels to clients with a confident one.

    An example with a class label keeps it and is confident.

    Args:
        setup: the run.
        choose: rule for the pseudo-label of an example, and for training on it.
        extra: further results from the probabilities.
        diagnose: further metrics, besides the quality of the pseudo-labels.
    """

    def prepare(state: PyTree, context: RoundContext) -> tuple[Broadcast, PyTree]:
        logits = network_outputs(setup, context, context.clients, labelling_key(context.key)).logits
        probabilities = jax.nn.softmax(at_least_float32(logits))
        labelled = context.clients.observed >= 0
        real = examples_mask(context.clients)
        largest = jnp.max(probabilities, axis=-1)
        choice = choose(state, context, probabilities)
        predicted = jnp.where(labelled, context.clients.observed, choice.labels)
        confident = real & (labelled | choice.confident)
        labels = ConfidentLabels(
            jnp.where(real, predicted, -1),
            confident,
            jnp.where(labelled, jnp.ones_like(largest), largest),
            extra(context, probabilities, confident),
        )
        return Broadcast(labels), state

    def log(outcome: RoundResult, truth: Int[Array, "p n"], measured: PyTree) -> Metrics:
        sent: ConfidentLabels = outcome.sent.own
        given = jnp.where(sent.confident & jnp.isfinite(sent.confidence), sent.labels, -1)
        pseudo_labels = PseudoLabels(given, sent.confidence, sent.confidence)
        return {
            **diagnose_pseudo_labels(pseudo_labels, truth, outcome.context.clients),
            **diagnose(outcome),
        }

    server = AtServer(prepare=prepare, at_clients=True, participates=has_confident)
    return Term(CONFIDENT, (), lambda step: jnp.zeros(()), server=server, log=ForLog(diagnose=log))


def confident_losses(
    setup: Setup, fix_weight: float | Array, mix_weight: float | Array, mixup_alpha: float | Array
) -> tuple[Term, ...]:
    """Return the losses on confident examples; a loss with weight 0 is left out together with its
    forward pass.
    """
    terms = (fix_term(setup, fix_weight), mix_term(setup, mix_weight, mixup_alpha))
    return tuple(term for term in terms if not is_zero(term.weight))


def fix_term(setup: Setup, weight: float | Array, view: View | None = None) -> Term:
    """Return a term with the cross-entropy of confident examples against their pseudo-labels.

    Args:
        setup: the run.
        weight: weight of the loss.
        view: view of stream "fix"; None: strongly augmented.
    """
    view = strong_view(setup, "fix") if view is None else view

    def loss(step: Step) -> Array:
        batch = step.streams["fix"]
        targets = sent_to(step.client).labels[batch.position]
        return batch_cross_entropy(step.outputs[view.name].logits, targets, batch.mask)

    return Term("fix", (view,), loss, weight, server=AtServer(participates=never))


def labelled_view(setup: Setup) -> View:
    """Return the view of confident examples as they were labelled, the same in every step of the
    round.
    """

    def build(key: Key[Array, ""], streams: dict[str, Stream]) -> Array:
        batch = streams["fix"]
        seen = jax.vmap(lambda row_key, row: setup.augment(row_key, row[None])[0])(
            batch.row_keys, batch.inputs
        )
        return setup.normalize(seen)

    return View("fix/labelled", "fix", build)


def mix_term(setup: Setup, weight: float | Array, alpha: float | Array) -> Term:
    """Return the term on mixtures of confident examples with any examples of the client, both
    weakly augmented.

    Each batch has one share for the confident examples, drawn from Beta(alpha, alpha).
    """
    # View and term have the same name and so the same key, so view and loss draw the same share.
    name = "mix"

    def share(key: Key[Array, ""]) -> Float[Array, ""]:
        return mixup_share(named_key(key, "share"), alpha)

    def build(key: Key[Array, ""], streams: dict[str, Stream]) -> Array:
        first, second = (
            setup.normalize(setup.augment(named_key(key, part), streams[part].inputs))
            for part in ("fix", "mix")
        )
        return mixup(first, second, share(key))

    def loss(step: Step) -> Array:
        labels = sent_to(step.client).labels
        first = step.streams["fix"]
        second = step.streams["mix"]
        pair = labels[first.position], labels[second.position]
        return mixup_cross_entropy(step.outputs[name].logits, *pair, share(step.key), first.mask)

    return Term(
        name, (View(name, "fix", build),), loss, weight, server=AtServer(participates=never)
    )


def confident_epochs(
    batch_size: int,
    local_epochs: int,
    with_known: bool = False,
    whole_epochs: Bool[Array, ""] | bool = False,
    with_partners: bool = True,
    skip_single: bool = False,
) -> Sampler:
    """Return a sampler of epochs over the confident examples, with equally many partners for
    mixing.

    Streams: "fix", a fresh permutation of the confident examples per epoch, the last partial batch
    kept; "mix", for every slot of "fix" an example drawn anew, with replacement, from all of the
    client's. "known", if wanted: equally many batches from a permutation of the examples with a
    class label or a weak label.

    Args:
        batch_size: slots of each stream per local step.
        local_epochs: epochs per round.
        with_known: whether there is a stream "known".
        whole_epochs: an epoch goes through all examples of "known" even where fewer are confident;
            slots of "fix" and "mix" are then empty towards its end.
        with_partners: whether there is a stream "mix".
        skip_single: see `fedjax_ssl.federated.sampler.batches_per_epoch`.
    """

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        size = client.rows.shape[0]
        place = jnp.arange(size, dtype=jnp.int32)
        confident = sent_to(client).confident & (place < client.num_examples)
        number = jnp.sum(confident, dtype=jnp.int32)
        longest = jnp.where(whole_epochs, jnp.maximum(number, client.num_known), number)
        per_epoch = batches_per_epoch(longest, batch_size, skip_single)
        steps = local_epochs * -(-size // batch_size)
        step = jnp.arange(steps, dtype=jnp.int32)
        epoch = step // jnp.maximum(per_epoch, 1)
        slot = (step % jnp.maximum(per_epoch, 1))[:, None] * batch_size + jnp.arange(
            batch_size, dtype=jnp.int32
        )
        running = (step < local_epochs * per_epoch)[:, None]
        at = (jnp.minimum(epoch, local_epochs - 1)[:, None], jnp.minimum(slot, size - 1))

        def per_epoch_keys(name: str) -> Key[Array, " E"]:
            return jax.vmap(lambda e: jax.random.fold_in(named_key(key, name), e))(
                jnp.arange(local_epochs)
            )

        def confident_first(epoch_key: Key[Array, ""]) -> Int[Array, " n"]:
            return jnp.lexsort((jax.random.bits(epoch_key, (size,)), ~confident)).astype(jnp.int32)

        positions = {"fix": jax.vmap(confident_first)(per_epoch_keys("fix"))[at]}
        masks = {"fix": running & (slot < number)}
        if with_partners:
            draws = jax.random.bits(named_key(key, "mix"), slot.shape, jnp.uint32)
            own = jnp.maximum(client.num_examples, 1).astype(jnp.uint32)
            positions["mix"] = (draws % own).astype(jnp.int32)
            masks["mix"] = masks["fix"]
        if with_known:
            orders = jax.vmap(lambda k: masked_permutation(k, client.num_known, size))(
                per_epoch_keys("known")
            )
            positions["known"] = orders[at]
            masks["known"] = running & (slot < client.num_known)
        return Schedule(positions, masks, local_epochs * per_epoch)

    return Sampler(schedule, reads_sent=True)


def sent_to(client: Client) -> ConfidentLabels:
    """Return the message of `confident_term` to this client."""
    return client.sent[CONFIDENT]
