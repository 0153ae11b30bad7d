"""The form that every network has outside of this room: a pair of pure functions."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from fedjax_ssl.checks import check_choices
from fedjax_ssl.models.normalization import Norm

if TYPE_CHECKING:
    from fedjax_ssl.models.trained_part import TrainedPart

Places = frozenset[tuple[str, ...]]  # of layers in a network's parameters
LINEN_NORMS = (Norm, nn.BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm)
PRECISIONS = {"float32": jnp.float32, "bf16": jnp.bfloat16}


class Outputs(NamedTuple):
    """Outputs of one forward pass over n examples."""

    logits: Float[Array, "n k"]  # class scores before the softmax
    features: Float[Array, "n d"]  # the head's input
    aux_logits: Float[Array, "n k"] | None  # scores of the second head, None without one


class Model(NamedTuple):
    """A network as pure functions; any function pair of this form is a model, whatever it is built
    with.

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
        normalization: `() -> places`, of the layers that normalize (batch, group, layer norm): the
            path of each one's parameters in `params`, as a tuple of names. Found by the type of a
            layer; of functions that somebody wrote nothing is known.
        part: of a network whose `params` and `state` are those that are trained: how the rest
            starts, and the network with it (`trained_part.part_of`). None: all are trained.
    """

    init: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]]
    apply: Callable[..., tuple[Outputs, PyTree]]
    has_class_scores: bool = True
    batch_weights: Callable[[], PyTree] = dict
    forward_operations: Callable[[], int] | None = None
    normalization: Callable[[], Places] = frozenset
    part: "TrainedPart | None" = None


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


def from_linen(module: nn.Module, input_shape: tuple[int, ...], needs_key: bool) -> Model:
    """Wrap a flax module `(inputs, train, mask) -> Outputs` as pure functions.

    The computation runs in the dtype of the parameters: cast them to bfloat16 and the network
    computes in bfloat16 (statistics of batches stay in float32).

    Args:
        module: keeps its batch statistics in the collection "batch_stats", and at its start the
            weights of a batch in them in "batch_weights" and the operations of its layers in
            "operations"; draws from the stream "dropout".
        input_shape: shape of one example.
        needs_key: whether `module` draws random bits in training.

    Returns:
        The model.
    """

    def variables_of(key: PRNGKeyArray) -> PyTree:
        return module.init(key, jnp.zeros((1, *input_shape), jnp.result_type(float)), False, None)

    @jax.jit
    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        variables = variables_of(key)
        return variables["params"], variables.get("batch_stats", {})

    def noted(collection: str) -> PyTree:
        """Return what layers note of themselves at the start, in Python numbers."""
        notes: dict[str, PyTree] = {}
        jax.eval_shape(lambda: notes.update(variables_of(jax.random.key(0)).get(collection, {})))
        return notes

    def batch_weights() -> PyTree:
        return noted("batch_weights")

    def forward_operations() -> int:
        return sum(jax.tree.leaves(noted("operations")))

    def normalization() -> Places:
        return normalizing(lambda: variables_of(jax.random.key(0)))

    def apply(
        params: PyTree,
        state: PyTree,
        inputs: Float[Array, "n ..."],
        *,
        train: bool,
        key: PRNGKeyArray | None = None,
        mask: Bool[Array, " n"] | None = None,
    ) -> tuple[Outputs, PyTree]:
        inputs = check_inputs(params, inputs, mask, input_shape)
        variables = {"params": params, "batch_stats": state}
        if train and needs_key and key is None:
            raise ValueError(
                "this model has dropout: apply(..., train=True) needs key=, a typed key of "
                "jax.random.key"
            )
        rngs = {} if key is None else {"dropout": key}
        outputs, updates = module.apply(
            variables, inputs, train, mask, rngs=rngs, mutable=["batch_stats"]
        )
        return outputs, updates.get("batch_stats", {})

    return Model(
        init,
        apply,
        getattr(module, "has_class_scores", True),
        batch_weights,
        forward_operations,
        normalization,
    )


def normalizing(start: Callable[[], Any]) -> Places:
    """Return the places of the layers of linen that normalize.

    Args:
        start: calls `init` of a module; it is traced.
    """
    found: set[tuple[str, ...]] = set()

    def listen(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        if isinstance(layer, LINEN_NORMS) and getattr(layer, "kind", "") != "none":
            found.add(tuple(layer.path))
        return call(*args, **kwargs)

    with nn.intercept_methods(listen):
        jax.eval_shape(start)
    return frozenset(found)


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
    if model.part is not None:
        return model.part.of(lambda whole: in_precision(whole, precision))
    dtype = PRECISIONS[precision]

    def apply(
        params: PyTree, state: PyTree, inputs: Array, **options: Any
    ) -> tuple[Outputs, PyTree]:
        rounded = jax.tree.map(lambda x: x.astype(dtype), params)
        outputs, new_state = model.apply(rounded, state, inputs, **options)
        kept = jax.tree.leaves(params)[0].dtype
        return jax.tree.map(lambda x: x.astype(kept), outputs), new_state

    return model._replace(apply=apply)
