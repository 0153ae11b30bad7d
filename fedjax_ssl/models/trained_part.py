"""Networks of which a part is trained: the head, low-rank pairs beside kernels, or what a pattern
names.

`part_of` makes of a network one whose parameters are those that are trained, and nothing else. The
rest, its `Frozen`, exists once: `Model.part` says how it starts and binds it to the network, with
arrays or with arguments of a traced program.
"""

import re
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.interpreters import partial_eval
from jaxtyping import Array, PRNGKeyArray, PyTree

from fedjax_ssl.keys import named_key
from fedjax_ssl.models.layers import Dense
from fedjax_ssl.models.model import Model, Outputs
from fedjax_ssl.models.normalization import Norm

ALL = "all"
HEAD = "head"
LORA = "lora"  # the mode, and where its pairs are among the parameters
KERNELS = ("kernel", "weight")  # names of what a layer multiplies with
DENSE = (nn.Dense, Dense)
REWRITES = (nn.WeightNorm, nn.SpectralNorm)  # the layer in them gets another kernel
Place = tuple[str, ...]
Flat = dict[Place, Any]


class Frozen(NamedTuple):
    """The arrays of a network that are not trained, as nested dicts."""

    params: PyTree
    state: PyTree  # batch statistics


class TrainedPart(NamedTuple):
    """Of a network whose parameters are a part of another one's."""

    start: Callable[[PRNGKeyArray], Frozen]  # the key of `init` -> what is not trained
    bind: Callable[[Frozen], Model]  # -> the network that can be applied
    whole: Callable[[Frozen, PyTree, PyTree], tuple[PyTree, PyTree]]
    # ^ (frozen, params, state) -> all parameters and batch statistics, pairs added to their kernels
    of: Callable[[Callable[[Model], Model]], Model]
    # ^ the same part of another network, which a function makes of the whole one
    parameters: int  # of the whole network
    moves_features: bool  # whether anything that is trained comes before the features


