"""Slow clients, which do not finish their local steps in time.

References:
    Li et al., Federated optimization in heterogeneous networks (FedProx), MLSys 2020, section 5.2.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Client, Recipe, Schedule
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.setting_types import Share


@checked
def slow_clients(recipe: Recipe, *, slow: Share = 0.5, least_work: Share = 0.5) -> Recipe:
    """Slow clients, drawn anew in every round, take only the first of their local steps.

    Args:
        recipe: recipe of any method; the server's own training does not change.
        slow: probability that a client is slow.
        least_work: share of its steps that a slow client takes at least; the share is drawn
            between this and 1, and a client that has steps takes one of them.
    """

    def slowed(key: Array, client: Client, drawn: Schedule) -> Schedule:
        is_slow = jax.random.bernoulli(named_key(key, "slow"), slow)
        share = jax.random.uniform(named_key(key, "share"), minval=least_work)
        steps = jnp.ceil(share * drawn.num_steps.astype(share.dtype)).astype(jnp.int32)
        steps = jnp.maximum(steps, jnp.minimum(drawn.num_steps, 1))
        return drawn._replace(num_steps=jnp.where(is_slow, steps, drawn.num_steps))

    return recipe.with_schedules(slowed)
