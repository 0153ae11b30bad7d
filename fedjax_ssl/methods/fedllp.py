"""FedLLP: learning from label proportions at every client, alone and with virtual adversarial
training.

These are the baselines of FedUL that compare the mean prediction of a whole set with the set's
known class shares.

References:
    Lu et al., Federated learning from only unlabeled data with class-conditional-sharing clients,
    ICLR 2022, arXiv 2204.03304; Ardehaly and Culotta, Co-training for demographic classification
    using deep learning from label proportions, ICDM workshops 2017; Tsai and Lin, Learning from
    label proportions with consistency regularization, ACML 2020, arXiv 1910.13188 (with virtual
    adversarial training).
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from fedjax_ssl.checks import checked
from fedjax_ssl.data import WeakLabels
from fedjax_ssl.federated import Needs, Recipe, Setup, Stage, Term, Training
from fedjax_ssl.federated.contract import (
    AtServer,
    Client,
    Now,
    Sampler,
    Schedule,
    Step,
)
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.channel_terms import with_l1
from fedjax_ssl.methods.parts.recommended import IN_SETS
from fedjax_ssl.methods.parts.setting_types import Count, CountOrZero, Positive, Weight
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.methods.parts.views_and_teachers import adversarial_pass
from fedjax_ssl.objectives import consistency_ramp, divergence_from, proportion_loss

RECOMMENDED = {"fedllp": {"sets": IN_SETS}, "fedllp_vat": {"sets": IN_SETS}}


@checked
def fedllp(setup: Setup, *, l1: Weight = 0.0, set_size: CountOrZero = 0) -> Recipe:
    """FedLLP: the cross-entropy between a set's class shares and its mean prediction, one set per
    local step.

    Args:
        setup: the run; its batch size is not used.
        l1: weight of the sum of the parameters' absolute values.
        set_size: most examples of a set in one step; a larger set contributes a new random part
            each time. 0: all examples. Memory and time of a step grow with this bound; choose it a
            little above the largest set.

    Raises:
        ValueError: a negative weight, a size below 0, or a federation without sets.
    """
    stage = _sets_stage(setup, (proportion_term(setup),), l1, set_size)
    return Recipe(setup, (stage,), needs=Needs(("sets",)))


@checked
@dataclass(frozen=True)
class FedLLPVAT:
    """Settings of FedLLP with virtual adversarial training.

    Attributes:
        vat_weight: largest weight of this loss.
        vat_radius: length of the perturbation of an input, as the network sees it.
        ramp_epochs: local epochs in which the weight rises.
        rampup: "run": over all local steps of the run; "per_epoch": from the start in every local
            epoch, as in the released code, where the weight never gets above about a hundredth.
        l1: as in `fedllp`.
        set_size: as in `fedllp`.
    """

    vat_weight: Weight = 5e-4
    vat_radius: Positive = 0.01
    ramp_epochs: Count = 20
    rampup: Literal["run", "per_epoch"] = "run"
    l1: Weight = 0.0
    set_size: CountOrZero = 0


def fedllp_vat(setup: Setup, settings: FedLLPVAT) -> Recipe:
    """FedLLP with virtual adversarial training: predictions should not change within a small ball.

    Args:
        setup: the run; its batch size is not used.
        settings: the method's own.

    Raises:
        ValueError: a number outside what is allowed, an unknown ramp-up, or a federation without
            sets.
    """
    view = augmented_view(setup, "set")

    def consistency(step: Step) -> Array:
        mask = step.streams["set"].mask
        before, after = adversarial_pass(
            setup, step, step.inputs[view.name], mask, settings.vat_radius
        )
        loss = divergence_from(before, after, mask)
        epochs = local_epochs_done(step, setup.local_epochs, settings.rampup)
        weight = consistency_ramp(epochs, settings.vat_weight, settings.ramp_epochs)
        return weight.astype(loss.dtype) * loss

    terms = (proportion_term(setup), Term("virtual_adversarial", (view,), consistency))
    stage = _sets_stage(setup, terms, settings.l1, settings.set_size)
    return Recipe(setup, (stage,), needs=Needs(("sets",)))


def proportion_term(setup: Setup) -> Term:
    """Return the loss of the class proportions of the single set in a step."""
    view = augmented_view(setup, "set")

    def loss(step: Step) -> Array:
        batch = step.streams["set"]
        weak = _sets_of(step.client)
        assert batch.weak is not None
        shares = weak.matrix[jnp.maximum(jnp.max(batch.weak), 0)]
        return proportion_loss(step.outputs[view.name].logits, shares, batch.mask)

    participates = AtServer(
        participates=lambda sent, context: context.valid & (_count_members(context.clients) > 0)
    )
    return Term("proportions", (view,), loss, server=participates)


def set_per_step(local_epochs: int, set_size: int = 0) -> Sampler:
    """Return a sampler of stream "set": one whole set of the client per local step, all sets in a
    fresh order in every epoch.

    Sets without examples take no step. A client with coarse labels takes no step.

    Args:
        local_epochs: passes over the sets per round.
        set_size: width of the stream; a larger set contributes a random part, drawn anew in every
            epoch. 0: all examples.
    """

    def schedule(key: Key[Array, ""], client: Client, now: Now) -> Schedule:
        weak = _sets_of(client)
        width = weak.labels.shape[0]
        num_sets = weak.matrix.shape[0]
        size = min(set_size or width, width)
        labels = jnp.where(_count_members(client) > 0, weak.labels, -1)
        owner = jnp.where(labels >= 0, labels, num_sets)
        counts = jnp.zeros(num_sets + 1, jnp.int32).at[owner].add(1)[:num_sets]
        starts = jnp.cumsum(counts, dtype=jnp.int32) - counts
        number = jnp.sum(counts > 0, dtype=jnp.int32)
        column = jnp.arange(size, dtype=jnp.int32)

        def one_epoch(epoch: Int[Array, ""]) -> tuple[Array, Array]:
            mine = jax.random.fold_in(key, epoch)
            # Random bits are drawn by position, so padding at the end changes none of them.
            sets = jnp.lexsort((jax.random.bits(named_key(mine, "sets"), (num_sets,)), counts == 0))
            members = jnp.lexsort(
                (jax.random.bits(named_key(mine, "members"), (width,)), owner)
            ).astype(jnp.int32)
            place = jnp.minimum(starts[sets][:, None] + column, width - 1)
            return members[place], column < counts[sets][:, None]

        positions, masks = jax.vmap(one_epoch)(jnp.arange(local_epochs, dtype=jnp.int32))
        epoch, within = jnp.divmod(
            jnp.arange(local_epochs * num_sets, dtype=jnp.int32), jnp.maximum(number, 1)
        )
        epoch = jnp.minimum(epoch, local_epochs - 1)  # steps beyond the last epoch are never taken
        return Schedule(
            {"set": positions[epoch, within]}, {"set": masks[epoch, within]}, local_epochs * number
        )

    return Sampler(schedule)


def local_epochs_done(step: Step, local_epochs: int, rampup: str) -> Float[Array, ""]:
    """Count the local epochs before this step, in the run or since the start of the epoch, as if
    the client trained in every round.

    Args:
        step: step of a client with sets.
        local_epochs: epochs per round.
        rampup: "run" or "per_epoch".
    """
    weak = _sets_of(step.client)
    dtype = jnp.result_type(float)
    per_epoch = jnp.maximum(jnp.sum(weak.share > 0, dtype=jnp.int32), 1)
    if rampup == "per_epoch":
        return (step.number % per_epoch).astype(dtype) / per_epoch.astype(dtype)
    before = (step.now.number * local_epochs).astype(dtype)
    return before + step.number.astype(dtype) / per_epoch.astype(dtype)


def _sets_stage(setup: Setup, terms: tuple[Term, ...], l1: float | Array, set_size: int) -> Stage:
    return Stage(
        Training(with_l1(terms, l1), set_per_step(setup.local_epochs, set_size)),
        labelled_quota="only",
        count_labels=_count_members,
    )


def _sets_of(client: Client) -> WeakLabels:
    if client.weak is None:
        raise ValueError(
            "fedllp learns from sets with known class shares, and this federation has none; use "
            "supervision 'sets'"
        )
    return client.weak


def _count_members(clients: Client) -> Int[Array, "*p"]:
    """Count the examples in sets, for one client or for several."""
    weak = _sets_of(clients)
    return jnp.where(weak.from_sets, weak.num_examples, 0)
