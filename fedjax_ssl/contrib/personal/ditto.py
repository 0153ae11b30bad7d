"""Ditto and APFL: clients train their own models beside the global one, on the same batches.

The global model trains as usual. In both methods, a client's own model uses the method's losses and
the run's local optimizer, whose state starts anew in every round; corrections of the federated
optimizer only change the global model. A client that has not trained predicts with the global
model.

References:
    Li, Hu, Beirami, Smith, Ditto: Fair and robust federated learning through personalization, ICML
    2021. Deng, Kamani, Mahdavi, Adaptive personalized federated learning, arXiv 2003.13461.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from fedjax_ssl.checks import checked
from fedjax_ssl.contrib.personal._own_models import check_predicts, when_trained
from fedjax_ssl.federated import (
    AtClient,
    AtServer,
    Client,
    ClientResult,
    LocalStep,
    Packed,
    PyTree,
    Recipe,
    ServerState,
    StepTaken,
    TakeStep,
    Term,
    never,
    over_layers,
    packing,
)
from fedjax_ssl.methods.parts.setting_types import Share, Weight


class OwnModel(NamedTuple):
    """A client's own model."""

    weights: Packed
    statistics: Float[Array, " s"]  # batch statistics, in one vector
    mix: Float[Array, ""]  # share of the own model in predictions, beside the global one


class _Kept(NamedTuple):
    """State that a client keeps between rounds."""

    model: OwnModel
    trained: Bool[Array, ""]  # whether it has trained


class _Local(NamedTuple):
    """A client's own model in the middle of a round."""

    model: OwnModel
    optimizer: PyTree


Move = Callable[[TakeStep, LocalStep, _Local], _Local]


@checked
def ditto(recipe: Recipe, *, pull: Weight = 1.0) -> Recipe:
    """Every client trains a model of its own, which is drawn to the one that the round began with.

    Args:
        recipe: of any method with one parameter group.
        pull: lambda, of lambda/2 ||v - w||^2 in the objective of a client's own model v; 0: it
            trains alone.

    Raises:
        ValueError: the method has several parameter groups, or does not predict with its network's
            scores.
    """

    def move(step: TakeStep, at: LocalStep, before: _Local) -> _Local:
        (group,) = recipe.groups.names
        anchor = at.packing.pack(at.inputs.start_network.groups[group])

        def drawn(gradient: Packed, weights: Packed) -> Packed:
            return jax.tree.map(lambda g, v, w: g + pull * (v - w), gradient, weights, anchor)

        own = step(_aside(at, before, before.model.weights)._replace(correct=drawn))
        return _Local(OwnModel(own.weights, own.model_state, before.model.mix), own.optimizer)

    return _with_own_models(recipe, "ditto", 1.0, move)


@checked
def apfl(recipe: Recipe, *, mix: Share = 0.5, adaptive: bool = False) -> Recipe:
    """Every client predicts with a mixture of the common model and one of its own.

    With share a, a client's own model v takes a times the step of a v + (1 - a) w, where w is the
    common model in the same local step.

    Args:
        recipe: of any method with one parameter group.
        mix: a at the start; 0: the common model, 1: one that trains alone.
        adaptive: every client moves its a, once a round, against the gradient of its loss, at the
            learning rate of the local step.

    Raises:
        ValueError: as `ditto`.
    """

    def move(step: TakeStep, at: LocalStep, before: _Local) -> _Local:
        model = before.model
        share = model.mix
        mixed = _mixed(share, model.weights, at.weights)
        own = step(_aside(at, before, mixed)._replace(correct=lambda gradient, weights: gradient))
        moved = jax.tree.map(jnp.subtract, own.weights, mixed)
        weights = jax.tree.map(lambda v, d: v + share * d, model.weights, moved)
        if adaptive:
            # The step moved the weights by the learning rate times the negative gradient.
            apart = jax.tree.map(
                lambda v, w, d: jnp.vdot(v - w, d), model.weights, at.weights, moved
            )
            better = jnp.clip(share + sum(jax.tree.leaves(apart)), 0.0, 1.0)
            share = jnp.where(at.inputs.number == 0, better, share)
        return _Local(OwnModel(weights, own.model_state, share), own.optimizer)

    return _with_own_models(recipe, "apfl", mix, move)


def _mixed(share: Float[Array, ""], own: Packed, common: Packed) -> Packed:
    return jax.tree.map(lambda v, w: share * v + (1 - share) * w, own, common)


def _aside(at: LocalStep, before: _Local, weights: Packed) -> LocalStep:
    """Return the step with other weights, and with batch statistics and optimizer of a client's own
    model.
    """

    def forward(model: Any, params: PyTree, _: PyTree, *given: Any, **how: Any) -> Any:
        return at.forward(model, params, at.unravel(before.model.statistics), *given, **how)

    return at._replace(weights=weights, optimizer=before.optimizer, forward=forward)


def _with_own_models(recipe: Recipe, name: str, mix: float | Array, move: Move) -> Recipe:
    """Let clients train and keep their own models.

    Args:
        recipe: recipe of a method.
        name: name of the personalization.
        mix: share of a client's own model in predictions, at the start.
        move: (local step, as it is before the common model moves; the own model) -> the own model.
    """
    check_predicts(recipe, name)
    if len(recipe.groups.names) > 1:
        raise ValueError(
            f"config.personalize.name is {name!r}, but method {recipe.name!r} has the parameter "
            f"groups {', '.join(recipe.groups.names)}, which move apart; use another method"
        )
    (group,) = recipe.groups.names
    setup = recipe.setup

    def keep(network: PyTree, model_state: PyTree, client: Client) -> _Kept:
        tree = recipe.groups.split(network)[group]
        statistics = ravel_pytree(model_state)[0]
        share = jnp.asarray(mix, jnp.result_type(float))
        return _Kept(OwnModel(packing(tree).pack(tree), statistics, share), jnp.zeros((), bool))

    def start(state: PyTree, network: PyTree, model_state: PyTree, kept: _Kept) -> _Local:
        optimizer = over_layers(setup.local_optimizer, lambda: recipe.groups.split(network))
        return _Local(kept.model, optimizer.init({group: kept.model.weights}))

    def wrap_step(step: TakeStep, _: str) -> TakeStep:
        def take(at: LocalStep) -> StepTaken:
            common = step(at)
            after = move(step, at, common.local[name])
            return common._replace(local={**common.local, name: after})

        return take

    def remember(trained: ClientResult) -> _Kept:
        return _Kept(trained.local[name].model, jnp.ones((), bool))

    def client_model(state: ServerState, client: Array) -> tuple[PyTree, PyTree]:
        kept: _Kept = jax.tree.map(lambda table: table[client], state.clients.terms[name])
        form = packing(state.params[group])
        common = form.pack(state.params[group])
        own = _mixed(kept.model.mix, kept.model.weights, common)
        statistics = ravel_pytree(state.model_state)[1](kept.model.statistics)
        mine = recipe.groups.combine({group: form.unpack(own)}), statistics
        all_alike = recipe.groups.combine(state.params), state.model_state
        return when_trained(kept.trained, mine, all_alike)

    term = Term(
        name,
        (),
        lambda step: jnp.zeros(()),
        group=group,
        server=AtServer(participates=never),
        client=AtClient(keep=keep, start=start, wrap_step=wrap_step, remember=remember),
    )

    stages = tuple(stage.with_terms(term) for stage in recipe.stages)
    return recipe._replace(stages=stages, client_model=client_model)
