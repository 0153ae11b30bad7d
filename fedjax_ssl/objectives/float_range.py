"""Types and ranges of the floating numbers in which losses are computed."""

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float


def at_least_float32(values: ArrayLike) -> Float[Array, "..."]:
    """The values as floating numbers of 32 bits or more; half precision and integers become float32."""
    values = jnp.asarray(values)
    wide = jnp.issubdtype(values.dtype, jnp.floating) and jnp.finfo(values.dtype).bits >= 32
    return values if wide else values.astype(jnp.float32)


def most_negative(values: Float[Array, "..."]) -> float:
    """The most negative finite number of the values' type: log 0 without the NaN that -inf leaves in gradients."""
    return float(jnp.finfo(values.dtype).min)
