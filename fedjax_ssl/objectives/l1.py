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
    leaves = [at_least_float32(leaf) for leaf in jax.tree.leaves(params)]
    # jnp.abs has slope 1 at 0, which would pull fresh biases away from where the penalty wants them.
    sums = [jnp.sum(leaf * jax.lax.stop_gradient(jnp.sign(leaf))) for leaf in leaves]
    return sum(sums, start=jnp.zeros((), sums[0].dtype if sums else jnp.float32))
