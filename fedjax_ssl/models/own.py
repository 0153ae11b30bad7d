"""Networks of a user's own in the form of `Model`: modules of linen, nnx and equinox, and pairs of
functions.

A kind of network is two functions: `start(key)` returns parameters and state, `call(params, state,
inputs, train, key, mask)` what the network returned, the input of its last dense layer, and the new
state. A call listens to the layers: batch norm gets the mask of the real rows, convolutions are
computed as ours are, dense layers tell their inputs.
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jaxtyping import Array, PRNGKeyArray, PyTree

from fedjax_ssl.errors import ConfigError, note
from fedjax_ssl.models.convolution import conv_general_dilated
from fedjax_ssl.models.layers import Dense
from fedjax_ssl.models.model import Model, Outputs, Places, check_inputs, normalizing
from fedjax_ssl.own_code import blame

RANDOM = ("rngs", "key")  # parameters of a builder that draws weights
_TRAIN = ("train", "training", "is_training")
_EVALUATE = ("deterministic", "inference", "eval", "use_running_average")
# parameters of a network beside its inputs
_GIVEN = {*_TRAIN, *_EVALUATE, "mask", "key", "rng", "rngs"}
# these are listened to
_LAYERS = (nn.BatchNorm, nn.Conv, nn.Dense, Dense, nnx.BatchNorm, nnx.Conv, nnx.Linear)
_NOTES = ("operations", "batch_weights", "dense")  # collections of linen that are no state
_ROWS = 3  # examples that a network is tried with
Shape = tuple[int, ...]
_NNX_NORMS = (nnx.BatchNorm, nnx.GroupNorm, nnx.InstanceNorm, nnx.LayerNorm, nnx.RMSNorm)


class Kind(NamedTuple):
    """What a kind of networks is, see above."""

    start: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]]
    call: Callable[..., tuple[Any, Array | None, PyTree]]
    normalization: Callable[[], Places] = frozenset  # as `Model.normalization`


class _WithoutFeatures(Outputs):
    @property
    def features(self) -> Array:  # type: ignore[override]
        raise ConfigError(
            "config.model: features of the examples are needed, but this network returns class "
            "scores alone, and has no dense layer over vectors whose input they would be; let it "
            "return (logits, features)"
        )


def own_network(
    make: Callable[..., Any],
    drawn: Sequence[str],
    num_classes: int,
    input_shape: Shape,
    place: str,
) -> Model:
    """Bring a network of a user's own to the form of `Model`.

    Args:
        make: builds it, given the arguments `drawn`.
        drawn: those of `RANDOM` that its builder takes.
        num_classes: number of class scores K.
        input_shape: shape of one example.
        place: file and line of the builder, for messages.

    Returns:
        The model. Parameters and state are nested dicts of arrays by the names that the network has
        for them.

    Raises:
        ValueError: it is no network, cannot be called, or does not return finite scores of K
            classes, each row's from that row alone; says where.
    """

    def build(key: PRNGKeyArray) -> Any:
        given = {"rngs": nnx.Rngs(key), "key": key}
        return make(**{name: given[name] for name in drawn})

    if drawn:
        made = _traced(build)
    else:
        with jax.ensure_compile_time_eval():
            made = build(jax.random.key(0))
    try:
        model = _as_model(_kind(made, build if drawn else lambda _: made, input_shape), input_shape)
        if isinstance(made, Model):
            model = made._replace(init=model.init, apply=model.apply)
        _check(model, num_classes, input_shape)
    except ValueError as error:
        raise (
            error if error.__cause__ or place in str(error) else ValueError(f"{error} ({place})")
        ) from None
    draws = hasattr(made, "init") or (isinstance(made, tuple) and all(map(callable, made)))
    if not (drawn or draws):
        note(
            f"every seed starts from the same weights: {place} takes neither of {', '.join(RANDOM)}"
        )
    return model


def _traced(function: Callable[[PRNGKeyArray], Any]) -> Any:
    """Call a function of a key for what in its result is no array."""
    results: list[Any] = []
    jax.eval_shape(lambda key: results.append(function(key)), jax.random.key(0))
    return results[0]


def _kind(made: Any, build: Callable[[PRNGKeyArray], Any], input_shape: Shape) -> Kind:
    equinox: Any = sys.modules.get("equinox")
    if isinstance(made, nn.Module):
        return _linen(made, input_shape)
    if isinstance(made, nnx.Module):
        return _nnx(build)
    if equinox and isinstance(made[0] if isinstance(made, tuple) else made, equinox.Module):
        return _equinox(equinox, build)
    pair = (
        made if type(made) is tuple else (getattr(made, "init", None), getattr(made, "apply", None))
    )
    if len(pair) == 2 and all(map(callable, pair)):
        return _pair(*pair)
    wanted = "a module of flax or equinox, or a pair (init, apply)"
    raise ValueError(f"it returned {type(made).__name__}; it has to return {wanted}")


def _as_model(kind: Kind, input_shape: Shape) -> Model:
    start = kind.start
    call = kind.call
    like = jax.eval_shape(start, jax.random.key(0))
    kinds = {leaf.dtype for leaf in jax.tree.leaves(like[0])}
    if not kinds or not all(jnp.issubdtype(one, jnp.floating) for one in kinds):
        raise ValueError(
            "a network needs parameters of floating point, got "
            f"{', '.join(map(str, kinds)) or 'none'}"
        )

    @jax.jit
    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        params, state = start(key)
        return _by_name(params), _by_name(state)

    def apply(
        params: PyTree,
        state: PyTree,
        inputs: Array,
        *,
        train: bool,
        key: Any = None,
        mask: Any = None,
    ) -> Any:
        inputs = check_inputs(params, inputs, mask, input_shape)
        moves = True if mask is None else jnp.any(mask)
        # A batch without a real row would have NaN statistics: there, all rows count, and the state
        # stays.
        real = jnp.ones(inputs.shape[0], bool) if mask is None else mask | ~moves
        result, features, new = call(
            *map(_restored, like, (params, state)), inputs, train, key, real
        )
        if not isinstance(result, Outputs):
            logits, features = (
                result if type(result) is tuple and len(result) == 2 else (result, features)
            )
            outputs: Any = _WithoutFeatures if features is None else Outputs
            result = outputs(logits, features, None)
        if not train:
            return result, state
        after = flatten_dict(_by_name(new))
        kept = {
            name: jnp.where(moves, after[name].astype(x.dtype), x)
            for name, x in flatten_dict(state).items()
        }
        return result, lax.stop_gradient(unflatten_dict(kept))

    @functools.cache
    def batch_weights() -> PyTree:
        if not all(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(like[1])):
            raise ConfigError(
                "config.model: this method works out batch statistics, which equinox keeps with "
                "counts"
            )
        with jax.ensure_compile_time_eval():
            key = jax.random.key(0)
            params, state = init(key)
            run = functools.partial(
                apply, params, inputs=jnp.zeros((_ROWS, *input_shape)), train=True, key=key
            )
            zero, one = (
                run(jax.tree.map(fill, state))[1] for fill in (jnp.zeros_like, jnp.ones_like)
            )
            return jax.tree.map(
                lambda zero, one: round(1 - float(jnp.mean(one - zero)), 6), zero, one
            )

    return Model(init, apply, batch_weights=batch_weights, normalization=kind.normalization)


def _linen(module: nn.Module, input_shape: Shape) -> Kind:
    options = _options(module.__call__, 1)  # type: ignore[operator]

    def start(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        inputs = jnp.zeros((1, *input_shape), jnp.result_type(float))
        with _called(train=False):
            variables = dict(module.init(key, inputs, **options(False, None, jnp.ones(1, bool))))
        return variables.pop("params", {}), {
            name: x for name, x in variables.items() if name not in _NOTES
        }

    def call(
        params: PyTree, state: PyTree, inputs: Array, train: bool, key: Any, mask: Array
    ) -> Any:
        heard: list[tuple[str, ...]] = []

        # not by reference: it may be inside of a transformation
        def hear(layer: nn.Module, x: Array) -> None:
            heard.append((*layer.path, "input"))
            layer.sow("dense", "input", x, init_fn=lambda: None, reduce_fn=lambda _, last: last)

        listen = _listener(hear, mask)

        def intercept(
            call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext
        ) -> Any:
            told = context.method_name == "__call__" and isinstance(context.module, _LAYERS)
            return listen(call, context.module, *args, **kwargs) if told else call(*args, **kwargs)

        rngs = {} if key is None else {"dropout": key, "params": key}
        variables = {"params": params, **state}
        with nn.intercept_methods(intercept):
            more = options(train, key, mask)
            result, new = module.apply(
                variables, inputs, **more, rngs=rngs, mutable=[*state, "dense"]
            )
        told = flatten_dict(new.get("dense", {}))
        return (
            result,
            _last([told[last] for last in heard[-1:] if last in told], 2),
            {**state, **new},
        )

    return Kind(start, call, lambda: normalizing(lambda: start(jax.random.key(0))))


def as_it_predicts(net: Any) -> Any:
    """Give a module of nnx or equinox as it works in evaluation; anything else as it is."""
    if isinstance(net, nnx.Module):
        net.eval()
    equinox = sys.modules.get("equinox")
    if equinox is not None and isinstance(net, equinox.Module):
        return equinox.nn.inference_mode(net)
    return net


def _nnx(build: Callable[[PRNGKeyArray], nnx.Module]) -> Kind:
    def parts(net: nnx.Module) -> Any:
        return nnx.split(net, nnx.Param, nnx.RngState, ...)

    def start(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        _, params, _, state = parts(build(key))
        return nnx.to_pure_dict(params), nnx.to_pure_dict(state)

    graph, *trees = _traced(lambda key: parts(build(key)))

    def call(
        params: PyTree, state: PyTree, inputs: Array, train: bool, key: Any, mask: Array
    ) -> Any:
        stream = jax.random.key(0) if key is None else key
        random = [
            jax.random.fold_in(stream, i)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else jnp.zeros(x.shape, x.dtype)
            for i, x in enumerate(jax.tree.leaves(trees[1]))
        ]
        leaves = (jax.tree.leaves(params), random, jax.tree.leaves(state))
        net = nnx.merge(graph, *map(jax.tree.unflatten, map(jax.tree.structure, trees), leaves))
        net.train() if train else net.eval()
        for _, layer in nnx.iter_modules(net):
            if isinstance(layer, _LAYERS):
                _opened(layer)
        more = _options(net.__call__, 1)(train, key, mask)  # type: ignore[operator]
        result, heard = _overheard(net, mask, inputs, **more)
        return result, _last(heard, 2), nnx.to_pure_dict(parts(net)[3])

    def normalization() -> Places:
        net = _traced(build)
        found = (path for path, layer in nnx.iter_modules(net) if isinstance(layer, _NNX_NORMS))
        return frozenset(tuple(map(str, path)) for path in found)

    return Kind(start, call, normalization)


def _equinox(equinox: Any, build: Callable[[PRNGKeyArray], Any]) -> Kind:
    def parts(key: PRNGKeyArray) -> tuple[Any, Any, Any]:
        made = build(key)
        net, state = made if isinstance(made, tuple) else equinox.nn.make_with_state(lambda: made)()
        params, rest = equinox.partition(net, equinox.is_inexact_array)
        arrays, others = equinox.partition(rest, equinox.is_array)
        return params, (arrays, state), others

    others = _traced(lambda key: parts(key)[2])

    def is_layer(x: Any) -> bool:
        return isinstance(x, equinox.nn.Linear | equinox.nn.BatchNorm)

    def call(
        params: PyTree, state: PyTree, inputs: Array, train: bool, key: Any, mask: Array
    ) -> Any:
        arrays, state = state
        net = equinox.nn.inference_mode(equinox.combine(params, arrays, others), value=not train)
        net = jax.tree.map(
            lambda x: _opened(copy.copy(x)) if is_layer(x) else x, net, is_leaf=is_layer
        )
        axis = [
            x.axis_name for x in jax.tree.leaves(net, is_leaf=is_layer) if hasattr(x, "axis_name")
        ]
        options = _options(net.__call__, 1)
        keeps = "state" in inspect.signature(net.__call__).parameters

        def one(x: Array, real: Array, key: Any) -> Any:
            result, heard = _overheard(
                net, real, x, *((state,) if keeps else ()), **options(train, key, real)
            )
            result, new = result if keeps else (result, state)
            return (result, _last(heard, 1)), new

        rows = jnp.arange(inputs.shape[0])
        keys = None if key is None else jax.vmap(functools.partial(jax.random.fold_in, key))(rows)
        each = jax.vmap(one, out_axes=(0, None), axis_name=axis[0] if axis else None)
        (result, features), new = each(inputs, mask, keys)
        return result, features, (arrays, new)

    def normalization() -> Places:
        kinds = ("BatchNorm", "GroupNorm", "LayerNorm", "RMSNorm")
        norms = tuple(getattr(equinox.nn, kind) for kind in kinds)
        made = _traced(build)
        net = made[0] if isinstance(made, tuple) else made
        layers = jax.tree_util.tree_leaves_with_path(net, is_leaf=lambda x: isinstance(x, norms))
        return frozenset(_name(path) for path, layer in layers if isinstance(layer, norms))

    return Kind(lambda key: parts(key)[:2], call, normalization)


def _pair(init: Callable[..., Any], apply: Callable[..., Any]) -> Kind:
    options = _options(apply, 3)

    def two(function: Callable[..., Any], does: str, *args: Any, **more: Any) -> Any:
        try:
            inspect.signature(function).bind(*args, **more)
        except TypeError as error:
            raise ValueError(f"{does}: {error}") from None
        made = function(*args, **more)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise ValueError(
                f"{does}; {'an array' if isinstance(made, jax.Array) else type(made).__name__} came"
            )
        return made

    def start(key: PRNGKeyArray) -> Any:
        return two(init, "init(key) has to return (params, state)", key)

    def call(
        params: PyTree, state: PyTree, inputs: Array, train: bool, key: Any, mask: Array
    ) -> Any:
        does = "apply(params, state, inputs, ...) has to return (scores, state)"
        result, new = two(apply, does, params, state, inputs, **options(train, key, mask))
        return result, None, new

    return Kind(start, call)


def _options(
    call: Callable[..., Any], leading: int
) -> Callable[[bool, Any, Array], dict[str, Any]]:
    """Find which arguments a network takes beside its inputs, which are among the leading ones."""
    others = list(inspect.signature(call).parameters.values())[leading:]
    for one in others:
        if (
            one.default is one.empty
            and one.name not in {*_GIVEN, "state"}
            and not one.kind.name.startswith("VAR_")
        ):
            known = ", ".join((*_TRAIN, *_EVALUATE, "mask", "key"))
            raise ValueError(
                f"nobody gives the network its parameter {one.name!r}; it may take, beside "
                f"inputs, {known}"
            )
    names = {one.name for one in others} & _GIVEN
    names |= (
        {"train", "key", "mask"} if any(one.kind is one.VAR_KEYWORD for one in others) else set()
    )

    def options(train: bool, key: Any, mask: Array) -> dict[str, Any]:
        given = {
            **dict.fromkeys(_TRAIN, train),
            **dict.fromkeys(_EVALUATE, not train),
            "mask": mask,
        }
        given |= {"key": key, "rng": key, "rngs": None if key is None else nnx.Rngs(key)}
        return {name: given[name] for name in names}

    return options


_LISTENER: ContextVar[Callable[..., Any]] = ContextVar("listener")


@functools.cache
def _heard(kind: Any) -> type:
    """Make a class like a layer's, whose calls go through the listener."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _LISTENER.get()(functools.partial(kind.__call__, self), self, *args, **kwargs)

    return type(kind)(kind.__name__, (kind,), {"__call__": __call__, "__module__": kind.__module__})


