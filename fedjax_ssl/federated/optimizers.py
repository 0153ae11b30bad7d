"""Federated optimizers: corrections of local training, and the step from the clients' results to
the next global model.

Parameters reach these functions as a `dict` of group -> few arrays
(`fedjax_ssl.federated.packing`); private groups are not among them.

References:
    FedAvg: McMahan et al., AISTATS 2017. FedProx: Li et al., MLSys 2020. FedOpt: Reddi et al., ICLR
    2021. SCAFFOLD: Karimireddy et al., ICML 2020, Algorithm 1 with option II. c is the server's
    variate, c_i client i's.
"""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import In, checked
from fedjax_ssl.federated.contract import Grouped, RoundContext
from fedjax_ssl.federated.local_optimizer import standard_promotion
from fedjax_ssl.federated.messages import Total

PyTree = Any


class LocalSettings(NamedTuple):
    """The clients' optimizer, as far as a federated optimizer needs it; numbers may be traced."""

    name: str = "sgd"  # name in `config.optimizer`
    learning_rate: float | Array = 0.1  # learning rate at the start
    momentum: float | Array = 0.0  # in [0, 1)
    nesterov: bool = False  # Nesterov momentum
    clip_norm: float | Array | None = None  # largest norm of a gradient; None: no clipping


PLAIN_SGD = LocalSettings()


# A client's part of the sums: weights by group, change times these, and its report.
Added = tuple[dict[str, Array], Grouped, PyTree]


class Local(NamedTuple):
    """Local training of one client, for its federated optimizer."""

    anchor: Grouped  # parameters as received
    params: Grouped  # parameters after local training; in `add`, as uploaded, and so is `change`
    change: Grouped  # `params` minus `anchor`
    weights: dict[str, Float[Array, ""]]
    # ^ weights by group; 0 if the client trained nothing of it
    num_steps: Int[Array, ""]  # local steps that it took
    learning_rate: Float[Array, ""]  # learning rate of its local steps
    sent_by_optimizer: PyTree  # the same as in `Client`
    kept: PyTree  # its state since its last round


class Numbers(NamedTuple):
    """Numbers that a federated optimizer sends to and from each client besides the model."""

    down: int  # numbers to a client
    up: int  # numbers from a client


