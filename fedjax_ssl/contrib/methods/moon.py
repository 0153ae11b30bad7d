"""MOON: features of a client's network are pulled to those of the received model, and pushed from
those of its own last one.

It is a term for compositions, because it needs features, which a federated optimizer does not see.
The paper has two more layers between the network and its classifier; here the features are the
classifier's inputs.

References:
    Li, He, Song, Model-contrastive federated learning, CVPR 2021. In a client's first round there
    is no model to be drawn from; its code takes a random one from round 1 on, and here the loss is
    0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.federated import AtClient, Client, ClientResult, PyTree, Setup, Step, Term
from fedjax_ssl.methods.parts.setting_types import Positive
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.models import unit_length


class _Previous(NamedTuple):
    """A client's network after its last round."""

    params: PyTree
    model_state: PyTree
    there: Bool[Array, ""]  # False before its first round


def moon(setup: Setup, *, temperature: Positive = 0.5) -> Term:
    """Contrast with the received and the client's last network (MOON).

    Features of labelled examples are drawn to the received network's; the weight is mu.

    Args:
        setup: the run.
        temperature: kappa, divides the cosines.
    """
    view = augmented_view(setup, "labelled")

    def features(params: PyTree, model_state: PyTree, inputs: Array) -> Array:
        outputs, _ = setup.model.apply(params, model_state, inputs, train=False)
        return jax.lax.stop_gradient(outputs.features)

    def keep(network: PyTree, model_state: PyTree, client: Client) -> _Previous:
        return _Previous(network, model_state, jnp.zeros((), bool))

    def loss(step: Step) -> Array:
        previous: _Previous = step.local
        received = step.start_network
        inputs = step.inputs[view.name]
        contrast = model_contrast(
            step.outputs[view.name].features,
            features(received.params, received.model_state, inputs),
            features(previous.params, previous.model_state, inputs),
            temperature,
        )
        real = step.streams["labelled"].mask
        mean = jnp.sum(jnp.where(real, contrast, 0.0)) / jnp.maximum(jnp.sum(real), 1).astype(
            contrast.dtype
        )
        return jnp.where(previous.there, mean, 0.0)

    def remember(trained: ClientResult) -> _Previous:
        return _Previous(trained.params, trained.model_state, jnp.ones((), bool))

    client = AtClient(
        keep=keep, start=lambda state, params, model_state, kept: kept, remember=remember
    )
    return Term("moon", (view,), loss, client=client)


def model_contrast(
    features: Float[Array, "n d"],
    received: Float[Array, "n d"],
    previous: Float[Array, "n d"],
    temperature: float | Array = 0.5,
) -> Float[Array, " n"]:
    """Return -log of the received model's share of exp(cosine / temperature), of two models.

    Args:
        features: features of the network in training.
        received: features of the received model.
        previous: features of the client's own last model.
        temperature: kappa.
    """
    own = unit_length(features)
    toward = jnp.sum(own * unit_length(received), axis=1)
    away = jnp.sum(own * unit_length(previous), axis=1)
    return jax.nn.softplus((away - toward) / temperature)
