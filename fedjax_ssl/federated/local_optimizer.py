"""Local optimizers by name: three from the papers, and any "module:function", such as
"optax:adamw".

The learning rate is the round's, which is traced: a whole sweep over learning rates is one program.
The three from the papers have no learning rate of their own: their update is multiplied by the
round's. A named function is called with the rate in every trace, so an optimizer that is not linear
in the rate is exact too.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_ssl.checks import In, checked, is_zero
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.registry import Registry, UsedWith

PyTree = Any
_Decay = Annotated[float | Array, In("[0, inf)")]
# Functions of optax that would run but do something else.
_LEFT_OUT = {
    **dict.fromkeys(("dpsgd", "noisy_sgd"), "its noise would be the same at all clients"),
    "galore": "it projects whole matrices, and was not tried",
    "rprop": "its steps do not follow the learning rate of the round",
    **dict.fromkeys(
        ("schedule_free_adamw", "schedule_free_sgd"),
        "it predicts with other weights than it trains",
    ),
}
# Functions of optax that need whole layers.
BY_LAYER = ("adafactor", "fromage", "lamb", "lars", "muon", "novograd", "sm3")


def _sgd(
    momentum: Annotated[float | Array, In("[0, 1)")] = 0.0,
    nesterov: Annotated[bool, UsedWith("momentum")] = False,
    weight_decay: _Decay = 0.0,
) -> optax.GradientTransformation:
    """Gradient descent, with optional momentum.

    Args:
        momentum: v <- momentum * v + g.
        nesterov: Nesterov's form of momentum.
        weight_decay: L2 penalty, added to the gradient of all parameters.
    """
    step = optax.identity() if is_zero(momentum) else optax.trace(momentum, nesterov)
    return optax.chain(optax.add_decayed_weights(weight_decay), step)


def _adam(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: _Decay = 0.0) -> Any:
    """Adam, with its usual moments; optax:adamw has decoupled weight decay.

    Args:
        b1: share of the mean gradient that is kept from step to step.
        b2: share of the mean square that is kept.
        eps: added to the root of the mean square.
        weight_decay: L2 penalty, added to the gradient of all parameters.
    """
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.scale_by_adam(b1, b2, eps))


def _rmsprop(
    decay: float = 0.9, eps: float = 1e-7, weight_decay: _Decay = 0.0
) -> optax.GradientTransformation:
    """RMSProp: v <- 0.9 v + 0.1 g^2, without momentum or bias correction, eps beside the root.

    Args:
        decay: share of the mean square that is kept from step to step.
        eps: added to the root of the mean square.
        weight_decay: L2 penalty, added to the gradient of all parameters.
    """
    step = optax.scale_by_rms(decay=decay, eps=eps, eps_in_sqrt=False)
    return optax.chain(optax.add_decayed_weights(weight_decay), step)


OPTIMIZERS: Registry[optax.GradientTransformation] = Registry(
    "optimizer",
    {"sgd": _sgd, "adam": _adam, "rmsprop": _rmsprop},
    given=("learning_rate", "facts"),
    makes=optax.GradientTransformation,
)


class LocalOptimizer(NamedTuple):
    """An optimizer that gets the learning rate at each step."""

    init: Callable[[PyTree], PyTree]  # parameters -> state
    update: Callable[[PyTree, PyTree, PyTree, Float[Array, ""]], tuple[PyTree, PyTree]]
    # ^ (gradient, state, parameters, rate) -> (change to add to the parameters, state)
    by_layer: bool = False
    # ^ it may need the network's own arrays, not the packed ones
    own_rate: bool = False  # it ignores the run's learning rate


@checked
def local_optimizer(
    name: str = "sgd",
    *,
    clip_norm: Annotated[float | Array | None, In("(0, inf)")] = None,
    facts: Any = None,
    **options: Any,
) -> LocalOptimizer:
    """Build the client's optimizer; its state starts anew in every round.

    Args:
        name: one of `OPTIMIZERS`, or "module:function", as "optax:adamw", for a function of
            `learning_rate`, and of options, that returns an `optax.GradientTransformation`.
        clip_norm: the gradient of a parameter group is multiplied by min(1, clip_norm / (||g||_2 +
            1e-6)) before weight decay is added; None: it is not.
        facts: the run's `fedjax_ssl.federated.Facts`, for a function that has a parameter of this
            name.
        **options: the optimizer's own options.

    Raises:
        ValueError: an unknown name or option, a value outside its range, or an optimizer that needs
            more than gradients and parameters.

    Example:
        >>> from fedjax_ssl.federated import local_optimizer
        >>> adamw = local_optimizer("optax:adamw", weight_decay=0.01)
        >>> weights = {"w": jnp.ones(2)}
        >>> state = adamw.init(weights)
        >>> added, _ = adamw.update({"w": jnp.ones(2)}, state, weights, jnp.float32(0.1))
        >>> [round(float(one), 4) for one in added["w"]]
        [-0.101, -0.101]
    """
    own = ":" in name
    module, _, function = name.partition(":")
    if module.partition(".")[0] == "optax" and function in _LEFT_OUT:
        raise ValueError(f"optimizer {name!r} cannot be used: {_LEFT_OUT[function]}")
    clip = () if clip_norm is None else (_clip(clip_norm),)
    takes_rate = OPTIMIZERS.takes(name, "learning_rate")
    if OPTIMIZERS.takes(name, "facts"):
        options["facts"] = facts

    def at(rate: Any) -> optax.GradientTransformation:
        given = {"learning_rate": rate} if takes_rate else {}
        return standard_promotion(optax.chain(*clip, OPTIMIZERS.build(name, **given, **options)))

    def update(
        gradient: PyTree, state: PyTree, params: PyTree, rate: Array
    ) -> tuple[PyTree, PyTree]:
        updates, state = at(rate).update(gradient, state, params)
        return updates if own else jax.tree.map(lambda u: -rate * u, updates), state

    found = LocalOptimizer(at(1.0).init, update, by_layer=own, own_rate=own and not takes_rate)
    _check_step(name, found)
    return found


def _check_step(name: str, optimizer: LocalOptimizer) -> None:
    """Raise ValueError for an optimizer whose step needs more than gradients and parameters, or
    changes the form of its state.
    """
    from fedjax_ssl.own_code import where

    place = f" ({where(OPTIMIZERS.builder(name))})" if ":" in name else ""
    # Only shapes are computed: a process chooses its threads after configs are resolved, before JAX
    # computes.
    weights, rate = jax.eval_shape(
        lambda: ({"model": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}}, jnp.zeros(()))
    )

    def step(weights: PyTree, rate: Array) -> tuple[PyTree, PyTree, PyTree]:
        state = optimizer.init(weights)
        return (state, *optimizer.update(weights, state, weights, rate))

    try:
        before, added, after = jax.eval_shape(step, weights, rate)
    except (TypeError, ValueError, NotImplementedError, jax.errors.JAXTypeError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(f"optimizer {name!r} cannot take a local step: {text}{place}") from error
    if _form(added) != _form(weights) or _form(before) != _form(after):
        raise ValueError(
            f"optimizer {name!r} returns updates or a state of another form than it was "
            f"given{place}"
        )


def _form(tree: PyTree) -> tuple[Any, ...]:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def descend(
    optimizer: LocalOptimizer,
    gradient: PyTree,
    state: PyTree,
    params: PyTree,
    rate: Float[Array, ""],
) -> tuple[PyTree, PyTree]:
    """Take a step: return (parameters, state of the optimizer)."""
    added, state = optimizer.update(gradient, state, params, rate)
    return optax.apply_updates(params, added), state


def at_rate(optimizer: LocalOptimizer, rate: float | Array) -> optax.GradientTransformation:
    """Return the optimizer at a fixed learning rate, in optax's form, where the update is added to
    the parameters.
    """
    return optax.GradientTransformation(
        optimizer.init, lambda g, s, w: optimizer.update(g, s, w, jnp.asarray(rate))
    )


def over_layers(
    optimizer: LocalOptimizer, groups: Callable[[], dict[str, PyTree]]
) -> LocalOptimizer:
    """Give an optimizer that needs whole layers the layers, if parameters come packed by group.

    Args:
        optimizer: returned unchanged if it does not need layers.
        groups: () -> parameters by group, only their shapes are read.
    """
    if not optimizer.by_layer:
        return optimizer
    inner = optimizer
    shapes = jax.eval_shape(groups)
    by_group = {
        g: packing(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree))
        for g, tree in shapes.items()
    }

    def unpacked(packed: PyTree) -> PyTree:
        return {group: by_group[group].unpack(arrays) for group, arrays in packed.items()}

    def update(
        gradient: PyTree, state: PyTree, params: PyTree, rate: Array
    ) -> tuple[PyTree, PyTree]:
        added, state = inner.update(unpacked(gradient), state, unpacked(params), rate)
        return {group: by_group[group].pack(tree) for group, tree in added.items()}, state

    return optimizer._replace(init=lambda params: inner.init(unpacked(params)), update=update)


def _clip(max_norm: float | Array) -> optax.GradientTransformation:
    """Clip gradients as PyTorch does. Its 1e-6 is visible in the results of SemiFL's code, and
    optax's clipping lacks it.
    """

    def clip(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        factor = jnp.minimum(1.0, max_norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda g: factor * g, updates)

    return optax.stateless(clip)


def standard_promotion(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return the same optimizer, usable under jax_numpy_dtype_promotion="strict", although optax
    mixes floats with step counts.
    """

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple:
        with jax.numpy_dtype_promotion("standard"):
            return optimizer.update(updates, state, params)

    return optax.GradientTransformation(optimizer.init, update)
