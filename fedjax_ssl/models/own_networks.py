"""Networks of a user's own: modules of flax as a `Model`, and what is tried before any training."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from fedjax_ssl.errors import ConfigError
from fedjax_ssl.models.model import Model, Outputs, check_inputs
from fedjax_ssl.own_code import blame

_ROWS = 3  # examples that a network is tried with
_GIVEN = ("train", "mask")  # further arguments that a module may take besides its inputs
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _WithoutFeatures(Outputs):
    @property
    def features(self) -> Array:  # type: ignore[override]
        raise ConfigError(
            "config.model: features of the examples are needed, but this network returns class "
            "scores alone; let it return (logits, features)"
        )


def from_linen(module: nn.Module, input_shape: tuple[int, ...]) -> Model:
    """Make a model of a module of `flax.linen`.

    Args:
        module: takes a batch [n, ...], and by name those of `train` (a bool) and `mask` (bool [n],
            the rows that are no padding) that it has as parameters. It returns (logits, features),
            logits alone, or `Outputs`. Dropout draws from the stream "dropout".
        input_shape: shape of one example.

    Example:
        >>> import flax.linen as nn
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, train):
        ...         features = nn.relu(nn.Dense(8)(x))
        ...         return nn.Dense(3)(features), features
        >>> model = fs.from_linen(Net(), (5,))
        >>> params, state = model.init(jax.random.key(0))
        >>> model.apply(params, state, jnp.ones((2, 5)), train=False)[0].logits.shape
        (2, 3)
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"from_linen takes a module of flax.linen, and was given {type(module).__name__}"
        )
    options = _options(module)

    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        inputs = jnp.zeros((1, *input_shape), jnp.result_type(float))
        variables = dict(module.init(key, inputs, **options(False, jnp.ones(1, bool))))
        return variables.pop("params", {}), variables

    def call(
        params: PyTree, state: PyTree, inputs: Array, train: bool, key: Any, mask: Array
    ) -> tuple[Any, PyTree]:
        rngs = {} if key is None else {"dropout": key}
        variables = {"params": params, **state}
        result, new = module.apply(
            variables, inputs, **options(train, mask), rngs=rngs, mutable=[*state]
        )
        return result, new

    return Model(jax.jit(init), _apply_of(call))


