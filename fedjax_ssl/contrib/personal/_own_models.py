"""What personalizations share: whose network predicts."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from fedjax_ssl.federated import Recipe, Snapshot


def check_predicts(recipe: Recipe, name: str) -> None:
    """Raise ValueError where a client's own network would not be what predicts.

    Args:
        recipe: of a method.
        name: the personalization's, for messages.
    """
    if recipe.setup.federated_optimizer.alone:
        raise ValueError(
            f"config.personalize.name is {name!r}, but clients that train alone have models of "
            "their own already and share nothing; use another federated optimizer, or leave "
            "personalize out"
        )
    if recipe.predict is not None or not recipe.class_scores or not recipe.own_networks:
        raise ValueError(
            f"config.personalize.name is {name!r}, but predictions of method {recipe.name!r} are "
            "not the class scores of a network that clients could have of their own; use another "
            "method"
        )


def check_stages(recipe: Recipe, name: str) -> None:
    """Raise ValueError where clients are of several kinds, whose terms would need names of their
    own.
    """
    if any(stage.kinds for stage in recipe.stages):
        raise ValueError(
            f"config.personalize.name is {name!r}, but clients of method {recipe.name!r} are of "
            "several kinds; use another method"
        )


def when_trained(trained: Bool[Array, ""], own: Snapshot, common: Snapshot) -> Snapshot:
    """Return a client's own network where it has trained, and the common one otherwise."""
    return jax.tree.map(lambda mine, all: jnp.where(trained, mine, all), own, common)
