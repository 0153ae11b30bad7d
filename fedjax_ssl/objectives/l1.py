"""L1 norm of a model's parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_ssl.objectives.float_range import at_least_float32


def l1_norm(params: Any) -> Float[Array, ""]:
    """Sum of the absolute values of all leaves of a pytree, biases and normalization scales included (FedUL section 3).

    The slope at 0 is 0. Leaves in half precision are summed in float32.
    """
    sums = [jnp.sum(jnp.abs(at_least_float32(leaf))) for leaf in jax.tree.leaves(params)]
    return sum(sums, start=jnp.zeros((), sums[0].dtype if sums else jnp.float32))
