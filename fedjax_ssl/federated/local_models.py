"""Scores of the cohort's own models after local training, for the log alone.

`config.metrics` names their accuracy "local". It shows how far clients' models are from their
average, and how much a client forgets of its labelled examples while it learns from others.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.federated.contract import (
    AtServer,
    ClientResult,
    ForLog,
    Metrics,
    Params,
    PyTree,
    RoundResult,
    Snapshot,
    Stage,
    Term,
    never,
)
from fedjax_ssl.federated.forward import map_rows
from fedjax_ssl.federated.setup import Setup

TERM = "local_models"
CLIENT_MODELS = "client_models"  # metric of a round: clients' models before averaging, a tree


def with_local_scores(setup: Setup, stage: Stage, combine: Callable[[Params], PyTree]) -> Stage:
    """Return the same stage, whose rounds also log the accuracy of the clients' own models.

    Metrics, each the mean over the clients that trained: "local_test_accuracy" on all test
    examples; "local_labelled_accuracy" on the client's own labelled examples, and
    "received_labelled_accuracy" on these before it trained.

    Args:
        setup: the run.
        stage: a stage; without terms of its own, it is returned unchanged.
        combine: parameters by group -> the network's parameters.
    """
    if not stage.client_terms:
        return stage

    def accuracy(
        params: PyTree, trained: ClientResult, rows: Array, labels: Array, real: Array
    ) -> Float[Array, ""]:
        def predict(raw: Array) -> Int[Array, " n"]:
            outputs, _ = setup.model.apply(
                params, trained.model_state, setup.normalize(raw), train=False
            )
            return jnp.argmax(outputs.logits, axis=1).astype(jnp.int32)

        found = map_rows(predict, trained.inputs, rows, setup.evaluation_batch_size)
        return jnp.mean((found == labels).astype(jnp.result_type(float)), where=real)

    def measure(trained: ClientResult) -> dict[str, Array]:
        test = trained.test
        client = trained.client
        found = {}
        if test is None:
            raise ValueError(
                "config.metrics names 'local', which needs test examples on the device, and "
                "these stay on the host; use config.data.residence='device', or leave it out"
            )
        if test.rows.shape[0]:
            real = (jnp.arange(test.rows.shape[0]) < test.num_examples) & (test.labels >= 0)
            found["local_test_accuracy"] = accuracy(
                trained.params, trained, test.rows, test.labels, real
            )
        own = client.rows[: setup.max_labelled], client.observed[: setup.max_labelled]
        if own[0].shape[0]:
            known = jnp.arange(own[0].shape[0]) < client.num_labelled
            found["local_labelled_accuracy"] = accuracy(trained.params, trained, *own, known)
            found["received_labelled_accuracy"] = accuracy(
                combine(trained.start_params), trained, *own, known
            )
        return found

    def diagnose(outcome: RoundResult, truth: Array, measured: dict[str, Array]) -> Metrics:
        return {
            name: jnp.mean(values, where=outcome.counts & ~jnp.isnan(values))
            for name, values in measured.items()
        }

    term = Term(
        TERM,
        (),
        lambda step: jnp.zeros(()),
        group=stage.client_terms[-1].group,
        server=AtServer(participates=never),
        log=ForLog(measure, diagnose),
    )
    return stage.with_terms(term)


def with_client_models(stage: Stage) -> Stage:
    """Return the same stage, whose rounds also have the clients' models, as `CLIENT_MODELS`,
    measured by the last term.
    """
    training = stage.clients
    if training is None:
        return stage
    *others, last = training.terms
    log = last.log

    def measure(trained: ClientResult) -> tuple[PyTree, Snapshot]:
        return log.measure(trained), Snapshot(trained.params, trained.model_state)

    def diagnose(outcome: RoundResult, truth: Array, measured: tuple[PyTree, Snapshot]) -> Metrics:
        own, model = measured
        models = {
            "params": model.params,
            "model_state": model.model_state,
            "client": outcome.context.clients.id,
            "trained": outcome.counts,
        }
        return {**log.diagnose(outcome, truth, own), CLIENT_MODELS: models}

    shown = last._replace(log=log._replace(measure=measure, diagnose=diagnose))
    return stage._replace(clients=training._replace(terms=(*others, shown)))
