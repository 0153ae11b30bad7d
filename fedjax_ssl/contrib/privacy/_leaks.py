"""Settings that no privacy mechanism covers, and that are refused."""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import Recipe, Upload, what_leaves


def refuse_alone(recipe: Recipe, begin: str) -> None:
    """Raise ConfigError if there is nothing to protect because clients send nothing.

    Args:
        recipe: recipe of the method.
        begin: of the sentence, what protects what.
    """
    if recipe.setup.federated_optimizer.alone:
        raise ConfigError(
            f"{begin}with config.federated.name='local' nothing leaves a client; leave one of them "
            "out"
        )


def beside(recipe: Recipe, covered: Collection[str]) -> list[str]:
    """Return the names of everything that leaves clients of a recipe besides these parts of
    `what_leaves`.
    """
    leaves = what_leaves(recipe)
    return [name for part, names in leaves.items() if part not in covered for name in names]


def refuse_more(upload: Upload, covered: Collection[str]) -> None:
    """Raise ConfigError if other parts of an upload have numbers. This is the second check, while a
    round is traced.
    """
    parts = upload._asdict()
    more = [
        name
        for name, part in parts.items()
        if name not in (*covered, "arrived")
        and any(jnp.size(leaf) for leaf in jax.tree.leaves(part))
    ]
    if more:
        raise ConfigError(
            f"config.privacy protects {', '.join(covered)} of an upload, but it also holds "
            f"{', '.join(more)}; use another method or federated optimizer"
        )
