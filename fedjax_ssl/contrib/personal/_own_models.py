"""Prediction by personalized networks: the part that all personalizations share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedjax_ssl.federated import PyTree, Recipe


def check_predicts(recipe: Recipe, name: str) -> None:
    """Raise ValueError if the method predicts with anything but a client's own network.

    Args:
        recipe: recipe of a method.
        name: name of the personalization, for messages.
    """
    if recipe.setup.federated_optimizer.alone:
        raise ValueError(
            f"config.personalize.name is {name!r}, but clients that train alone have models of "
            "their own already and share nothing; use another federated optimizer, or leave "
            "personalize out"
        )
    if recipe.predict is not None or not recipe.class_scores:
        raise ValueError(
            f"config.personalize.name is {name!r}, but predictions of method {recipe.name!r} are "
            "not the class scores of a network that clients could have of their own; use another "
            "method"
        )


def when_trained(trained: Bool[Array, ""], own: PyTree, common: PyTree) -> PyTree:
    """Return a client's own network if it has trained, otherwise the global one."""
    return jax.tree.map(lambda mine, all: jnp.where(trained, mine, all), own, common)
