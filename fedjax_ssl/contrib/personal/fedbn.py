"""FedBN: clients share a network except for its normalization, which each client keeps.

References:
    Li, Jiang, Zhang, Kamp, Dou, FedBN: Federated learning on non-IID features via local batch
    normalization, ICLR 2021. Its code finds the layers by their names, which misses some of a
    residual network; here their type tells.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

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
    FederatedOptimizer,
    ForLog,
    Local,
    Packed,
    Params,
    PyTree,
    Recipe,
    RoundContext,
    RoundResult,
    ServerState,
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
Places = dict[str, list[tuple[str, ...]]]  # arrays of normalization layers, by shared group


class _Kept(NamedTuple):
    """State that a client keeps between rounds besides its batch statistics."""

    entries: Float[Array, " e"]  # parameters of its normalization layers
    trained: Bool[Array, ""]  # whether it has trained


class _Normalization(NamedTuple):
    """Normalization layers in the groups that clients share."""

    places: Places
    packings: dict[str, Any]  # layout of each shared group

    def entries(self, groups: Params) -> Array:
        """Return the parameters of normalization layers in one vector."""
        return ravel_pytree(_entries(self.places, groups))[0]

    def put(self, entries: Array | float, groups: Params) -> Params:
        """Put their parameters, or one number for all of them, into those of the network."""
        before, unravel = ravel_pytree(_entries(self.places, groups))
        own = unravel(jnp.broadcast_to(jnp.asarray(entries, before.dtype), before.shape))
        changed = {
            group: unflatten_dict({**flatten_dict(groups[group]), **_by_place(own[group])})
            for group in self.places
        }
        return {**groups, **changed}

    def put_packed(self, entries: Array | float, packed: Groups) -> Groups:
        """Do the same to packed groups."""
        groups = {group: self.packings[group].unpack(packed[group]) for group in self.places}
        own = self.put(entries, groups)
        return {**packed, **{group: self.packings[group].pack(own[group]) for group in self.places}}


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
    layers = _layers(recipe)

    def keep(network: PyTree, model_state: PyTree, client: Client) -> _Kept:
        return _Kept(layers.entries(recipe.groups.split(network)), jnp.zeros((), bool))

    def with_term(stage: Stage) -> Stage:
        if stage.clients is None:
            return stage
        return stage.with_terms(_term(stage.client_terms[-1].group, keep, layers))

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: PyTree) -> Upload:
        return upload._replace(update=layers.put_packed(0.0, upload.update))

    optimizer = _handing_out(recipe.setup.federated_optimizer, layers)
    network, client_model = _networks(recipe, layers)
    at_server = any(stage.server is not None for stage in recipe.stages)
    return recipe._replace(
        stages=tuple(map(with_term, recipe.stages)),
        setup=recipe.setup._replace(federated_optimizer=optimizer),
        groups=recipe.groups._replace(own_statistics=True),
        network=recipe.network if at_server else network,
        client_model=client_model,
        uploads=(UploadTransform(TERM, at_client=at_client), *recipe.uploads),
    )


def _term(group: str, keep: Callable[..., _Kept], layers: _Normalization) -> Term:
    """Return the term by which clients keep their normalization and nobody sends it."""

    def remember(trained: ClientResult) -> _Kept:
        return _Kept(layers.entries(trained.groups), jnp.ones((), bool))

    def traffic(outcome: RoundResult) -> Traffic:
        """Count the shared groups without their normalization, both ways."""
        shared = {group: outcome.before.params[group] for group in layers.places}
        numbers = count_parameters(shared) - layers.entries(shared).size
        both = count(jnp.sum(outcome.context.valid, dtype=jnp.int32), BYTES_PER_NUMBER * numbers)
        return Traffic(both, both, model_down=False, model_up=False)

    return Term(
        TERM,
        (),
        lambda step: jnp.zeros(()),
        group=group,
        server=AtServer(participates=never),
        client=AtClient(keep=keep, remember=remember),
        log=ForLog(traffic=traffic),
    )


def _handing_out(inner: FederatedOptimizer, layers: _Normalization) -> FederatedOptimizer:
    """Return a federated optimizer by which every client starts with its own normalization, besides
    the messages of `inner`.
    """

    def send(state: PyTree, kept: PyTree, context: RoundContext) -> PyTree:
        assert context.clients.kept is not None
        return inner.send(state, kept, context), context.clients.kept.terms[TERM].entries

    def start(state: PyTree, received: PyTree, common: Groups) -> Groups:
        return layers.put_packed(received[1], inner.start(state, received[0], common))

    def correct(gradient: Groups, params: Groups, anchor: Groups, received: PyTree) -> Groups:
        return inner.correct(gradient, params, anchor, received[0])

    def of_inner(local: Local) -> Local:
        return local._replace(sent_by_optimizer=local.sent_by_optimizer[0])

    return inner._replace(
        send=send,
        start=start,
        correct=correct,
        report=lambda local: inner.report(of_inner(local)),
        add=lambda local, reported: inner.add(of_inner(local), reported),
    )


def _networks(recipe: Recipe, layers: _Normalization) -> tuple[Callable, Callable]:
    """Return the functions for the global network and for that of a client."""

    def mean(state: ServerState, groups: Params) -> tuple[Params, PyTree]:
        """Put the mean normalization of the clients that trained into these groups."""
        kept: _Kept = state.clients.terms[TERM]
        counts = kept.trained | ~jnp.any(kept.trained)  # before round 0 all clients have the same
        entries = jnp.mean(kept.entries, axis=0, where=counts[:, None])
        statistics = jnp.mean(state.clients.model_state, axis=0, where=counts[:, None])
        return layers.put(entries, groups), ravel_pytree(state.model_state)[1](statistics)

    def network(state: ServerState) -> tuple[PyTree, PyTree]:
        of_method = {} if recipe.network is None else recipe.groups.split(recipe.network(state)[0])
        private = {group: of_method[group] for group in of_method if group not in layers.places}
        groups, statistics = mean(state, {**state.params, **private})
        return recipe.groups.combine(groups), statistics

    def client_model(state: ServerState, client: Array) -> tuple[PyTree, PyTree]:
        kept: _Kept = jax.tree.map(lambda table: table[client], state.clients.terms[TERM])
        private = jax.tree.map(lambda table: table[client], state.clients.params)
        unpacked = {g: packing(state.params[g]).unpack(own) for g, own in private.items()}
        groups = {**state.params, **unpacked}
        statistics = ravel_pytree(state.model_state)[1](state.clients.model_state[client])
        own = layers.put(kept.entries, groups), statistics
        found, found_statistics = when_trained(kept.trained, own, mean(state, groups))
        return recipe.groups.combine(found), found_statistics

    return network, client_model


def _layers(recipe: Recipe) -> _Normalization:
    places = _places(recipe)
    shapes = jax.eval_shape(
        lambda: recipe.groups.split(recipe.setup.model.init(jax.random.key(0))[0])
    )
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return _Normalization(places, {group: packing(zeros[group]) for group in places})


def _places(recipe: Recipe) -> Places:
    """Return the arrays of normalization layers in the shared groups."""
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
