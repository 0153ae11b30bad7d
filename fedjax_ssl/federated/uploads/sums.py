"""How a round's uploads become one: their mean, or something that a few false ones cannot move far.

Such sums look at all uploads at once, which are stacked in client order: the result is the same
under every placement and number of devices, and takes the memory of the whole cohort's updates.
They are of the parameters' changes and the batch statistics; `check` says what else a method sends.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated.messages import Sent, Sums
from fedjax_ssl.federated.optimizers import FederatedOptimizer, mean_scale
from fedjax_ssl.registry import Registry, contributed

PyTree = Any


class Summation(NamedTuple):
    """A way to make one update of many."""

    name: str  # for messages
    mean: Callable[[PyTree, Float[Array, " p"]], PyTree] | None = None
    # ^ (updates with leading axis p, their weights, 0 for those that do not count) -> one update;
    # called for each parameter group by itself, and for the batch statistics. None: the weighted
    # mean, for which nothing is stacked


def mean() -> Summation:
    """Take the mean of the uploads by their weights."""
    return Summation("mean")


SUMS: Registry[Summation] = Registry(
    "sum",
    {
        "mean": mean,
        **contributed("sum"),
    },
    makes=Summation,
)


def check(
    summation: Summation, leaves: Mapping[str, Sequence[str]], optimizer: FederatedOptimizer
) -> list[str]:
    """Refuse what cannot be summed so, and return what to say of the rest.

    Args:
        summation: of a run.
        leaves: what leaves clients, as `check_covers` takes it.
        optimizer: the federated optimizer.

    Raises:
        ConfigError: the federated optimizer needs other sums than of changes, or clients send the
            states of their optimizers.
    """
    says = f"config.sum.name is {summation.name!r}"
    if optimizer.alone or optimizer.num_groups > 1:
        raise ConfigError(
            f"{says}, and this federated optimizer does not add up what all clients send; use "
            "config.federated.name=fedavg or another one that does"
        )
    for part in ("report", "optimizer"):
        if leaves.get(part):
            raise ConfigError(
                f"{says}, which is for changes of the model alone, but clients also send "
                f"{', '.join(leaves[part])}; use another federated optimizer, or leave "
                "config.optimizer.average_state out"
            )
    more = [name for part in ("terms", "means", "beside") for name in leaves.get(part, ())]
    if not more:
        return []
    return [f"{says}: it is for the model alone, and not for {', '.join(more)}"]


def combined(summation: Summation, sent: Sent, summed: Sums, counts: Bool[Array, " p"]) -> Sums:
    """Return the sums of a cohort with other changes and batch statistics in them.

    Args:
        summation: not the mean.
        sent: by each client, leading axis p.
        summed: added up.
        counts: True for clients whose upload counts.
    """
    combine = summation.mean
    assert combine is not None

    def of_part(values: PyTree, weights: Float[Array, " p"], total: Float[Array, ""]) -> PyTree:
        """Return the total weight times the update that the clients' are combined to."""
        weights = jnp.where(counts, weights, 0.0)
        scale = mean_scale(weights)
        each = jax.tree.map(lambda x: _along(scale, x) * x, values)
        return jax.tree.map(lambda x: total.astype(x.dtype) * x, combine(each, weights))

    update = summed.update
    change = {
        group: of_part(sent.update.change[group], sent.update.weight[group], update.weight[group])
        for group in update.change
    }
    statistics = summed.statistics
    if statistics.size:
        statistics = of_part(sent.statistics, sent.weight, summed.weight)
    return summed._replace(update=update._replace(change=change), statistics=statistics)


def _along(by_client: Array, values: Array) -> Array:
    """Give numbers by client the axes of what they belong to."""
    return by_client.reshape(-1, *[1] * (values.ndim - 1))