def from_nnx(make: Callable[[nnx.Rngs], nnx.Module]) -> Model:
    """Make a model of a module of `flax.nnx`.

    Args:
        make: a function of `nnx.Rngs` that returns the module. The module takes and returns what
            one of `from_linen` does; its `train()` and `eval()` are called too.

    Example:
        >>> from flax import nnx
        >>> class Net(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.hidden = nnx.Linear(5, 8, rngs=rngs)
        ...         self.head = nnx.Linear(8, 3, rngs=rngs)
        ...     def __call__(self, x):
        ...         features = nnx.relu(self.hidden(x))
        ...         return self.head(features), features
        >>> model = fs.from_nnx(Net)
        >>> params, state = model.init(jax.random.key(0))
        >>> model.apply(params, state, jnp.ones((2, 5)), train=False)[0].logits.shape
        (2, 3)
    """
    if isinstance(make, nnx.Module) or not callable(make):
        raise ValueError(
            "from_nnx takes a function of nnx.Rngs that returns a module, so that every seed draws "
            f"its own weights, and was given {type(make).__name__}"
        )

    def parts(key: PRNGKeyArray) -> Any:
        return nnx.split(make(nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)

    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        _, params, _, state = parts(key)
        return _nested(params), _nested(state)

    graph, *trees = nnx.eval_shape(lambda: parts(jax.random.key(0)))

    def call(
        params: PyTree, state: PyTree, inputs: Array, train: bool, key: Any, mask: Array
    ) -> tuple[Any, PyTree]:
        stream = jax.random.key(0) if key is None else key
        random = [
            jax.random.fold_in(stream, i)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else jnp.zeros(x.shape, x.dtype)
            for i, x in enumerate(jax.tree.leaves(trees[1]))
        ]
        leaves = (_leaves(params, trees[0]), random, _leaves(state, trees[2]))
        net = nnx.merge(graph, *map(jax.tree.unflatten, map(jax.tree.structure, trees), leaves))
        net.train() if train else net.eval()
        result = net(inputs, **_options(net)(train, mask))
        split: Any = nnx.split(net, nnx.Param, nnx.RngState, ...)
        return result, _nested(split[-1])

    return Model(jax.jit(init), _apply_of(call))


def _nested(state: Any) -> PyTree:
    """Return a state of nnx as nested dicts by names."""
    flat = flatten_dict(nnx.to_pure_dict(state))
    return unflatten_dict({tuple(map(str, path)): leaf for path, leaf in flat.items()})


def _leaves(named: PyTree, like: Any) -> list[Array]:
    """Return the arrays of nested dicts in the order of a state of nnx, which sorts numbers."""
    flat = flatten_dict(named)
    paths = flatten_dict(nnx.to_pure_dict(like))
    return jax.tree.leaves(unflatten_dict({path: flat[tuple(map(str, path))] for path in paths}))


def _options(module: Any) -> Callable[[bool, Array], dict[str, Any]]:
    """Return the function of (train, mask) that gives what a module takes of them, by name."""
    parameters = list(inspect.signature(module.__call__).parameters.values())[1:]
    takes = [one.name for one in parameters if one.name in _GIVEN]
    for one in parameters:
        if one.name not in _GIVEN and one.default is one.empty and one.kind not in _REST:
            raise ValueError(
                f"nobody gives the network its parameter {one.name!r}; beside its inputs it may "
                f"take {' and '.join(_GIVEN)}"
            )

    def options(train: bool, mask: Array) -> dict[str, Any]:
        given = dict(zip(_GIVEN, (train, mask), strict=True))
        return {name: given[name] for name in takes}

    return options


def _apply_of(call: Callable[..., tuple[Any, PyTree]]) -> Callable[..., tuple[Outputs, PyTree]]:
    """Return `Model.apply` of a module that is called with every one of its arguments."""

    def apply(
        params: PyTree,
        state: PyTree,
        inputs: Array,
        *,
        train: bool,
        key: PRNGKeyArray | None = None,
        mask: Bool[Array, " n"] | None = None,
    ) -> tuple[Outputs, PyTree]:
        # A batch without a real row would have NaN statistics: there, all rows count, and the state
        # stays.
        moves = True if mask is None else jnp.any(mask)
        real = jnp.ones(inputs.shape[0], bool) if mask is None else mask | ~moves
        result, new = call(params, state, inputs, train, key, real)
        if not train:
            return _outputs_of(result), state
        kept = jax.tree.map(lambda new, old: jnp.where(moves, new, old), new, state)
        return _outputs_of(result), jax.lax.stop_gradient(kept)

    return apply


def _outputs_of(result: Any) -> Outputs:
    if isinstance(result, Outputs):
        return result
    if isinstance(result, tuple) and len(result) == 2:
        logits, features = result
        return Outputs(logits, features)
    nothing: Any = None
    return _WithoutFeatures(result, nothing)


def own_network(made: Any, num_classes: int, input_shape: tuple[int, ...], place: str) -> Model:
    """Return the model that a builder of a user's own has returned, after trying it.

    Args:
        made: a model, or a pair like one whose `apply` may also return (logits, features) or
            logits alone in place of `Outputs`.
        num_classes: number of class scores K.
        input_shape: shape of one example.
        place: file and line of the builder, for messages.

    Raises:
        ValueError: it is no model, cannot be called, does not return finite scores of K classes,
            each row's from that row alone, or lets padding into its batch statistics; says where.
    """
    try:
        if not (isinstance(made, tuple) and len(made) >= 2 and all(map(callable, made[:2]))):
            raise ValueError(
                f"it returned {type(made).__name__}; it has to return a Model: a pair (init, "
                "apply), fs.from_linen(module, input_shape) or fs.from_nnx(function of rngs)"
            )
        model = made if isinstance(made, Model) else Model(*made)
        model = _check(model, num_classes, input_shape)
    except ValueError as error:
        raise (
            error if error.__cause__ or place in str(error) else ValueError(f"{error} ({place})")
        ) from None
    return model


@contextmanager
def _called(doing: str) -> Iterator[None]:
    """Say of an error in a network's code what the network was called for."""
    try:
        yield
    except Exception as error:
        if (said := blame(error)) is None:
            raise
        raise ValueError(f"the network cannot be called {doing}: {said}") from error


def _check(model: Model, num_classes: int, input_shape: tuple[int, ...]) -> Model:
    """Try a network with a few examples, in evaluation with numbers too; returns it with the
    weight of a batch in its statistics.
    """
    key = jax.random.key(0)
    with _called("for its parameters"):
        params, state = jax.eval_shape(model.init, key)
    leaves = jax.tree.leaves((params, state))
    if not jax.tree.leaves(params) or not all(
        jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves
    ):
        raise ValueError(
            "init(key) has to return (params, state), nested dicts of floating-point arrays, with "
            f"parameters; {', '.join(sorted({str(leaf.dtype) for leaf in leaves})) or 'none'} came"
        )

    def apply(
        params: PyTree, state: PyTree, inputs: Array, *, mask: Array | None = None, **more: Any
    ) -> tuple[Outputs, PyTree]:
        inputs = check_inputs(params, inputs, mask, input_shape)
        result = model.apply(params, state, inputs, mask=mask, **more)
        if not (isinstance(result, tuple) and len(result) == 2) or isinstance(result, Outputs):
            raise ValueError(
                "apply(params, state, inputs, *, train, key, mask) has to return (outputs, state)"
            )
        return _outputs_of(result[0]), result[1]

    checked = model._replace(apply=apply)

    def run(key: PRNGKeyArray, train: bool, padding: float, fill: float | None) -> Any:
        """Return outputs, state and parameters; in training the last row is padding."""
        params, state = checked.init(key)
        if fill is not None:
            state = jax.tree.map(lambda x: jnp.full_like(x, fill), state)
        inputs = jax.random.uniform(key, (_ROWS, *input_shape)).at[-1].add(padding)
        more = {"key": key, "mask": jnp.arange(_ROWS) < _ROWS - 1} if train else {}
        return *checked.apply(params, state, inputs, train=train, **more), params, inputs

    for train, doing in ((False, "in evaluation, where it gets no key"), (True, "in training")):
        with _called(doing):
            outputs, *_ = jax.eval_shape(lambda key, train=train: run(key, train, 0.0, None), key)
        _check_shapes(outputs, num_classes if checked.has_class_scores else 0)

    def measured(key: PRNGKeyArray) -> Any:
        outputs, state, params, inputs = run(key, False, 0.0, None)
        alone = checked.apply(params, state, inputs[:1], train=False)[0].logits
        broken = jax.tree.map(lambda x: ~jnp.all(jnp.isfinite(x)), params)
        tries = ((0.0, 0.0), (9.0, 0.0), (0.0, 1.0)) if jax.tree.leaves(state) else ()
        return outputs.logits, alone, broken, [run(key, True, *one)[1] for one in tries]

    with jax.ensure_compile_time_eval():
        tried = jax.jit(measured)(jax.random.key(0))
    logits, alone, broken, after = jax.device_get(tried)
    _check_values(logits, alone, broken)
    if not after:
        return checked
    start, padded, ones = after
    if any(map(np.any, jax.tree.leaves(jax.tree.map(np.not_equal, start, padded)))):
        raise ValueError(
            "the network has batch statistics, and padding counts in them: let it take `mask` and "
            "give it to its batch norm, nn.BatchNorm(...)(x, mask=mask[:, None]) for vectors, or "
            "use group or layer norm"
        )
    # A running statistic is old * (1 - weight) + batch * weight.
    weights = jax.tree.map(lambda zero, one: round(1 - float(np.mean(one - zero)), 6), start, ones)
    return checked._replace(batch_weights=lambda: weights)


def _check_shapes(outputs: Outputs, num_classes: int) -> None:
    logits, features, *_ = outputs
    wanted = (_ROWS, num_classes)
    if getattr(logits, "shape", None) == wanted and (
        features is None or getattr(features, "shape", ())[:-1] == (_ROWS,)
    ):
        return
    came = " and ".join(
        str(getattr(x, "shape", type(x).__name__)) for x in (logits, features) if x is not None
    )
    raise ValueError(
        f"for {_ROWS} examples of {num_classes} classes the network returned logits (and features) "
        f"of shape {came}; {wanted} has to come, and [{_ROWS}, any number] for features"
    )


def _check_values(logits: np.ndarray, alone: np.ndarray, broken: PyTree) -> None:
    if not np.isfinite(logits).all():
        names = [".".join(name) for name, is_broken in flatten_dict(broken).items() if is_broken]
        where = f", as do its parameters {', '.join(names[:3])}" if names else ""
        raise ValueError(
            f"for inputs from 0 to 1 the network returns NaN or infinity at initialization{where}"
        )
    if (abs(logits[:1] - alone) > 1e-3 * (1 + abs(logits).max())).any():
        raise ValueError(
            "in evaluation the network's output for an example is random, or changes with the "
            "rest of the batch: batch norm or dropout act as in training; let it take `train`"
        )