def _opened(layer: Any) -> Any:
    kind: Any = type(layer)
    object.__setattr__(layer, "__class__", _heard(kind))
    return layer


def _overheard(
    network: Callable[..., Any], mask: Array, *args: Any, **kwargs: Any
) -> tuple[Any, list[Array]]:
    """Call a network whose layers are opened; returns the inputs of its dense layers too."""
    heard: list[Array] = []
    context = copy_context()
    context.run(_LISTENER.set, _listener(lambda _, x: heard.append(x), mask))
    return context.run(network, *args, **kwargs), heard


def _listener(hear: Callable[[Any, Array], Any], mask: Array) -> Callable[..., Any]:
    """Make a listener; `hear` is told a dense layer and its input, `mask` says which rows are
    real, or if one is.
    """

    def listen(call: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        x, *rest = args or (kwargs.pop(next(iter(kwargs))),)
        if isinstance(layer, nn.BatchNorm | nnx.BatchNorm):
            if x.shape[0] % mask.shape[0] == 0:  # else these are no rows of the batch
                rows = jnp.repeat(mask, x.shape[0] // mask.shape[0])
                kwargs.setdefault("mask", rows.reshape(-1, *[1] * (x.ndim - 1)))
        elif isinstance(layer, nn.Conv | nnx.Conv):
            if layer.conv_general_dilated in (None, lax.conv_general_dilated):
                object.__setattr__(layer, "conv_general_dilated", conv_general_dilated)
        elif hasattr(layer, "axis_name"):
            return _masked_norm(call, layer, mask, x, *rest, **kwargs)
        else:
            hear(layer, x)
        return call(x, *rest, **kwargs)

    return listen


def _masked_norm(
    call: Callable[..., Any],
    layer: Any,
    real: Array,
    x: Array,
    state: Any,
    *,
    inference: Any = None,
    key: Any = None,
) -> tuple[Array, Any]:
    """Equinox's batch norm of one example [c, ...] of a vectorized batch, with statistics of the
    real examples.

    It takes means over all examples. So padding becomes the real mean, and real examples are spread
    around it: their variance over all is then that of the real ones. As the layer is affine, its
    outputs are drawn together again.
    """
    if layer.inference if inference is None else inference:
        return call(x, state, inference=True)
    share = lax.pmean(real.astype(x.dtype), layer.axis_name)

    def mean(values: Array) -> Array:
        own = jnp.mean(values, tuple(range(1, values.ndim)), keepdims=True)
        return lax.pmean(jnp.where(real, own, 0), layer.axis_name) / share

    center = mean(x)
    spread = lax.rsqrt(share)
    outputs, state = call(
        jnp.where(real, center + spread * (x - center), center), state, inference=False
    )
    center = mean(outputs)
    return center + (outputs - center) / spread, state


def _last(heard: Sequence[Array], ndim: int) -> Array | None:
    return heard[-1] if heard and heard[-1].ndim == ndim else None


def _name(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((one,), simple=True) for one in path) or ("value",)


def _by_name(tree: PyTree) -> PyTree:
    """Nested dicts of a tree's leaves, all of floating point as clients average them."""
    return unflatten_dict(
        {_name(path): 1.0 * leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    )


def _restored(like: PyTree, named: PyTree) -> PyTree:
    """Return the tree of which `_by_name` made nested dicts; counts and marks may have become
    means.
    """
    flat = flatten_dict(named)

    def leaf(path: tuple[Any, ...], kind: Any) -> Array:
        values = flat[_name(path)]
        return (
            values
            if jnp.issubdtype(kind.dtype, jnp.floating)
            else jnp.round(values).astype(kind.dtype)
        )

    return jax.tree_util.tree_map_with_path(leaf, like)


@contextmanager
def _called(train: bool) -> Iterator[None]:
    """Says of an error in a network's code when the network was called."""
    try:
        yield
    except Exception as error:
        if (said := blame(error)) is None:
            raise
        when = "in training" if train else "in evaluation, where it gets no key"
        raise ValueError(f"the network cannot be called {when}: {said}") from error


def _check(model: Model, num_classes: int, input_shape: Shape) -> None:
    """Try a network with a few examples, in evaluation with numbers too."""

    def outputs(key: PRNGKeyArray, train: bool) -> tuple[Any, Any, Any]:
        params, state = model.init(key)
        inputs = jax.random.uniform(key, (_ROWS, *input_shape))
        logits, features, _ = model.apply(
            params, state, inputs, train=train, **{"key": key} if train else {}
        )[0]
        alone = (
            logits if train else model.apply(params, state, inputs[:1], train=False, key=key)[0][0]
        )
        broken = jax.tree.map(lambda x: ~jnp.all(jnp.isfinite(x)), params)
        return (logits, features), alone, broken

    for train in (False, True):
        with _called(train):
            (logits, features), _, _ = jax.eval_shape(
                functools.partial(outputs, train=train), jax.random.key(0)
            )
        wanted = (_ROWS, num_classes if model.has_class_scores else 0)
        if getattr(logits, "shape", None) != wanted or (
            features is not None and features.shape[:-1] != (_ROWS,)
        ):
            came = " and ".join(
                str(getattr(x, "shape", type(x).__name__))
                for x in (logits, features)
                if x is not None
            )
            raise ValueError(
                f"for {_ROWS} examples of {num_classes} classes the network returned logits (and "
                f"features) of shape {came}; {wanted} has to come, and [{_ROWS}, any number] for "
                "features"
            )
    with jax.ensure_compile_time_eval():
        (logits, _), alone, broken = jax.device_get(
            jax.jit(outputs, static_argnums=1)(jax.random.key(0), False)
        )
    if not np.isfinite(logits).all():
        names = [".".join(name) for name, is_broken in flatten_dict(broken).items() if is_broken]
        where = f", as do its parameters {', '.join(names[:3])}" if names else ""
        raise ValueError(
            f"for inputs from 0 to 1 the network returns NaN or infinity at initialization{where}"
        )
    if (abs(logits[:1] - alone) > 1e-3 * (1 + abs(logits).max())).any():
        raise ValueError(
            "in evaluation the network's output for an example is random, or changes with the "
            "rest of the batch: batch norm or dropout act as in training; let it take one of "
            f"{', '.join((*_TRAIN, *_EVALUATE))}"
        )
