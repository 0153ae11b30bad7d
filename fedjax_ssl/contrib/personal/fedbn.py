"""FedBN: clients share a network but for its normalization, which each keeps to itself.

References:
    Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated learning on non-IID features via local batch
    normalization, ICLR 2021. Its code finds the layers by their names, which misses some of a
    residual network; here their type tells.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from fedjax_ssl.contrib.personal._own_models import check_predicts, check_stages, when_trained
from fedjax_ssl.federated import (
    AtClient,
    AtServer,
    Client,
    ClientResult,
    Params,
    PyTree,
    Recipe,
    ServerState,
    Snapshot,
    Stage,
    Term,
    Upload,
    never,
    packing,
)
from fedjax_ssl.federated.uploads import EVERYTHING, UploadTransform

TERM = "fedbn"
Places = dict[str, list[tuple[str, ...]]]  # by shared group, the arrays of its normalization layers


class _Kept(NamedTuple):
    """What a client keeps beside its batch statistics."""

    entries: Float[Array, " e"]  # parameters of its normalization layers
    trained: Bool[Array, ""]  # whether it has trained


def fedbn(recipe: Recipe) -> Recipe:
    """Every client keeps its normalization (scale, shift, running statistics) and shares the rest.

    A client that has not trained predicts with the mean of those that have, and so does the global
    network, unless the server trains too, which then has a normalization of its own.

    Args:
        recipe: of any method whose parameter groups are parts of its network.

    Raises:
        ValueError: the network normalizes nothing; predictions are not the network's scores; or the
            method's groups are no parts of the network, or replicas of the server train beside its
            clients.
    """
    check_predicts(recipe, "fedbn")
    check_stages(recipe, "fedbn")
    places = _places(recipe)
    shapes = jax.eval_shape(
        lambda: recipe.groups.split(recipe.setup.model.init(jax.random.key(0))[0])
    )
    like = jax.eval_shape(lambda: _entries(places, jax.tree.map(jnp.zeros_like, shapes)))
    unsent = {group: sum(x.size for x in own.values()) for group, own in like.items()}

    def chosen(groups: Params) -> Array:
        """Return the entries of normalization, in one vector."""
        return ravel_pytree(_entries(places, groups))[0]

    def placed(entries: Array, groups: Params) -> Params:
        """Put entries of normalization into parameters."""
        own = ravel_pytree(_entries(places, groups))[1](entries)
        changed = {
            group: unflatten_dict({**flatten_dict(groups[group]), **_by_place(own[group])})
            for group in places
        }
        return {**groups, **changed}

    def keep(network: PyTree, model_state: PyTree, client: Client) -> _Kept:
        return _Kept(chosen(recipe.groups.split(network)), jnp.zeros((), bool))

    def remember(trained: ClientResult) -> _Kept:
        return _Kept(chosen(trained.groups), jnp.ones((), bool))

    def receive(client: Client, sent: Params) -> Params:
        had = sent if recipe.receive is None else recipe.receive(client, sent)
        assert client.kept is not None
        return placed(client.kept.terms[TERM].entries, had)

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: PyTree) -> Upload:
        packings = {group: packing(trained.groups[group]) for group in upload.update}
        moved = {group: packings[group].unpack(arrays) for group, arrays in upload.update.items()}
        still = placed(jnp.zeros_like(chosen(moved)), moved)
        update = {group: packings[group].pack(tree) for group, tree in still.items()}
        return upload._replace(update=update)

    def mean(state: ServerState) -> Snapshot:
        """Return the global network with the mean normalization of the clients that trained."""
        kept: _Kept = state.clients.terms[TERM]
        counts = kept.trained | ~jnp.any(kept.trained)  # before round 0 all are alike
        entries = jnp.mean(kept.entries, axis=0, where=counts[:, None])
        statistics = jnp.mean(state.clients.model_state, axis=0, where=counts[:, None])
        unravel = ravel_pytree(state.model_state)[1]
        return Snapshot((), unravel(statistics), placed(entries, state.params))

    def personal(state: ServerState, client: Array, network: Snapshot) -> Snapshot:
        kept: _Kept = jax.tree.map(lambda table: table[client], state.clients.terms[TERM])
        own = network._replace(groups=placed(kept.entries, network.groups))
        common = mean(state)
        groups = {**network.groups, **{group: common.groups[group] for group in places}}
        return when_trained(kept.trained, own, common._replace(groups=groups))

    def network(state: ServerState) -> tuple[PyTree, PyTree]:
        common = mean(state)
        private = {}
        if recipe.network is not None:
            private = recipe.groups.split(recipe.network(state)[0])
        shared = {group: common.groups[group] for group in places}
        groups = {**state.params, **private, **shared}
        return recipe.groups.combine(groups), common.model_state

    def of_stage(stage: Stage) -> Stage:
        if not stage.trains_clients:
            return stage
        term = Term(
            TERM,
            (),
            lambda step: jnp.zeros(()),
            group=stage.terms[-1].group,
            server=AtServer(participates=never),
            client=AtClient(keep=keep, remember=remember),
        )
        return stage._replace(terms=(*stage.terms, term))

    at_server = any(stage.server is not None for stage in recipe.stages)
    return recipe._replace(
        stages=tuple(map(of_stage, recipe.stages)),
        groups=recipe.groups._replace(own_statistics=True, unsent=unsent),
        network=recipe.network if at_server else network,
        personal=personal,
        receive=receive,
        uploads=(UploadTransform(TERM, at_client=at_client, covers=EVERYTHING), *recipe.uploads),
    )


def _places(recipe: Recipe) -> Places:
    """Find the arrays of normalization layers in the groups that clients share."""
    groups = recipe.groups
    network, _ = jax.eval_shape(recipe.setup.model.init, jax.random.key(0))
    layers = recipe.setup.model.normalization()
    found = {
        path
        for path in flatten_dict(network)
        if any(path[:depth] in layers for depth in range(len(path)))
    }
    if not found:
        raise ValueError(
            "fedbn keeps normalization layers at the clients, and none can be found in this "
            "network, or none is trained (config.model.train); use one that has some, for example "
            "config.model.norm=bn of a network that takes it, or another personalization"
        )
    split = jax.eval_shape(groups.split, network)
    parts = {group: list(flatten_dict(tree)) for group, tree in split.items()}
    together = [path for paths in parts.values() for path in paths]
    if sorted(together) != sorted(flatten_dict(network)):
        raise ValueError(
            f"the parameter groups of {recipe.name!r} ({', '.join(parts)}) are no parts of the "
            "network, so that fedbn cannot keep some of its layers; use another method"
        )
    return {
        group: sorted(found & {*paths})
        for group, paths in parts.items()
        if group not in groups.private
    }


def _entries(places: Places, groups: Params) -> dict[str, dict[str, Array]]:
    """Return the arrays at these places, by group and by their path with "/" between."""
    flat = {group: flatten_dict(groups[group]) for group in places}
    return {
        group: {"/".join(path): flat[group][path] for path in paths}
        for group, paths in places.items()
    }


def _by_place(entries: dict[str, Array]) -> dict[tuple[str, ...], Array]:
    return {tuple(path.split("/")): values for path, values in entries.items()}
