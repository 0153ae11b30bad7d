"""FedPL: every example of a set gets the set's most frequent class, and later the network's own
prediction.

This baseline of FedUL treats sets with known class shares as noisily labelled data.

References:
    Lu et al., Federated learning from only unlabeled data with class-conditional-sharing clients,
    ICLR 2022, arXiv 2204.03304. Its second part resembles the loss of Diao, Ding, Tarokh, SemiFL,
    NeurIPS 2022, arXiv 2106.01432.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.data import WeakLabels
from fedjax_ssl.federated import (
    AtClient,
    Needs,
    Recipe,
    Setup,
    Stage,
    Step,
    Stream,
    Term,
)
from fedjax_ssl.federated.contract import LocalStep, StepTaken, TakeStep
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.channel_terms import known_stage
from fedjax_ssl.methods.parts.recommended import IN_SETS
from fedjax_ssl.methods.parts.setting_types import BetaParameter, CountOrZero, Share, Weight
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.objectives import batch_cross_entropy, mixup, mixup_cross_entropy, mixup_share

RECOMMENDED = {
    "fedpl": {
        "sets": {
            **IN_SETS,
            "method.warmup_rounds": 30,
            "method.mix": "logits",  # with mixed inputs, predictions collapsed to a few classes
        }
    }
}


class Confidence(NamedTuple):
    """A batch split by confidence; pair j joins the j-th confident row with the j-th other row, in
    batch order.
    """

    labels: Int[Array, " n"]  # hard labels of all rows
    confident: Bool[Array, " n"]
    first: Int[Array, " n"]  # confident row of every pair
    second: Int[Array, " n"]  # the other row
    paired: Bool[Array, " n"]  # mask of the pairs that exist


@checked
@dataclass(frozen=True)
class FedPL:
    """Settings of FedPL.

    Attributes:
        warmup_rounds: rounds with each set's most frequent class as pseudo-label; later rounds do
            not use it.
        threshold: largest class probability from which a prediction is confident.
        mix_weight: weight of the loss of mixed pairs.
        mix_alpha: parameter of the Beta distribution of the share of the confident example in a
            pair.
        mix: "inputs": mix inputs, as in the paper, with a second forward pass; "logits": mix
            logits, as in the released code.
        skip_empty: skip a batch without a pair, as in the released code.
        l1: weight of the sum of the parameters' absolute values.
        drop_last: leave out the last partial batch of an epoch.
    """

    warmup_rounds: CountOrZero = 5
    threshold: Share = 0.4
    mix_weight: Weight = 0.3
    mix_alpha: BetaParameter = 0.75
    mix: Literal["inputs", "logits"] = "inputs"
    skip_empty: bool = False
    l1: Weight = 0.0
    drop_last: bool = False


def fedpl(setup: Setup, settings: FedPL) -> Recipe:
    """FedPL: pseudo-labels from the class shares of sets, then from the network itself.

    Examples with a class label keep it throughout and count as confident.

    Args:
        setup: the run.
        settings: the method's own.

    Raises:
        ValueError: a number outside what is allowed, or an unknown way to mix.
    """
    view = augmented_view(setup, "labelled")

    def set_labels(step: Step) -> Array:
        batch = step.streams["labelled"]
        labels = majority_labels(batch, step.client.weak)
        return batch_cross_entropy(step.outputs[view.name].logits, labels, batch.mask)

    def own_predictions(step: Step) -> Array:
        batch = step.streams["labelled"]
        logits = step.outputs[view.name].logits
        split = split_by_confidence(logits, batch, settings.threshold)
        share = mixup_share(named_key(step.key, "share"), settings.mix_alpha)
        if settings.mix == "logits":
            mixed = mixup(logits[split.first], logits[split.second], share)
        else:
            inputs = step.inputs[view.name]
            # Only the first forward pass updates the running batch statistics.
            outputs, _ = setup.model.apply(
                step.params,
                step.model_state,
                mixup(inputs[split.first], inputs[split.second], share),
                train=True,
                key=named_key(step.key, "dropout"),
                mask=split.paired,
            )
            mixed = outputs.logits
        return split_loss(logits, mixed, split, share, settings.mix_weight, settings.skip_empty)

    def stage(term: Term) -> Stage:
        return known_stage(setup, (term,), settings.l1, settings.drop_last)

    def only_with_pairs(step: TakeStep, name: str) -> TakeStep:
        def take(at: LocalStep) -> StepTaken:
            taken = step(at)
            logits = taken.outputs[view.name].logits
            batch = at.inputs.streams["labelled"]
            pairs = jnp.any(split_by_confidence(logits, batch, settings.threshold).paired)
            # Without a pair, weights and momentum do not change.
            choose = partial(jnp.where, pairs)
            return taken._replace(
                weights=jax.tree.map(choose, taken.weights, at.weights),
                optimizer=jax.tree.map(choose, taken.optimizer, at.optimizer),
            )

        return take

    client = AtClient(wrap_step=only_with_pairs if settings.skip_empty else None)
    stages: tuple[Stage, ...] = (
        stage(Term("own_predictions", (view,), own_predictions, client=client)),
    )
    if settings.warmup_rounds:
        first = stage(Term("set_labels", (view,), set_labels))
        stages = (first._replace(rounds=settings.warmup_rounds), *stages)
    return Recipe(setup, stages, needs=Needs(("sets", "labels")))


def majority_labels(batch: Stream, weak: WeakLabels | None) -> Int[Array, " n"]:
    """Return the class label of every row that has one, otherwise the most frequent class of its
    set; -1 without either.

    Of equally frequent classes, the first one counts. Coarse labels count as none.
    """
    if weak is None or batch.weak is None:
        return batch.observed
    labels = jnp.argmax(weak.matrix, axis=1).astype(jnp.int32)[jnp.maximum(batch.weak, 0)]
    labels = jnp.where((batch.weak >= 0) & weak.from_sets, labels, -1)
    return jnp.where(batch.observed >= 0, batch.observed, labels)


def split_by_confidence(
    logits: Float[Array, "n K"], batch: Stream, threshold: float | Array
) -> Confidence:
    """Label a batch by its own predictions and pair confident rows with the others; all results are
    constants.

    Args:
        logits: class scores of the batch.
        batch: its rows; those with a class label keep it and are confident.
        threshold: largest class probability from which a row is confident.
    """
    probabilities = jax.lax.stop_gradient(jax.nn.softmax(logits))
    given = batch.observed >= 0
    labels = jnp.where(given, batch.observed, jnp.argmax(probabilities, axis=1).astype(jnp.int32))
    sure = given | (jnp.max(probabilities, axis=1) >= threshold)
    confident = batch.mask & sure
    other = batch.mask & ~sure
    pairs = jnp.minimum(jnp.sum(confident), jnp.sum(other))
    return Confidence(
        labels,
        confident,
        jnp.argsort(~confident, stable=True),
        jnp.argsort(~other, stable=True),
        jnp.arange(labels.shape[0]) < pairs,
    )


def split_loss(
    logits: Float[Array, "n K"],
    mixed_logits: Float[Array, "n K"],
    split: Confidence,
    share: float | Float[Array, ""],
    mix_weight: float | Array,
    skip_empty: bool = False,
) -> Float[Array, ""]:
    """Return the cross-entropy of the confident rows plus `mix_weight` times that of the mixed
    pairs (FedUL, section 5).

    Args:
        logits: logits of the batch.
        mixed_logits: logits of the pairs.
        split: split of the batch.
        share: share of the confident row in a pair.
        mix_weight: weight of the second part.
        skip_empty: without a pair, the loss is 0; False: only its second part is left out.
    """
    fixed = batch_cross_entropy(logits, split.labels, split.confident)
    labels = split.labels[split.first], split.labels[split.second]
    loss = fixed + mix_weight * mixup_cross_entropy(mixed_logits, *labels, share, split.paired)
    return jnp.where(jnp.any(split.paired), loss, jnp.zeros_like(loss)) if skip_empty else loss
