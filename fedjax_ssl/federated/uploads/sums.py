"""Rules to combine a round's uploads: by their sum, or so that a few wrong ones cannot move it far.

All rules but the sum need all uploads at once, stacked in client order. The result is the same
under every placement and number of devices, and takes the memory of the whole cohort's updates. The
rules apply to the changes of parameters and batch statistics.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated.messages import Total
from fedjax_ssl.federated.optimizers import mean_scale
from fedjax_ssl.registry import Registry, contributed

PyTree = Any
# (updates with leading axis p, their weights, 0 for uploads that do not count) -> one update;
# called for each parameter group, and for the batch statistics
Combine = Callable[[PyTree, Float[Array, " p"]], PyTree]


def mean() -> None:
    """Take the mean of the uploads by their weights."""


SUMS: "Registry[Combine | None]" = Registry("sum", {"mean": mean, **contributed("sum")})


def combined(combine: Combine, parts: Total, total: Total, counts: Bool[Array, " p"]) -> Total:
    """Return the sums of a cohort with combined changes and batch statistics in place of summed
    ones.

    Args:
        combine: rule to combine uploads.
        parts: parts of the sums by client, leading axis p.
        total: sums of `parts`.
        counts: True for clients whose upload counts.

    Raises:
        ConfigError: clients send more than changes to the federated optimizer.
    """
    if jax.tree.leaves(total.reported):
        raise ConfigError(
            "config.sum is for changes of the model alone, but clients also send what the "
            "federated optimizer (config.federated.name) reports; use another one"
        )

    def of_part(values: PyTree, weights: Float[Array, " p"], whole: Float[Array, ""]) -> PyTree:
        """Return the total weight times the combined update."""
        weights = jnp.where(counts, weights, 0.0)
        scale = mean_scale(weights)
        each = jax.tree.map(lambda x: _along(scale, x) * x, values)
        return jax.tree.map(lambda x: whole.astype(x.dtype) * x, combine(each, weights))

    update = {
        group: of_part(parts.update[group], parts.weights[group], total.weights[group])
        for group in total.update
    }
    statistics = total.statistics
    if statistics.size:
        statistics = of_part(parts.statistics, parts.weight, total.weight)
    return total._replace(update=update, statistics=statistics)


def _along(by_client: Array, values: Array) -> Array:
    """Broadcast numbers by client to the shape of the arrays they belong to."""
    return by_client.reshape(-1, *[1] * (values.ndim - 1))
