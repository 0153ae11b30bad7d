"""Federated optimizers: how local training is corrected and how clients' results become the next
global model.

Parameters reach these functions as a `dict` of group -> few arrays
(`fedjax_ssl.federated.packing`); private groups are not among them.

References:
    FedAvg: McMahan et al., AISTATS 2017. FedProx: Li et al., MLSys 2020. FedOpt: Reddi et al., ICLR
    2021. FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous
    Federated Optimization, NeurIPS 2020, sections 4 and 5. Client i takes tau_i steps, and a_i
    holds the weight of each step's gradient in its change. SCAFFOLD: Karimireddy et al., ICML 2020,
    Algorithm 1 with option II. c is the server's variate, c_i client i's. FedDyn: Acar et al.,
    Federated Learning Based on Dynamic Regularization, ICLR 2021, as its authors' code has it.
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
    """The clients' optimizer, as far as a federated one has to know it; numbers may be traced."""

    name: str = "sgd"  # of `config.optimizer`
    learning_rate: float | Array = 0.1  # at the start
    momentum: float | Array = 0.0  # in [0, 1)
    nesterov: bool = False  # Nesterov momentum
    clip_norm: float | Array | None = None  # largest norm of a gradient; None: any


PLAIN_SGD = LocalSettings()


# what is added up of a client: weights by group, change times them, what it reported
Added = tuple[dict[str, Array], Grouped, PyTree]


class Local(NamedTuple):
    """One client's local training, as a federated optimizer sees it."""

    anchor: Grouped  # parameters as received
    params: Grouped  # parameters after local training; in `add` as uploaded, with the next one
    change: Grouped  # how far these are from the anchor
    weights: dict[str, Float[Array, ""]]
    # ^ by group; 0 if the client trained nothing of it
    num_steps: Int[Array, ""]  # local steps that it took
    learning_rate: Float[Array, ""]  # of its local steps
    sent_by_optimizer: PyTree  # as in `Client`
    kept: PyTree  # what it kept from its last round


class Numbers(NamedTuple):
    """Numbers that a federated optimizer sends to and from each client beside the model."""

    down: int  # to a client
    up: int  # from a client


def _same_for_all(state: PyTree, received: PyTree, common: Grouped) -> Grouped:
    return common


class FederatedOptimizer(NamedTuple):
    """Pure functions; combine with every method."""

    # At the server.
    init: Callable[[Grouped], PyTree]  # parameters -> state
    apply: Callable[[PyTree, Grouped, Total, RoundContext], tuple[Grouped, PyTree]]
    # ^ (state, global parameters, uploads in sum, round) -> (global parameters, state)
    send: Callable[[PyTree, PyTree, RoundContext], PyTree] = lambda state, kept, context: ()
    # ^ (state, what the cohort's clients keep, round) -> `Client.sent_by_optimizer`, leading axis
    # p; the functions below call it received
    keep: Callable[[Grouped], PyTree] = lambda params: ()
    # ^ parameters -> what a client keeps before its first round
    # At a client.
    start: Callable[[PyTree, PyTree, Grouped], Grouped] = _same_for_all
    # ^ (state, received, global parameters) -> the parameters that this client starts from
    correct: Callable[[Grouped, Grouped, Grouped, PyTree], Grouped] = (
        lambda gradient, params, anchor, received: gradient
    )
    # ^ (gradient, params, anchor, received) -> gradient, each of one group at a time but what was
    # received
    report: Callable[[Local], tuple[PyTree, PyTree]] = lambda local: ((), ())
    # ^ -> (what a client sends beside its change, what it keeps from now on, like `keep`)
    add: Callable[[Local, PyTree], Added] = lambda local, reported: (
        local.weights,
        weighted(local.change, local.weights),
        reported,
    )
    # ^ (a client as it arrived at the server, what it reported) -> what is added up of it over the
    # cohort: weights by group, change, reported
    alone: bool = False
    # ^ no federation: every client goes on with its own model, and nothing is averaged
    num_groups: int = 1  # how many parts of a cohort are averaged on their own
    # For the count of bytes.
    sends: Callable[[Grouped], Numbers] = lambda params: Numbers(0, 0)
    # ^ shared parameters -> numbers beside the model


def weighted(change: Grouped, weights: dict[str, Array]) -> Grouped:
    """Return a client's change times its weights."""
    return {
        group: jax.tree.map(lambda moved, own=weights[group]: own * moved, tree)
        for group, tree in change.items()
    }


