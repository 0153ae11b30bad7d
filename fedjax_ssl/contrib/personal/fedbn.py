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

from fedjax_ssl.contrib.personal._own_models import check_predicts, when_trained
from fedjax_ssl.federated import (
    BYTES_PER_NUMBER,
    AtClient,
    AtServer,
    Client,
    ClientResult,
    ForLog,
    Local,
    Packed,
    Params,
    PyTree,
    Recipe,
    RoundContext,
    RoundResult,
    ServerState,
    Snapshot,
    Stage,
    Term,
    Traffic,
    Upload,
    count,
    never,
    packing,
)
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.models import count_parameters

TERM = "fedbn"
Groups = dict[str, Packed]
Places = dict[str, list[tuple[str, ...]]]  # by shared group, the arrays of its normalization layers


class _Kept(NamedTuple):
    """State that a client keeps between rounds beside its batch statistics."""

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
    if any("beside" in stage.when for stage in recipe.stages if stage.server):
        raise ValueError(
            f"fedbn keeps normalization at the clients, but the server of {recipe.name!r} is a "
            "member of their average; use another method"
        )
    places = _places(recipe)
    shapes = jax.eval_shape(
        lambda: recipe.groups.split(recipe.setup.model.init(jax.random.key(0))[0])
    )
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    packings = {group: packing(zeros[group]) for group in places}

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

    inner = recipe.setup.federated_optimizer

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> PyTree:
        assert context.clients.kept is not None
        return inner.send(state, kept, context), context.clients.kept.terms[TERM].entries

    def start(state: PyTree, received: PyTree, common: Groups) -> Groups:
        given = inner.start(state, received[0], common)
        groups = {group: packings[group].unpack(given[group]) for group in places}
        own = placed(received[1], groups)
        return {**given, **{group: packings[group].pack(own[group]) for group in places}}

    def correct(gradient: Groups, params: Groups, anchor: Groups, received: PyTree) -> Groups:
        return inner.correct(gradient, params, anchor, received[0])

    def of_inner(local: Local) -> Local:
        return local._replace(sent_by_optimizer=local.sent_by_optimizer[0])

    optimizer = inner._replace(
        send=send,
        start=start,
        correct=correct,
        report=lambda local: inner.report(of_inner(local)),
        add=lambda local, reported: inner.add(of_inner(local), reported),
    )

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: PyTree) -> Upload:
        moved = {group: packings[group].unpack(arrays) for group, arrays in upload.update.items()}
        still = placed(jnp.zeros_like(chosen(moved)), moved)
        update = {group: packings[group].pack(tree) for group, tree in still.items()}
        return upload._replace(update=update)

    def traffic(outcome: RoundResult) -> Traffic:
        """Count the shared groups without their normalization, both ways."""
        shared = {group: outcome.before.params[group] for group in places}
        numbers = count_parameters(shared) - chosen(shared).size
        both = count(jnp.sum(outcome.context.valid, dtype=jnp.int32), BYTES_PER_NUMBER * numbers)
        return Traffic(both, both, model_down=False, model_up=False)

    def mean(state: ServerState) -> Snapshot:
        """Return the global network with the mean normalization of the clients that trained."""
        kept: _Kept = state.clients.terms[TERM]
        counts = kept.trained | ~jnp.any(kept.trained)  # before round 0 all are alike
        entries = jnp.mean(kept.entries, axis=0, where=counts[:, None])
        statistics = jnp.mean(state.clients.model_state, axis=0, where=counts[:, None])
        unravel = ravel_pytree(state.model_state)[1]
        return Snapshot((), unravel(statistics), placed(entries, state.params))

    def client_model(state: ServerState, client: Array) -> tuple[PyTree, PyTree]:
        kept: _Kept = jax.tree.map(lambda table: table[client], state.clients.terms[TERM])
        private = jax.tree.map(lambda table: table[client], state.clients.params)
        unpacked = {g: packing(state.params[g]).unpack(own) for g, own in private.items()}
        groups = {**state.params, **unpacked}
        statistics = ravel_pytree(state.model_state)[1](state.clients.model_state[client])
        common = mean(state)
        own = Snapshot((), statistics, placed(kept.entries, groups))
        shared = {group: common.groups[group] for group in places}
        found = when_trained(kept.trained, own, common._replace(groups={**groups, **shared}))
        return recipe.groups.combine(found.groups), found.model_state

    def network(state: ServerState) -> tuple[PyTree, PyTree]:
        common = mean(state)
        private = {}
        if recipe.network is not None:
            private = recipe.groups.split(recipe.network(state)[0])
        shared = {group: common.groups[group] for group in places}
        groups = {**state.params, **private, **shared}
        return recipe.groups.combine(groups), common.model_state

    def of_stage(stage: Stage) -> Stage:
        if stage.clients is None:
            return stage
        term = Term(
            TERM,
            (),
            lambda step: jnp.zeros(()),
            group=stage.client_terms[-1].group,
            server=AtServer(participates=never),
            client=AtClient(keep=keep, remember=remember),
            log=ForLog(traffic=traffic),
        )
        return stage.with_terms(term)

    at_server = any(stage.server is not None for stage in recipe.stages)
    return recipe._replace(
        stages=tuple(map(of_stage, recipe.stages)),
        setup=recipe.setup._replace(federated_optimizer=optimizer),
        groups=recipe.groups._replace(own_statistics=True),
        network=recipe.network if at_server else network,
        client_model=client_model,
        uploads=(UploadTransform(TERM, at_client=at_client), *recipe.uploads),
    )


def _places(recipe: Recipe) -> Places:
    """Find the arrays of normalization layers in the groups that clients share."""
    groups = recipe.groups
    network, _ = jax.eval_shape(recipe.setup.model.init, jax.random.key(0))
    # A layer that normalizes has a "scale": flax calls it so in batch, group and layer norm.
    layers = {path[:-1] for path in flatten_dict(network) if path[-1] == "scale"}
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
        if group in groups.names and group not in groups.private
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
