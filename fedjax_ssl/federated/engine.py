"""The engine: makes a `Method` from a `Recipe`. Every method runs in the same training loop."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client_states import all_clients, part_of
from fedjax_ssl.federated.contract import Cohort, Count, Kept, Metrics, ServerState, Stage
from fedjax_ssl.federated.execution import Execution
from fedjax_ssl.federated.local_models import CLIENT_MODELS, with_local_scores
from fedjax_ssl.federated.local_optimizer import over_layers
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.recipe import Method, Recipe, check_is_recipe, own_model
from fedjax_ssl.federated.recipe_checks import check_recipe
from fedjax_ssl.federated.round import draw_cohort, run_round
from fedjax_ssl.federated.sampler import with_local_steps
from fedjax_ssl.federated.uploads.transform import chain
from fedjax_ssl.keys import named_key
from fedjax_ssl.models import Outputs

PyTree = Any


def build(recipe: Recipe) -> Method:
    """Make a method from a recipe.

    Returns:
        A `Method`. Its `round` takes the run's key and folds the round number in itself, so rounds
        can be scanned with one key and a resumed run continues exactly. Its info holds scalars:
        "loss" (mean over local steps), the whole numbers "clients", "local_steps", "examples" and
        "dropped_clients", "bytes_down" and "bytes_up" as `Count`, and the terms' diagnostics.

    Raises:
        ValueError: if it is no recipe, a stage other than the last has no length, a stage has no
            term or two with one name, a term moves a missing group, a private group is missing,
            `weighting` of the setup is unknown, the states of local optimizers are both kept and
            averaged, clients that train alone need a server or a mean of these states, the network
            has no class scores and the method reads them, or the batches of a stage cannot go on
            from round to round (`local_steps`).

    Example:
        >>> def sharpened(setup: fs.Setup) -> fs.Method:
        ...     "FedAvg that is surer of its predictions."
        ...     method = fs.build(fs.methods.recipe("fedavg", setup))
        ...     return method._replace(predict=lambda *given: 2 * method.predict(*given))
        >>> _ = fs.register("method", "sharpened", sharpened)
        >>> fs.load_config("digits", {"method.name": "sharpened"}).method.name
        'sharpened'
    """
    check_is_recipe("fs.build", recipe)
    recipe = _in_run(recipe, check_recipe(recipe))
    return Method(
        init=_init_of(recipe),
        round=_round_of(recipe),
        recipe=recipe,
        cohort=None if recipe.looks_at_all else _cohort_of(recipe),
        **_predictions_of(recipe),
    )


def _predictions_of(recipe: Recipe) -> dict[str, Any]:
    """Return the functions of a `Method` that predict, with the method's own network or the global
    one. A method may replace the class scores.
    """
    setup = recipe.setup

    def network_of(
        state: ServerState, client: Int[Array, ""] | None = None
    ) -> tuple[PyTree, PyTree]:
        if client is not None and recipe.client_model is not None:
            return recipe.client_model(state, client)
        if recipe.network is not None:
            return recipe.network(state)
        return recipe.groups.combine(state.params), state.model_state

    def outputs_of(params: PyTree, model_state: PyTree, inputs: Array) -> Outputs:
        normalize = setup.normalize_test or setup.normalize
        return setup.model.apply(params, model_state, normalize(inputs), train=False)[0]

    def scores(params: PyTree, model_state: PyTree, inputs: Array) -> Array:
        return jax.nn.log_softmax(outputs_of(params, model_state, inputs).logits)

    def predict(state: ServerState, inputs: Array) -> Array:
        if recipe.predict is None:
            return scores(*network_of(state), inputs)
        return recipe.predict(state, outputs_of(*network_of(state), inputs))

    def predict_for(state: ServerState, client: Int[Array, ""], inputs: Array) -> Array:
        return scores(*network_of(state, client), inputs)

    def embed(state: ServerState, inputs: Array) -> Array:
        return outputs_of(*network_of(state), inputs).features

    return {
        "predict": predict,
        "embed": None if recipe.alone else embed,
        "predict_for": None if recipe.client_model is None else predict_for,
        "network": network_of,
        "apply": scores if recipe.class_scores and recipe.predict is None else None,
    }


def _in_run(recipe: Recipe, notes: list[str]) -> Recipe:
    """Return the recipe with the run's choices: local steps in place of epochs, scores of clients'
    models, and the upload transforms with their notes. If clients train alone, they keep all
    groups.
    """
    setup = recipe.setup
    groups = recipe.groups
    stages = recipe.stages
    client_model = recipe.client_model
    if setup.local_steps is not None:
        stages = tuple(with_local_steps(stage, setup.local_steps) for stage in stages)
    if setup.local_scores:
        stages = tuple(with_local_scores(setup, stage, groups.combine) for stage in stages)
    if setup.federated_optimizer.alone:
        groups = groups._replace(private=groups.names, own_statistics=True)
        client_model = own_model(groups)
    elif groups.private and recipe.network is None and client_model is None:
        client_model = own_model(groups)
    optimizer = over_layers(
        setup.local_optimizer, lambda: groups.split(setup.model.init(jax.random.key(0))[0])
    )
    return recipe._replace(
        setup=setup._replace(local_optimizer=optimizer, uploads=(*recipe.uploads, *setup.uploads)),
        groups=groups,
        stages=stages,
        client_model=client_model,
        check=lambda data: [*notes, *recipe.check(data)],
    )


def _init_of(recipe: Recipe) -> Callable[[Array, FederatedData], ServerState]:
    """Return `Method.init`, which makes the state before round 0."""
    setup = recipe.setup
    groups = recipe.groups
    terms = {term.name: term for stage in recipe.stages for term in stage.terms}.values()

    def init(key: Array, data: FederatedData) -> ServerState:
        network, model_state = setup.model.init(named_key(key, "model"))
        params = groups.split(network)
        clients = all_clients(data)
        # Optimizers get a group as few long arrays.
        packed = {group: packing(params[group]).pack(params[group]) for group in groups.names}
        shared = {group: packed[group] for group in groups.shared}
        local = {group: setup.local_optimizer.init({group: packed[group]}) for group in packed}
        at_server = {
            term.name: term.server.init(
                named_key(named_key(key, "term"), term.name), network, model_state, clients
            )
            for term in terms
        }
        combined = groups.combine(params)
        at_clients = {
            term.name: jax.vmap(partial(term.client.keep, combined, model_state))(clients)
            for term in terms
        }

        def at_each(tree: PyTree) -> PyTree:
            count = data.num_clients
            return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)

        kept = Kept(
            params=at_each({group: packed[group] for group in groups.private}),
            optimizer=at_each(local) if setup.keep_optimizer else {},
            terms={name: kept for name, kept in at_clients.items() if jax.tree.leaves(kept)},
            federated=at_each(setup.federated_optimizer.keep(shared)),
            model_state=at_each(ravel_pytree(model_state)[0]) if groups.own_statistics else (),
        )
        state = ServerState(
            round=jnp.zeros((), jnp.int32),
            params=params,
            model_state=model_state,
            optimizer=setup.federated_optimizer.init(shared),
            terms=at_server,
            clients=kept,
            server=_server_optimizer(recipe.stages, local),
            local_optimizer={
                group: local[group] for group in groups.shared if setup.average_optimizer
            },
            uploads=chain(*setup.uploads).init(shared),
        )
        return recipe.init(state, data)

    return init


def _server_optimizer(stages: tuple[Stage, ...], local: dict[str, PyTree]) -> PyTree:
    """Return the state of the server's optimizer, with its replicas as leading axis; empty if it
    starts anew in every round.
    """
    kept = [stage.replicas for stage in stages if stage.server and stage.keep_server_optimizer]
    if not kept:
        return {}
    return jax.tree.map(lambda x: jnp.stack([x] * kept[0]), local)


def _round_of(recipe: Recipe) -> Callable[..., tuple[ServerState, Metrics]]:
    """Return `Method.round`, which runs a round of the current stage."""

    def of_stage(
        place: int, stage: Stage, start: int
    ) -> Callable[..., tuple[ServerState, Metrics]]:
        named = jax.named_scope(f"stage_{place}")  # name in compiled programs
        return named(partial(run_round, recipe, stage, start))

    stages = zip(recipe.stages, recipe.starts, strict=True)
    rounds = [of_stage(place, *stage) for place, stage in enumerate(stages)]

    def round(
        key: Array, state: ServerState, data: FederatedData, execution: Execution | None = None
    ) -> tuple[ServerState, Metrics]:
        how = execution or Execution()
        if len(rounds) == 1:
            after, info = rounds[0](key, state, data, how)
        elif recipe.on_host:
            after, info = rounds[int(_place_of(recipe, state.round))](key, state, data, how)
        else:
            branches = [partial(run, execution=how) for run in rounds]
            after, info = _switch(_place_of(recipe, state.round), branches, key, state, data)
        return recipe.after_average(state, after, data), info

    return round


def _cohort_of(recipe: Recipe) -> Callable[..., Cohort]:
    """Return `Method.cohort` for the current stage, with equally many slots in all stages."""
    setup = recipe.setup

    def cohort(key: Array, number: Int[Array, ""], data: FederatedData) -> Cohort:
        clients = all_clients(data, part_of(data, number, setup.rounds))

        def of_stage(stage: Stage) -> Cohort:
            ids, valid = draw_cohort(setup, stage, key, number, clients)
            empty = (0, setup.cohort_size - ids.shape[0])
            return Cohort(
                jnp.pad(ids, empty, constant_values=data.num_clients), jnp.pad(valid, empty)
            )

        choices = [partial(of_stage, stage) for stage in recipe.stages]
        return jax.lax.switch(_place_of(recipe, number), choices)

    return cohort


def _place_of(recipe: Recipe, number: Int[Array, ""]) -> Int[Array, ""]:
    """Return the number of the stage at a round of the run."""
    later = jnp.array(recipe.starts[1:], jnp.int32)
    return jnp.sum(number >= later, dtype=jnp.int32)


def _switch(
    number: Int[Array, ""],
    branches: Sequence[Callable[..., tuple[ServerState, Metrics]]],
    *arguments: Any,
) -> tuple[ServerState, Metrics]:
    """Run `jax.lax.switch` on rounds with different metrics: all report the same ones, NaN for
    metrics that a stage lacks.

    Each branch is traced once; the names of the metrics come from the traces.
    """
    flat = jax.tree.leaves(arguments)
    traces = [jax.make_jaxpr(branch, return_shape=True)(*arguments) for branch in branches]
    infos = [shape[1] for _, shape in traces]
    missing = jnp.full((), jnp.nan, jnp.result_type(float))
    # A count of bytes has one part per size of message; all are padded to the longest one.
    parts: dict[str, int] = {}
    for info in infos:
        counts = {name: one for name, one in info.items() if isinstance(one, Count)}
        parts |= {name: max(parts.get(name, 0), len(one.times)) for name, one in counts.items()}
    # Clients' models have the stage's shapes; they are zeros if a stage trains no client.
    models = next((info[CLIENT_MODELS] for info in infos if CLIENT_MODELS in info), None)
    nobody = {} if models is None else {CLIENT_MODELS: models}
    names = sorted(set().union(*infos))
    common = set.intersection(*map(set, infos)) | set(nobody)

    def branch_of(trace: Any, shape: Any) -> Callable[..., tuple[ServerState, Metrics]]:
        def run(*leaves: Array) -> tuple[ServerState, Metrics]:
            state, info = jax.tree.unflatten(
                jax.tree.structure(shape), jaxpr_as_fun(trace)(*leaves)
            )
            info |= {name: info[name].padded(length) for name, length in parts.items()}
            info = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), nobody) | info
            # A metric that a stage lacks is NaN there, so it cannot be a whole number in another
            # stage.
            return state, {
                name: info[name]
                if name in common
                else info.get(name, missing).astype(missing.dtype)
                for name in names
            }

        return run

    return jax.lax.switch(number, [branch_of(*trace) for trace in traces], *flat)
