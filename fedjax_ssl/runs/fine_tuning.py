"""Fine-tuning at the end of a run: every client tunes a copy of the model that was chosen on its
labelled examples, and tests the copy. Nothing comes back from it.

    personal_accuracy.csv   a line per client that has test examples, before and after; without
                            fine-tuning, of the global model and of the client's own

The clients train as in the rest of the package: one round of the method 'alone', which starts from
the model in place of random weights.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.errors import ConfigError, counted
from fedjax_ssl.federated import Execution, ServerState
from fedjax_ssl.federated.evaluation import compared, over_clients, own_accuracies
from fedjax_ssl.federated.packing import packing
from fedjax_ssl.federated.setup import Setup
from fedjax_ssl.keys import named_key
from fedjax_ssl.runs.build import Built, facts_of, setup_of
from fedjax_ssl.runs.prediction_files import as_csv
from fedjax_ssl.runs.program import Inputs, on_one_device

FILE = "personal_accuracy.csv"
BATCH = 512  # examples per forward pass, at most


class Tuned(NamedTuple):
    """Result of fine-tuning."""

    fields: dict[str, Any]  # for `summary.json`
    file: str  # content of `FILE`
    line: str  # for the user


def is_asked(config: ml_collections.ConfigDict) -> bool:
    """Return whether a resolved config asks for fine-tuning."""
    return bool(config.personalize.epochs or config.personalize.steps)


def check(built: Built) -> None:
    """Refuse fine-tuning that cannot be done or tested, before anything is trained.

    Raises:
        ConfigError: the method predicts otherwise than by its network's class scores, no client has
            test examples of its own, or examples stay on the host.
    """
    config = built.experiment.config
    if not is_asked(config):
        return
    said = "config.personalize.epochs or steps is given, but"
    if config.model.train != "all":
        raise ConfigError(
            f"{said} config.model.train is {config.model.train!r}, and clients tune all of the "
            "network; leave one of them out"
        )
    if built.method.apply is None:
        raise ConfigError(
            f"{said} method {config.method.name!r} does not predict with the class scores of a "
            "network, which clients could tune; leave them out"
        )
    if not built.federation.owned_test:
        raise ConfigError(
            f"{said} no client has test examples of its own to test its copy on; hold some out, "
            "for example config.data.client_test_fraction=0.2, or leave them out"
        )
    if built.experiment.host is not None:
        raise ConfigError(
            f"{said} examples stay on the host, and all clients tune at once; use "
            "config.data.residence=device, or leave them out"
        )


def tune(built: Built, state: ServerState, inputs: Inputs, names: list[str]) -> Tuned | None:
    """Let the clients tune copies of a model, and test them; None: nobody asked for it.

    A client with a model of its own tunes that one, all others the global one. A client without a
    labelled example tests the model as it is.

    Args:
        built: the run.
        state: with the model, on one device.
        inputs: the run's key and federation.
        names: of the clients.
    """
    config = built.experiment.config
    if not is_asked(config):
        return None
    own = config.personalize
    inputs = on_one_device(inputs)
    federation = inputs.federation
    setup = _setup(built, federation)
    program = jax.jit(partial(_tuned, built, setup))
    key = named_key(inputs.key, "fine-tuning")
    before, after = program(key, state, federation)
    mean = jnp.mean(after, where=~jnp.isnan(after))
    worst = over_clients(after)["worst_tenth"]
    found = {"accuracy": mean, "accuracy_worst_tenth": worst, **compared(before, after)}
    scores = {name: round(float(value), 6) for name, value in found.items()}
    number = int(jnp.sum(federation.num_labelled > 0))
    asked = {name: own[name] for name in ("epochs", "steps") if own[name]}
    rows = [
        {"client": name, "before": float(old), "after": float(new)}
        for name, old, new in zip(names, before, after, strict=False)  # new clients have no labels
        if not jnp.isnan(new)
    ]
    line = (
        f"{counted(number, 'client')} tuned copies of the model: mean accuracy "
        f"{scores['global_accuracy']:.2%} before, {scores['accuracy']:.2%} after, worst tenth "
        f"{scores['global_accuracy_worst_tenth']:.2%} and {scores['accuracy_worst_tenth']:.2%}; "
        f"{scores['gain']:.0%} of the clients gain"
    )
    fields = {**asked, "tuned_clients": number, **scores}
    return Tuned(fields, as_csv(rows, "%.6f"), line)


def both_by_client(common: dict[str, float], own: dict[str, float]) -> str:
    """Write clients' accuracies by the global model and by their own ones, as `FILE` holds them."""
    rows = [{"client": name, "global": common[name], "own": own[name]} for name in common]
    return as_csv(rows, "%.6f")


def _setup(built: Built, federation: FederatedData) -> Setup:
    """Return the setup of the round in which clients tune."""
    config = built.experiment.config
    own = config.personalize
    given = config.to_dict()
    given["optimizer"] |= {
        "local_epochs": own.epochs or 1,
        "local_steps": own.steps,
        "keep_state": False,
        "average_state": False,
    }
    facts = facts_of(given, federation)
    setup = setup_of(given, built.experiment.dataset, federation, facts)
    rate = own.learning_rate or config.optimizer.learning_rate
    return setup._replace(
        learning_rate=lambda number: jnp.asarray(rate, jnp.result_type(float)),
        cohort_size=federation.num_clients,
        draw_cohort=federated.sample_cohort,
        local_scores=False,
        uploads=(),
        participation=None,
        combine_uploads=None,
    )


def _tuned(
    built: Built, setup: Setup, key: Array, state: ServerState, data: FederatedData
) -> tuple[Float[Array, " C"], Float[Array, " C"]]:
    """Return each client's accuracy before and after."""
    method = built.method
    network = method.network
    apply = method.apply
    assert network is not None and apply is not None, "see `check`"
    has_own = method.predict_for is not None

    def before_of(client: Array) -> tuple[Any, Any]:
        return network(state, client) if has_own else network(state)

    def score(state: ServerState, client: Array, raw: Array) -> Array:
        return apply(*before_of(client), raw)

    before = own_accuracies(score, state, data, BATCH)
    alone = federated.execute(methods.build("alone", setup), Execution())
    start = alone.init(key, data)
    form = packing(start.params["model"])

    def packed(client: Array) -> tuple[Any, Array]:
        weights, own = before_of(client)
        return form.pack(weights), ravel_pytree(own)[0]

    weights, own = jax.vmap(packed)(jnp.arange(data.num_clients, dtype=jnp.int32))
    kept = start.clients._replace(params={"model": weights}, model_state=own)
    end, _ = alone.round(key, start._replace(clients=kept), data)
    assert alone.predict_for is not None, "clients that train alone have models of their own"
    after = own_accuracies(alone.predict_for, end, data, BATCH)
    return before, after