def weighted_mean(totals: Grouped, weights: dict[str, Float[Array, ""]]) -> Grouped:
    """Weighted sums divided by the sum of the weights of each group; 0 where nothing has weight."""

    def divide(total: PyTree, weight: Float[Array, ""]) -> PyTree:
        return jax.tree.map(lambda leaf: mean_scale(weight) * leaf, total)

    return {group: divide(total, weights[group]) for group, total in totals.items()}


def mean_scale(weight: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return the factor of a weighted sum for the mean, given the sum of the weights; 0 where
    nothing has weight.
    """
    return jnp.where(weight > 0, 1.0 / jnp.where(weight > 0, weight, 1.0), 0.0)


def fedavg() -> FederatedOptimizer:
    """FedAvg: the next model is the weighted mean of the clients' models.

    Written as anchor + weighted mean of the clients' changes, so that a round in which nobody
    trained changes nothing.
    """
    return fedopt(None)


def local() -> FederatedOptimizer:
    """No federation: every client trains a model of its own on what it has, all of them in one
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
    """Adaptive server step of Reddi et al., algorithm 2: w <- w + rate m / (sqrt(v) + tau), without
    bias correction.

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


@checked
def fednova(
    mu: Annotated[float | Array, In("[0, inf)")] = 0.0, *, local: LocalSettings = PLAIN_SGD
) -> FederatedOptimizer:
    """FedNova: w <- w + tau_eff sum_i p_i (w_i - w) / ||a_i||_1 with tau_eff = sum_i p_i ||a_i||_1.

    p_i is the client's share of the aggregation weights. Where all clients take equally many steps
    this is FedAvg (FedProx with mu), up to rounding.

    Args:
        mu: pull towards the global model: mu/2 ||w - w_global||^2 is added to the local objective.
        local: the clients' optimizer. ||a_i||_1 follows from SGD's momentum; of others (Adam,
            RMSProp) it is taken to be tau_i.

    Raises:
        ValueError: if mu is negative, or its product with the rate is not below 1.
    """
    shrinkage = mu * local.learning_rate
    if isinstance(shrinkage, float) and shrinkage >= 1:
        raise ValueError(
            f"mu is {mu} and config.optimizer.learning_rate {local.learning_rate}; with fednova "
            "their product must be below 1"
        )

    def report(client: Local) -> tuple[PyTree, PyTree]:
        norm = client.num_steps.astype(client.learning_rate.dtype)
        if local.name == "sgd":
            norm = step_norm(
                client.num_steps,
                local.momentum,
                mu * client.learning_rate,
                nesterov=local.nesterov,
            )
        return norm, ()

    def add(client: Local, norm: PyTree) -> Added:
        shares = {
            g: jnp.where(norm > 0, w / jnp.where(norm > 0, norm, 1.0), 0.0)
            for g, w in client.weights.items()
        }
        norms = {g: w * norm for g, w in client.weights.items()}
        return client.weights, weighted(client.change, shares), norms

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        norm = weighted_mean(total.reported, total.weights)
        change = weighted_mean(total.update, total.weights)
        moved = {
            g: jax.tree.map(lambda w, d, n=norm[g]: w + n * d, anchor[g], change[g]) for g in anchor
        }
        return moved, state

    def sends(params: Grouped) -> Numbers:
        return Numbers(down=0, up=1)  # ||a_i||_1

    return fedavg()._replace(correct=proximal(mu), report=report, add=add, apply=apply, sends=sends)


def step_norm(
    num_steps: Int[Array, ""],
    momentum: float | Array = 0.0,
    shrinkage: float | Array = 0.0,
    *,
    nesterov: bool = False,
) -> Float[Array, ""]:
    """||a||_1 of local SGD: how far equal gradients of size 1 carry a client, in learning rates.

    Found by taking the steps, so that momentum and proximal term may come together: tau without
    either; [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho) with momentum rho; (1 - (1 - s)^tau) /
    s with shrinkage s.

    Args:
        num_steps: tau.
        momentum: rho, in [0, 1).
        shrinkage: s, learning rate times mu, below 1 (above, gradients may count negatively).
        nesterov: Nesterov momentum.
    """

    def step(_: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        distance, velocity = state
        gradient = 1.0 - shrinkage * distance
        velocity = momentum * velocity + gradient
        return distance + (gradient + momentum * velocity if nesterov else velocity), velocity

    return jax.lax.fori_loop(0, num_steps, step, (jnp.zeros(()), jnp.zeros(())))[0]


class _MeanSteps(NamedTuple):
    """Mean local steps of SCAFFOLD's clients, in sum."""

    update: Grouped
    clients: Float[Array, ""]  # how many moved
    weight: Any = ()  # their weights, where variates have any


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

    Local optimizers that do more than subtract rate times gradient (momentum, Adam, clipping) would
    make (w_global - w_i) / (steps * rate) something else than a mean gradient; they are refused.

    Args:
        server_learning_rate: length of the server's step along the mean change; 1 adopts the mean
            model, as FedAvg does.
        weighted_variates: the mean of the variates has the weights of the models', as in FLamby;
            otherwise, as in the paper, all clients count alike, and a federation whose models are
            weighted is drawn to the unweighted mean gradient.
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
        """c - c_i: in both places where the variates are used, it is their difference that
        counts.
        """
        return jax.tree.map(jnp.subtract, state, kept)

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: PyTree) -> Grouped:
        return {group: jax.tree.map(jnp.add, g, received[group]) for group, g in gradient.items()}

    def report(local: Local) -> tuple[PyTree, PyTree]:
        distance = local.num_steps.astype(local.learning_rate.dtype) * local.learning_rate
        trained = jnp.any(jnp.stack(list(local.weights.values())) > 0)
        moved = trained & (distance > 0)  # a rate of 0 says nothing about the gradient
        scale = jnp.where(moved, 1.0 / jnp.where(moved, distance, 1.0), 0.0)
        # mean of a local step
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
        # c_i+ - c_i is the mean update less c.
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


