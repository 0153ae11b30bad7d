"""A method of the study's own: cross-entropy on labelled examples, entropy on the others.

Entropy minimization (Grandvalet and Bengio, NeurIPS 2004) wants the network to be sure of
unlabelled examples. How a method is made of terms, views and samplers: docs/extending.md of
fedjax_ssl.
"""

import jax
import jax.numpy as jnp

from fedjax_ssl.federated import Recipe, Setup, Stage, Step, Term, Training, mixed_epochs
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage
from fedjax_ssl.objectives import batch_cross_entropy


def entropy_minimization(
    setup: Setup, *, warmup_rounds: int = 20, entropy_weight: float = 0.1
) -> Recipe:
    """FedAvg with cross-entropy on labelled and entropy on unlabelled examples.

    Args:
        setup: setup of the run.
        warmup_rounds: rounds on the labels alone that come first.
        entropy_weight: weight of the entropy; 0 leaves it out.
    """
    view = augmented_view(setup, "mixed")  # as many labelled as unlabelled examples

    def supervised(step: Step) -> jax.Array:
        batch = step.streams["mixed"]
        return batch_cross_entropy(
            step.outputs[view.name].logits, batch.observed, batch.mask, loss=setup.loss
        )

    def entropy(step: Step) -> jax.Array:
        batch = step.streams["mixed"]
        log_probs = jax.nn.log_softmax(step.outputs[view.name].logits)
        unsure = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=1)
        unlabelled = batch.mask & (batch.observed < 0)
        return jnp.sum(unsure, where=unlabelled) / jnp.maximum(jnp.sum(batch.mask), 1).astype(
            unsure.dtype
        )

    terms = (
        Term("supervised", (view,), supervised),
        Term("entropy", (view,), entropy, weight=entropy_weight),
    )
    sampler = mixed_epochs(
        setup.batch_size, setup.local_epochs, setup.max_labelled, setup.max_unlabelled
    )
    return after_labelled_stage(setup, Stage(Training(terms, sampler)), warmup_rounds)
