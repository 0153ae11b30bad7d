"""Forward and backward passes in fewer bits than the parameters are kept in."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from fedjax_ssl.checks import check_choices
from fedjax_ssl.models.model import Model, Outputs

PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16}


def in_precision(model: Model, precision: str) -> Model:
    """The same network, computed in another precision.

    Parameters, their updates, batch statistics and what comes out stay as they are ("master weights"); inputs and
    parameters are rounded on the way in, and gradients come back in the parameters' own type.

    Args:
        model: computes in the dtype of its parameters, as all networks of this room do.
        precision: "float32" (nothing changes) or "bf16" (8 bits of mantissa, twice the speed and more on accelerators
            with matrix units).

    Returns:
        The model.

    Raises:
        ValueError: for another precision.
    """
    check_choices(PRECISIONS, precision=precision)
    if precision == "float32":
        return model
    dtype = PRECISIONS[precision]

    def apply(params: PyTree, state: PyTree, inputs: Array, **options: Any) -> tuple[Outputs, PyTree]:
        rounded = jax.tree.map(lambda x: x.astype(dtype), params)
        outputs, new_state = model.apply(rounded, state, inputs, **options)
        kept = jax.tree.leaves(params)[0].dtype
        return jax.tree.map(lambda x: x.astype(kept), outputs), new_state

    return model._replace(apply=apply)