def part_of(
    model: Model,
    input_shape: tuple[int, ...],
    train: str,
    rank: int = 4,
    layers: str = "*",
    scale: float = 1.0,
) -> Model:
    """Make the network of which a part is trained.

    What is not trained works as in evaluation: batch norm by its running statistics, which stay.
    Where nothing but the head is trained, or where all batch statistics are frozen, the whole
    network does, dropout included.

    Args:
        model: the whole network.
        input_shape: shape of one example.
        train: "all"; "head": what comes after `Outputs.features`; "lora": the head, and beside the
            kernels of `layers` a pair of matrices each, whose product is added to the kernel
            (Hu et al., LoRA, ICLR 2022); or names of layers or arrays with commas between, in which
            * stands for anything: "block11,norm,head", "block1?.attention.*".
        rank: of the pairs.
        layers: names of layers as in `train`; pairs are for their kernels, the head's left out.
        scale: factor of the pairs' products.

    Returns:
        A network that is applied once it is bound: `model.part.bind(model.part.start(key))`.

    Raises:
        ValueError: a name matches nothing, the network has no head or no such layers, a rank is
            larger than a layer, or some of the layers with batch norm of a network of nnx or
            equinox are frozen and others are not.

    Example:
        >>> import jax
        >>> from fedjax_ssl import models
        >>> options = {"num_classes": 3, "input_shape": (5,), "hidden": (8,)}
        >>> model = models.build("mlp", **options, train="head")
        >>> params, _ = model.init(jax.random.key(0))
        >>> list(params), models.count_parameters(params)
        (['head'], 27)
        >>> bound = model.part.bind(model.part.start(jax.random.key(0)))
        >>> bound.apply(params, {}, jax.numpy.ones((2, 5)), train=False)[0].logits.shape
        (2, 3)
    """
    if train == ALL:
        return model
    shapes, statistics = map(flatten_dict, jax.eval_shape(model.init, jax.random.key(0)))
    dense: set[Place] = set()
    with nn.intercept_methods(partial(_find_dense, dense)):
        chosen, pairs = _choose(model, input_shape, shapes, train, rank, layers)
    # These are applied beside their layer. A kernel that both are added to would exist once for
    # every client, and so would its gradient. A kernel with more axes is a stack, as of `nn.scan`.
    beside = {place for place in pairs if place[:-1] in dense and shapes[place].ndim == 2}
    moving = {place for place in statistics if _belongs(place, chosen)}
    still = statistics.keys() - moving
    quiet = train == HEAD or (bool(still) and not moving)
    mixed = bool(still) and bool(moving)

    def init(key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        params, state = map(flatten_dict, model.init(key))
        own = _only(params, chosen)
        for place, (rows, columns) in pairs.items():
            kind = params[place].dtype
            drawn = jax.random.normal(named_key(key, f"lora {place}"), (rows, rank), kind)
            own[(LORA, *place, "left")] = drawn * rows**-0.5
            own[(LORA, *place, "right")] = jnp.zeros((rank, columns), kind)
        return unflatten_dict(own), unflatten_dict(_only(state, moving))

    def start(key: PRNGKeyArray) -> Frozen:
        params, state = map(flatten_dict, model.init(key))
        rest = _only(params, params.keys() - chosen)
        return Frozen(unflatten_dict(rest), unflatten_dict(_only(state, still)))

    def whole(
        frozen: Frozen, params: PyTree, state: PyTree, added: Collection[Place] = pairs
    ) -> tuple[PyTree, PyTree]:
        own = flatten_dict(params)
        merged = flatten_dict(frozen.params)
        merged |= {place: values for place, values in own.items() if place[0] != LORA}
        for place in added:
            left, right = pair_of(own, place)
            kernel = merged[place]
            merged[place] = kernel + scale * (left @ right).reshape(kernel.shape)
        everything = {**flatten_dict(frozen.state), **flatten_dict(state)}
        return unflatten_dict(merged), unflatten_dict(everything)

    def pair_of(own: Flat, place: Place) -> tuple[Array, Array]:
        return own[(LORA, *place, "left")], own[(LORA, *place, "right")]

    def apply(
        frozen: Frozen, params: PyTree, state: PyTree, inputs: Array, *, train: bool, **more: Any
    ) -> tuple[Outputs, PyTree]:
        learns = train and not quiet
        own = flatten_dict(params)
        factors = {place[:-1]: pair_of(own, place) for place in beside}
        everything = whole(frozen, params, state, pairs.keys() - beside)
        quiet_layers = _layers_of(still) if learns and mixed else set()
        with (
            nn.intercept_methods(partial(_with_pair, factors, scale)),
            nn.intercept_methods(partial(_as_in_evaluation, quiet_layers, set())),
        ):
            outputs, new = model.apply(*everything, inputs, train=learns, **more)
        return outputs, unflatten_dict(_only(flatten_dict(new), moving))

    def unbound(*given: Any, **more: Any) -> Any:
        raise ValueError(
            f"model.train is {train!r}, and the rest of the network is not there; "
            "model.part.bind(model.part.start(key)) gives the network with it"
        )

    def weights() -> PyTree:
        return unflatten_dict(_only(flatten_dict(model.batch_weights()), moving))

    own = model._replace(
        init=init,
        apply=unbound,
        batch_weights=weights,
    )
    if mixed:
        _check_mixed(model, input_shape, _layers_of(still))
    how = (input_shape, train, rank, layers, scale)
    part = TrainedPart(
        start=start,
        bind=lambda frozen: own._replace(part=part, apply=partial(apply, frozen)),
        whole=whole,
        of=lambda change: part_of(change(model), *how),
        parameters=sum(leaf.size for leaf in shapes.values()),
        moves_features=train != HEAD,
    )
    return own._replace(part=part)


def _only(flat: Flat, places: Collection[Place]) -> Flat:
    return {place: values for place, values in flat.items() if place in places}


def _within(place: Place, layer: Place) -> bool:
    return place[: len(layer)] == layer


def _belongs(statistic: Place, chosen: Collection[Place]) -> bool:
    """Whether a layer of these batch statistics has a parameter that is trained; in linen, a
    network of a user's own has its collection in front of the place.
    """
    layers = (statistic[:-1], statistic[1:-1])
    return any(_within(place, layer) for layer in layers if layer for place in chosen)


def _layers_of(statistics: Collection[Place]) -> set[Place]:
    return {layer for place in statistics for layer in (place[:-1], place[1:-1])}


def _choose(
    model: Model,
    input_shape: tuple[int, ...],
    shapes: Flat,
    train: str,
    rank: int,
    layers: str,
) -> tuple[set[Place], dict[Place, tuple[int, int]]]:
    """Choose the arrays that are trained, and kernels that have a pair, with its rows and
    columns.
    """
    if train not in (HEAD, LORA):
        return _matching(train, shapes, "train"), {}
    head = _head(model, input_shape)
    if not head:
        raise ValueError(
            f"model.train is {train!r}, and this network has no head: no parameter comes after "
            f"its features. Name what is trained, of {_names(shapes)}"
        )
    if train == HEAD:
        return head, {}
    kernels = {
        place: leaf
        for place, leaf in shapes.items()
        if place[-1] in KERNELS and leaf.ndim > 1 and place not in head
    }
    if not kernels:
        raise ValueError(
            "model.train is 'lora', and this network has no kernels but its head's: no arrays of "
            f"two axes or more named {' or '.join(KERNELS)}. Its parameters are {_names(shapes)}"
        )
    pairs = {}
    for place in sorted(_matching(layers, kernels, "lora_layers")):
        leaf = kernels[place]
        rows = leaf.shape[0] if place[-1] == "weight" else leaf.size // leaf.shape[-1]
        columns = leaf.size // rows
        if rank > min(rows, columns):
            raise ValueError(
                f"model.lora_rank is {rank}, but layer {_name(place[:-1])!r} is a matrix of "
                f"{rows} x {columns}; use at most {min(rows, columns)}, or leave the layer out of "
                "model.lora_layers"
            )
        pairs[place] = rows, columns
    return head, pairs


def _matching(patterns: str, shapes: Flat, option: str) -> set[Place]:
    """Find the arrays that patterns name, or whose layers they name."""
    found: set[Place] = set()
    for pattern in filter(None, re.split(r"\s*,\s*", patterns.strip())):
        some = {
            place
            for place in shapes
            if fnmatchcase(_name(place), pattern) or fnmatchcase(_name(place), f"{pattern}.*")
        }
        if not some:
            raise ValueError(
                f"model.{option} names {pattern!r}, which matches none of {_names(shapes)}"
            )
        found |= some
    if not found:
        raise ValueError(f"model.{option} is empty; name some of {_names(shapes)}")
    return found


def _name(place: Place) -> str:
    return ".".join(place)


def _names(shapes: Flat) -> str:
    """List the layers that a person can name."""
    layers = list(dict.fromkeys(place[0] for place in shapes))
    return ", ".join(layers[:12]) + ", ..." * (len(layers) > 12)


def _head(model: Model, input_shape: tuple[int, ...]) -> set[Place]:
    """Find the parameters that features do not depend on."""
    params, state = jax.eval_shape(model.init, jax.random.key(0))

    def features(params: PyTree) -> Array:
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
        inputs = jnp.zeros((1, *input_shape), jnp.result_type(float))
        return model.apply(params, blank, inputs, train=False)[0].features

    traced = jax.make_jaxpr(features)(params)
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True])
    flat = flatten_dict(jax.tree.unflatten(jax.tree.structure(params), used))
    return {place for place, is_used in flat.items() if not is_used}


