"""Local steps that clients will take, as far as they are known before training."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated.client_states import all_clients
from fedjax_ssl.federated.local_training import LocalTraining
from fedjax_ssl.federated.method import ClientKind, Now, Stage
from fedjax_ssl.federated.participation import Participation
from fedjax_ssl.federated.recipe import Recipe
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER, entries


def kinds_of(stage: Stage) -> tuple[ClientKind, ...]:
    """Give the kinds of clients that train: special ones, then all others."""
    return (*stage.kinds, *([] if stage.own_kind is None else [stage.own_kind]))


def who_trains(stages: tuple[Stage, ...], data: FederatedData) -> Bool[Array, " C"]:
    """Tells which clients have a local step, as far as that follows from their sizes and labels."""
    found = jnp.zeros(data.num_clients, bool)
    for mine, steps in _steps_of_kinds(stages, data):
        found = found | (mine if steps is None else mine & (steps > 0))
    return found


def _steps_of_kinds(
    stages: tuple[Stage, ...], data: FederatedData
) -> Iterator[tuple[Bool[Array, " C"], Int[Array, " C"] | None]]:
    """Give for each kind of clients (which clients may be of it, local steps of each client); None
    for steps that depend on what was sent.
    """
    clients = all_clients(data)
    key = jax.random.key(0)
    now = Now(jnp.zeros((), jnp.int32))
    for stage in stages:
        rest = clients.num_examples > 0
        if stage.labelled_quota == "only":
            rest = rest & (stage.count_labels(clients) > 0)
        for kind in kinds_of(stage):
            mine = rest & kind.members(clients)
            schedule = kind.sampler.schedule
            rest = rest & ~mine
            steps = None
            if not kind.sampler.reads_sent:
                steps = jax.vmap(lambda client, draw=schedule: draw(key, client, now).num_steps)(
                    clients
                )
            yield mine, steps


def check_of(
    recipe: Recipe, training: LocalTraining, stages: tuple[Stage, ...]
) -> Callable[[FederatedData], list[str]] | None:
    """`Method.check`: what the recipe says, and that a deadline is not before the first client."""
    participation = recipe.setup.participation
    if participation is None:
        return recipe.check
    clock = participation.clock
    notes = participation.notes()

    def check(data: FederatedData) -> list[str]:
        if clock is not None:
            clock.check(_fewest_steps(stages, data, participation), _fewest_bytes(recipe, training))
        return notes + ([] if recipe.check is None else recipe.check(data))

    return check


def _fewest_steps(
    stages: tuple[Stage, ...], data: FederatedData, participation: Participation
) -> int:
    """Return local steps of the client that takes the fewest."""
    fewest = []
    for mine, steps in _steps_of_kinds(stages, data):
        if steps is None or participation.slow is not None:
            fewest.append(1)
        elif bool(jnp.any(mine & (steps > 0))):
            fewest.append(int(jnp.min(steps, where=mine & (steps > 0), initial=2**31 - 1)))
    return min(fewest, default=0)


def _fewest_bytes(recipe: Recipe, training: LocalTraining) -> int:
    """Return bytes that go down to a client and up from it at least: the model's."""
    terms = [term for stage in recipe.stages for kind in kinds_of(stage) for term in kind.terms]
    if any(term.log.traffic is not None for term in terms):
        return 0  # a term that counts its bytes may send some of the model in place of all of it
    network, model_state = jax.eval_shape(recipe.setup.model.init, jax.random.key(0))
    groups = recipe.groups.split(network)
    shared = {group: groups[group] for group in training.shared}
    statistics = () if training.own_statistics else model_state
    size = entries((shared, statistics)) - sum(training.unsent.values())
    return 2 * BYTES_PER_NUMBER * size
