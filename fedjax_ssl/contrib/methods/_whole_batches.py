"""Local steps and weights of SAGE and ProxyFL, in which every client has a few labels."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.federated import Client, PyTree, Setup, Stage, Steps, Term, Training, paired_batches

RECOMMENDED = {
    "per_client": {
        "rounds": 80,
        "optimizer.learning_rate": 0.1,
        "optimizer.batch_size": 16,
        # ten steps: with fifty, clients confirm their own mistakes
        "optimizer.local_epochs": 1,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 1e-4,
    }
}


def whole_batches(
    setup: Setup, terms: tuple[Term, ...], unlabelled_ratio: int, labelled_copies: float | Array
) -> Stage:
    """Return a stage whose local epoch has one step for each whole batch of labelled examples that
    fits into all examples of a client; a client with fewer examples takes no step.

    Args:
        setup: the run.
        terms: losses of the clients.
        unlabelled_ratio: unlabelled examples, labelled ones among them, per labelled one in a step.
        labelled_copies: see `client_weight`.
    """
    size = setup.batch_size
    most = setup.max_labelled + setup.max_unlabelled
    steps = Steps(
        lambda client: setup.local_epochs * steps_per_epoch(setup, client),
        max(setup.local_epochs * (most // size), 1),
    )
    sampler = paired_batches(
        size,
        unlabelled_ratio * size,
        steps,
        setup.max_labelled,
        setup.max_unlabelled,
        labelled_too=True,
    )

    def weigh(client: Client, uploads: dict[str, PyTree]) -> Float[Array, ""]:
        return client_weight(client, labelled_copies)

    return Stage(Training(terms, sampler, weigh=weigh))


def steps_per_epoch(setup: Setup, client: Client) -> Int[Array, ""]:
    """Return the number of whole batches in a client's examples."""
    return client.num_examples // setup.batch_size


def client_weight(client: Client, labelled_copies: float | Array) -> Float[Array, ""]:
    """Return |S| labelled_copies + |U|, where U are all examples of the client, including the
    labelled ones S.
    """
    dtype = jnp.result_type(float)
    return labelled_copies * client.num_labelled.astype(dtype) + client.num_examples.astype(dtype)
