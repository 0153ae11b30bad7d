"""Supervision by a plan: a server chooses the examples to label from the graph of all clients'
examples, without any class (`fedjax_ssl.graph.label_plan`).
"""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.federation.dealing import Mask
from fedjax_ssl.data.federation.pool import Holdings
from fedjax_ssl.data.federation.supervision import Supervision
from fedjax_ssl.data.standardization import normalizer
from fedjax_ssl.graph.label_plan import SETTINGS, Pool, choose, most_candidates
from fedjax_ssl.keys import PRNGKey

Strategy = Literal["influence", "random", "typiclust", "coreset"]


class Compared(NamedTuple):
    """Training inputs, as a plan compares examples."""

    stored: Shaped[np.ndarray, "N ..."]
    vectors: Callable[[Shaped[Array, "N ..."]], Float[Array, "N d"]]
    # ^ inputs as networks see them, standardized and flattened


def compared(dataset: Dataset) -> Compared:
    """Return the values by which a plan compares examples without a network: inputs, or stored
    features.
    """
    normalize = normalizer(dataset)
    stored = dataset.train.x if dataset.views is None else dataset.train.x[:, 0]
    return Compared(stored, lambda raw: normalize(raw).reshape(len(raw), -1))


def planned(
    labels: Annotated[int | None, Whole()] = None,
    per_client: Annotated[int | None, Whole()] = None,
    strategy: Strategy = "influence",
    points: Compared | None = None,
) -> Supervision:
    """Give labels to the examples of a plan, which uses inputs or stored features and no class.

    Held-out examples are not in the plan's graph.

    Args:
        labels: labels in the whole federation; by default as many as `per_client` allows.
        per_client: most labels of a client; by default only `labels` counts.
        strategy: "influence": greedy coverage of XCLP's influence matrix; to compare with,
            "typiclust", "coreset", or "random".
        points: training inputs.
    """
    if labels is None and per_client is None:
        raise ValueError("supervision 'planned' needs the option labels or per_client")
    most = None
    if points is not None and strategy == "influence":
        number = len(points.stored)
        if number <= SETTINGS.num_neighbors:
            raise ValueError(
                f"supervision 'planned' has a graph with {SETTINGS.num_neighbors} neighbours of "
                f"each example, but there are {number} training examples; use supervision 'total'"
            )
        most = most_candidates(number)

    def keep(key: PRNGKey, holdings: Holdings) -> Mask:
        assert points is not None, "federate gives them"
        number = holdings.client.shape[0]
        if number != len(points.stored):
            raise ValueError(
                "supervision 'planned' does not go with a partition that deals some examples twice"
            )
        clients = holdings.members.shape[0]
        there = holdings.client >= 0
        share = number if per_client is None else per_client
        pool = Pool(
            points.vectors(jnp.asarray(points.stored)),
            there,
            jnp.zeros_like(there),
            holdings.eligible,
            jnp.maximum(holdings.client, 0),
            jnp.full(clients, share, jnp.int32),
        )
        budget = clients * share if labels is None else labels
        rows = choose(key, pool, min(budget, number), strategy, candidates=most).rows
        return jnp.zeros_like(there).at[jnp.where(rows < 0, number, rows)].set(True, mode="drop")

    return Supervision(keep, total_labels=labels or 0)