class _Dynamic(NamedTuple):
    """What FedDyn's server tells a client, which knows both but for the sizes of the others."""

    own: Grouped  # h_k
    strength: Float[Array, ""]  # alpha_k


@checked
def feddyn(alpha: Annotated[float | Array, In("(0, inf)")] = 0.01) -> FederatedOptimizer:
    """FedDyn: every client's objective is bent so that its own optimum becomes the federation's.

    A client minimizes f_k(w) + alpha_k <w, h_k - w_global> + alpha_k/2 ||w||^2 and then adds its
    change to h_k, which starts at 0. The next model is the plain mean of the clients that trained,
    whatever `config.federated.weighting` says, plus the mean of h over all C clients, of which the
    server keeps that mean alone. As in the authors' code, alpha_k is alpha over the client's share
    of the examples times C. Batch statistics are averaged as in FedAvg. Every client keeps one
    vector of the model's size, the server another.

    Args:
        alpha: strength.

    Raises:
        ValueError: if alpha is not above 0.
    """

    def nothing(params: Grouped) -> PyTree:
        return jax.tree.map(jnp.zeros_like, params)

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> _Dynamic:
        sizes = context.all_clients.num_examples.astype(jnp.result_type(float))
        own = context.clients.num_examples.astype(sizes.dtype)
        strength = alpha * jnp.mean(sizes, where=sizes > 0) / jnp.maximum(own, 1.0)
        # Replicas of the server are clients of the mean size.
        members = jax.tree.leaves(kept)[0].shape[0]
        replicas = jnp.full(members - own.shape[0], alpha, strength.dtype)
        return _Dynamic(kept, jnp.concatenate([strength, replicas]))

    def correct(gradient: Grouped, params: Grouped, anchor: Grouped, received: _Dynamic) -> Grouped:
        own = {group: received.own[group] for group in gradient}
        return jax.tree.map(
            lambda g, w, w0, h: g + (received.strength * (h + w - w0)).astype(g.dtype),
            gradient,
            params,
            anchor,
            own,
        )

    def report(local: Local) -> tuple[PyTree, PyTree]:
        change = weighted(local.change, counts(local))
        return (), jax.tree.map(jnp.add, local.kept, change)

    def counts(local: Local) -> dict[str, Array]:
        return {g: (w > 0).astype(w.dtype) for g, w in local.weights.items()}

    def add(local: Local, reported: PyTree) -> Added:
        return counts(local), weighted(local.change, counts(local)), reported

    def apply(
        state: PyTree, anchor: Grouped, total: Total, context: RoundContext
    ) -> tuple[Grouped, PyTree]:
        change = weighted_mean(total.update, total.weights)
        state = jax.tree.map(
            lambda mean, total: mean + total / context.num_clients, state, total.update
        )
        params = {
            group: jax.tree.map(
                lambda w, d, h, some=total.weights[group] > 0: jnp.where(some, w + d + h, w),
                anchor[group],
                change[group],
                state[group],
            )
            for group in anchor
        }
        return params, state

    return FederatedOptimizer(
        nothing, apply, send=send, keep=nothing, correct=correct, report=report, add=add
    )