def _find_dense(
    found: set[Place],
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
) -> Any:
    """Note which layers of linen multiply with their kernel and do nothing else with it."""
    if _is_dense(context):
        found.add(tuple(context.module.path))
    before = set(found)
    outputs = call(*args, **kwargs)
    if isinstance(context.module, REWRITES):
        found.intersection_update(before)
    return outputs


def _is_dense(context: nn.module.InterceptorContext) -> bool:
    # A subclass may do more than the product, and its call is within another one of its own.
    return type(context.module) in DENSE and context.method_name == "__call__"


def _with_pair(
    factors: dict[Place, tuple[Array, Array]],
    scale: float,
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
) -> Any:
    """Call a layer of linen; a dense one with a pair adds what its inputs are by the pair."""
    layer = context.module
    outputs = call(*args, **kwargs)
    if not _is_dense(context) or tuple(layer.path) not in factors:
        return outputs
    given = args[0] if args else kwargs["inputs"]
    inputs = given.astype(outputs.dtype)
    left, right = (one.astype(outputs.dtype) for one in factors[tuple(layer.path)])
    if isinstance(layer, Dense):  # whose kernel is [outputs, inputs]
        return outputs + scale * (inputs @ right.T @ left.T)
    return outputs + scale * (inputs @ left @ right)


def _as_in_evaluation(
    layers: set[Place],
    found: set[Place],
    call: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
) -> Any:
    """Call a layer of linen; batch norm among `layers` by its running statistics."""
    layer = context.module
    if context.method_name != "__call__" or tuple(layer.path) not in layers:
        return call(*args, **kwargs)
    if isinstance(layer, Norm):
        found.add(tuple(layer.path))
        inputs, _, mask = args
        return call(inputs, False, mask)
    if isinstance(layer, nn.BatchNorm):
        found.add(tuple(layer.path))
        # It refuses to be told twice; the layer lives for this call alone.
        object.__setattr__(layer, "use_running_average", True)
        return call(*args, **{k: v for k, v in kwargs.items() if k != "use_running_average"})
    return call(*args, **kwargs)


def _check_mixed(model: Model, input_shape: tuple[int, ...], layers: set[Place]) -> None:
    """Refuse a network in which layers cannot be told from each other while it trains."""
    found: set[Place] = set()

    def once(key: PRNGKeyArray) -> Any:
        inputs = jnp.zeros((2, *input_shape), jnp.result_type(float))
        return model.apply(*model.init(key), inputs, train=True, key=key)

    with nn.intercept_methods(partial(_as_in_evaluation, layers, found)):
        jax.eval_shape(once, jax.random.key(0))
    if not found:
        raise ValueError(
            "model.train names some layers with batch norm and leaves others out, which needs a "
            "network of flax.linen; name all of them or none"
        )