def _same_for_all(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
    return common


class FederatedOptimizer(NamedTuple):
    """Functions of a federated optimizer. They are pure, and combine with every method."""

    # At the server.
    init: Callable[[Grouped], PyTree]  # parameters -> state
    apply: Callable[[PyTree, Grouped, Total, RoundContext], tuple[Grouped, PyTree]]
    # ^ (state, global parameters, sum of uploads, round) -> (global parameters, state)
    send: Callable[[PyTree, PyTree, RoundContext], PyTree] = lambda state, kept, context: ()
    # ^ (state, kept states of the cohort, round) -> `Client.sent_by_optimizer`, leading axis p;
    # called `received` below
    keep: Callable[[Grouped], PyTree] = lambda params: ()
    # ^ parameters -> first state that a client keeps
    # At a client.
    start: Callable[[PyTree, PyTree, Grouped], Grouped] = _same_for_all
    # ^ (state, received, global parameters) -> parameters that this client starts from
    correct: Callable[[Grouped, Grouped, Grouped, PyTree], Grouped] = (
        lambda gradient, params, anchor, received: gradient
    )
    # ^ (gradient, params, anchor, received) -> gradient, all of one group at a time except
    # `received`
    report: Callable[[Local], tuple[PyTree, PyTree]] = lambda local: ((), ())
    # ^ -> (upload besides the change, state to keep from now on, like `keep`)
    add: Callable[[Local, PyTree], Added] = lambda local, reported: (
        local.weights,
        weighted(local.change, local.weights),
        reported,
    )
    # ^ (a client as it arrived at the server, its report) -> its part of the sums over the cohort:
    # weights by group, change, report
    alone: bool = False
    # ^ no federation: every client continues with its own model, and nothing is averaged
    num_groups: int = 1  # parts of a cohort that are averaged separately
    # For the count of bytes.
    sends: Callable[[Grouped], Numbers] = lambda params: Numbers(0, 0)
    # ^ shared parameters -> numbers besides the model


def weighted(change: Grouped, weights: dict[str, Array]) -> Grouped:
    """Return a client's change times its weights."""
    return {
        group: jax.tree.map(lambda moved, own=weights[group]: own * moved, tree)
        for group, tree in change.items()
    }


def weighted_mean(totals: Grouped, weights: dict[str, Float[Array, ""]]) -> Grouped:
    """Return weighted sums divided by the sum of weights of each group; 0 if that sum is 0."""

    def divide(total: PyTree, weight: Float[Array, ""]) -> PyTree:
        return jax.tree.map(lambda leaf: mean_scale(weight) * leaf, total)

    return {group: divide(total, weights[group]) for group, total in totals.items()}


def mean_scale(weight: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the factor that turns a weighted sum into the mean, from the sum of weights; 0 if that
    sum is 0.
    """
    return jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)


def fedavg() -> FederatedOptimizer:
    """FedAvg: the next model is the weighted mean of the clients' models.

    Written as anchor + weighted mean of the clients' changes, so that a round in which nobody
    trained changes nothing.
    """
    return fedopt(None)


def local() -> FederatedOptimizer:
    """No federation: every client trains its own model on its own examples, all clients in one
    program.
    """
    return fedavg()._replace(alone=True)


@checked
def fedprox(mu: Annotated[float | Array, In("[0, inf)")] = 0.01) -> FederatedOptimizer:
    """FedProx: FedAvg whose local objective has mu/2 ||w - w_global||^2 added; mu = 0 is FedAvg.

    Args:
        mu: pull towards the global model.

    Raises:
        ValueError: if mu is negative.
    """
    return fedavg()._replace(correct=proximal(mu))


def proximal(mu: float | Array) -> Callable[[Grouped, Grouped, Grouped, PyTree], Grouped]:
    """Return the correction by the gradient of mu/2 ||w - w_global||^2."""

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return jax.tree.map(lambda g, w, w0: g + mu * (w - w0), gradient, params, anchor)

    return correct


def fedopt(server_optimizer: optax.GradientTransformation | None) -> FederatedOptimizer:
    """FedOpt: the mean change of the clients is a pseudo-gradient for a server-side optimizer.

    Args:
        server_optimizer: for example `optax.adam(1e-2, b1=0.9, b2=0.99, eps=1e-3)` for FedAdam,
            `optax.yogi` for FedYogi, or `optax.sgd(1.0, momentum=0.5)` for FedAvgM (server
            momentum: v <- momentum v + g, W <- W - rate v for the pseudo-gradient g; Hsu et al.,
            2019). None applies the mean change as it is, which is FedAvg.
    """

    def init(params: Grouped) -> PyTree:
        return () if server_optimizer is None else server_optimizer.init(params)

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        change = weighted_mean(total.update, total.weights)
        if server_optimizer is None:
            return jax.tree.map(jnp.add, anchor, change), state
        updates, new_state = standard_promotion(server_optimizer).update(
            jax.tree.map(jnp.negative, change), state, anchor
        )
        moved = optax.apply_updates(anchor, updates)
        trained = jnp.any(jnp.stack(list(total.weights.values())) > 0)
        return jax.tree.map(
            lambda new, old: jnp.where(trained, new, old), (moved, new_state), (anchor, state)
        )

    return FederatedOptimizer(init, apply)


_SECOND_MOMENTS: dict[str, Callable[..., Array]] = {  # (v, squared change, beta2) -> v
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * jnp.sign(v - square),
    "adagrad": lambda v, square, beta2: v + square,
}


def adaptive(
    rule: str, rate: float | Array, beta1: float | Array, beta2: float | Array, tau: float | Array
) -> optax.GradientTransformation:
    """Return the adaptive server step of Reddi et al., algorithm 2: w <- w + rate m / (sqrt(v) +
    tau), without bias correction.

    m <- beta1 m + (1 - beta1) change, and v follows the rule; both start at 0, as in FLamby (the
    paper: v at tau^2).

    Args:
        rule: "adam", "yogi" or "adagrad".
        rate: length of the steps.
        beta1: in [0, 1).
        beta2: in [0, 1); not of "adagrad".
        tau: above 0.
    """

    def init(params: PyTree) -> PyTree:
        return jax.tree.map(jnp.zeros_like, (params, params))

    def update(gradient: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state[0], gradient)
        square = jax.tree.map(
            lambda v, g: _SECOND_MOMENTS[rule](v, g * g, beta2), state[1], gradient
        )
        return jax.tree.map(lambda m, v: -rate * m / (jnp.sqrt(v) + tau), mean, square), (
            mean,
            square,
        )

    return optax.GradientTransformation(init, update)


class _MeanSteps(NamedTuple):
    """Sum of the mean local steps of SCAFFOLD's clients."""

    update: Grouped
    clients: Float[Array, ""]  # number of clients that moved
    weight: Any = ()  # sum of their weights, if variates are weighted


@checked
def scaffold(
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 1.0,
    weighted_variates: bool = False,
    *,
    local: LocalSettings = PLAIN_SGD,
) -> FederatedOptimizer:
    """SCAFFOLD, for local SGD without momentum.

    A local step is w <- w - rate (g - c_i + c). Afterwards c_i+ = c_i - c + (w_global - w_i) /
    (steps * rate), the model moves by `server_learning_rate` times the weighted mean change of the
    clients, and c by 1/C times the sum of c_i+ - c_i over the clients that trained. All variates
    start at 0. A client that was not drawn, took no step or was dropped keeps its variate. Every
    client keeps one vector of the model's size, the server another.

    Local optimizers that do more than subtract rate times gradient (momentum, Adam, clipping) are
    refused: with them, (w_global - w_i) / (steps * rate) is not a mean gradient.

    Args:
        server_learning_rate: length of the server's step along the mean change; 1 adopts the mean
            model, as FedAvg does.
        weighted_variates: weight the variates like the models, as in FLamby. Otherwise all clients
            count alike, as in the paper, which pulls a federation with weighted models to the
            unweighted mean gradient.
        local: the clients' optimizer.

    Raises:
        ValueError: if the rate is negative, or the clients' optimizer is another.
    """
    plain = isinstance(local.momentum, (int, float)) and local.momentum == 0
    if local.name != "sgd" or not plain or local.clip_norm is not None:
        raise ValueError(
            "scaffold's control variates are mean gradients of plain SGD, but config.optimizer "
            f"has name={local.name!r}, momentum={local.momentum}, clip_norm={local.clip_norm}; use "
            "name='sgd', momentum=0.0 and clip_norm=None, or another federated optimizer"
        )

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> PyTree:
        """c - c_i: both places that use the variates need their difference alone."""
        return jax.tree.map(jnp.subtract, state, kept)

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return {group: jax.tree.map(jnp.add, g, received[group]) for group, g in gradient.items()}

    def report(local: Local) -> tuple[PyTree, PyTree]:
        distance = local.num_steps.astype(local.learning_rate.dtype) * local.learning_rate
        trained = jnp.any(jnp.stack(list(local.weights.values())) > 0)
        # at a rate of 0, the change says nothing about the gradient
        moved = trained & (distance > 0)
        scale = jnp.where(moved, 1.0 / jnp.where(moved, distance, 1.0), 0.0)
        # mean local step
        update = jax.tree.map(lambda change: -(scale * change), local.change)
        steps = _MeanSteps(update, moved.astype(scale.dtype))
        if weighted_variates:
            own = jnp.where(moved, jnp.max(jnp.stack(list(local.weights.values()))), 0.0)
            steps = _MeanSteps(jax.tree.map(lambda u: own * u, update), steps.clients, own)
        variate = jax.tree.map(
            lambda u, difference, old: jnp.where(moved, u - difference, old),
            update,
            local.sent_by_optimizer,
            local.kept,
        )
        return steps, variate

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        change = weighted_mean(total.update, total.weights)
        params = jax.tree.map(lambda w, d: w + server_learning_rate * d, anchor, change)
        steps: _MeanSteps = total.reported
        update = steps.update
        if weighted_variates:
            scale = steps.clients * mean_scale(steps.weight)
            update = jax.tree.map(lambda total: scale * total, update)
        # c_i+ - c_i is the mean step minus c.
        variate = jax.tree.map(
            lambda c, total: c + (total - steps.clients * c) / context.num_clients, state, update
        )
        return params, variate

    def nothing(params: Grouped) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def sends(params: Grouped) -> Numbers:
        size = sum(values.size for values in jax.tree.leaves(params))
        return Numbers(down=size, up=size)  # c, and c_i+ - c_i: clients know their own variate

    return FederatedOptimizer(
        nothing, apply, send=send, keep=nothing, correct=correct, report=report, sends=sends
    )
