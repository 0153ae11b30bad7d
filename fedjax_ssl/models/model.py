"""The form that every network has outside of this room: a pair of pure functions."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from fedjax_ssl.checks import check_choices

PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16}


class Outputs(NamedTuple):
    """Outputs of one forward pass over n examples."""

    logits: Float[Array, "n k"]  # class scores before the softmax
    features: Float[Array, "n d"]  # the head's input
    aux_logits: Float[Array, "n k"] | None = None  # scores of the second head, None without one


class Model(NamedTuple):
    """A network: a pair of pure functions, whatever they are built with, and facts about them.

    Attributes:
        init: `(key) -> (params, state)`. `params` are nested dicts of floating-point arrays,
            `state` holds the running batch statistics ({} for a network without).
        apply: `(params, state, inputs, *, train, key=None, mask=None) -> (Outputs, new_state)`.
            `inputs` are float [n, ...], already normalised. `train` (a Python bool) turns dropout
            and batch statistics on; a network with dropout then needs `key`. `mask` (bool [n],
            default all true) marks the rows that count in batch statistics. In evaluation the state
            comes back as it was.
        has_class_scores: False for a network of features alone, whose `Outputs.logits` have no
            column.
        batch_weights: `() -> tree like state`: how much a batch weighs in each running statistic,
            as Python floats. Only statistics by a pass over the data ask for it.
        forward_operations: `() -> int`, additions and multiplications for one example: of
            convolutions, dense layers, their biases and one softmax, in ProtoFSSL's networks also
            of pools and residual sums. None where nobody counted.
    """

    init: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]]
    apply: Callable[..., tuple[Outputs, PyTree]]
    has_class_scores: bool = True
    batch_weights: Callable[[], PyTree] = dict
    forward_operations: Callable[[], int] | None = None


def count_parameters(params: PyTree) -> int:
    """Return the number of scalars in a tree of arrays (or of shapes from `jax.eval_shape`)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def check_inputs(
    params: PyTree,
    inputs: Float[Array, "n ..."],
    mask: Bool[Array, " n"] | None,
    input_shape: tuple[int, ...],
) -> Float[Array, "n ..."]:
    """Return the inputs in the type of the parameters; raises ValueError for other shapes, and
    for whole numbers.
    """
    if inputs.shape[1:] != input_shape:
        raise ValueError(
            f"inputs have shape {inputs.shape}, this model was built for [n, "
            f"{', '.join(map(str, input_shape))}]; build it with input_shape=inputs.shape[1:]"
        )
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise ValueError(
            f"inputs must be floating point, got {inputs.dtype}; normalise the stored values first"
        )
    if mask is not None and mask.shape != inputs.shape[:1]:
        raise ValueError(
            f"mask must have shape {inputs.shape[:1]}, one entry per row of inputs, got "
            f"{mask.shape}"
        )
    return inputs.astype(jax.tree.leaves(params)[0].dtype)


def in_precision(model: Model, precision: str) -> Model:
    """Return the same network, computed in another precision.

    Parameters, their updates, batch statistics and what comes out stay as they are ("master
    weights"); inputs and parameters are rounded on the way in, and gradients come back in the
    parameters' own type.

    Args:
        model: computes in the dtype of its parameters, as all networks of this room do.
        precision: "float32" (nothing changes) or "bf16" (8 bits of mantissa, twice the speed and
            more on accelerators with matrix units).

    Returns:
        The model.

    Raises:
        ValueError: for another precision.
    """
    check_choices(PRECISIONS, precision=precision)
    if precision == "float32":
        return model
    dtype = PRECISIONS[precision]

    def apply(
        params: PyTree, state: PyTree, inputs: Array, **options: Any
    ) -> tuple[Outputs, PyTree]:
        rounded = jax.tree.map(lambda x: x.astype(dtype), params)
        outputs, new_state = model.apply(rounded, state, inputs, **options)
        kept = jax.tree.leaves(params)[0].dtype
        return jax.tree.map(lambda x: x.astype(kept), outputs), new_state

    return model._replace(apply=apply)
