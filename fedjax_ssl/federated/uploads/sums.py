"""How a round's uploads become one: by their sum, or so that a few false ones cannot move it far.

The other ways look at all uploads at once, which are stacked in client order: the result is the
same under every placement and number of devices, and takes the memory of the whole cohort's
updates. They are of the parameters' changes and the batch statistics.
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
# (updates with leading axis p, their weights, 0 for those that do not count) -> one update; called
# for each parameter group by itself, and for the batch statistics
Combine = Callable[[PyTree, Float[Array, " p"]], PyTree]


def mean() -> None:
    """Take the mean of the uploads by their weights."""


SUMS: "Registry[Combine | None]" = Registry("sum", {"mean": mean, **contributed("sum")})


def combined(combine: Combine, parts: Total, total: Total, counts: Bool[Array, " p"]) -> Total:
    """Return the sums of a cohort with other changes and batch statistics in them.

    Args:
        combine: how uploads become one.
        parts: of the sums, by client, leading axis p.
        total: their sums.
        counts: True for clients whose upload counts.

    Raises:
        ConfigError: clients send more for the federated optimizer than changes.
    """
    if jax.tree.leaves(total.reported):
        raise ConfigError(
            "config.sum is for changes of the model alone, but clients also send what the "
            "federated optimizer (config.federated.name) reports; use another one"
        )

    def of_part(values: PyTree, weights: Float[Array, " p"], whole: Float[Array, ""]) -> PyTree:
        """Return the total weight times the update that the clients' are combined to."""
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
    """Give numbers by client the axes of what they belong to."""
    return by_client.reshape(-1, *[1] * (values.ndim - 1))
