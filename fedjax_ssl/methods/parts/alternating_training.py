"""Training in turns at clients and server: `single`, SemiFL, FedMT, fedtrans, (FL)^2."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import (
    Needs,
    Pretraining,
    Recipe,
    ServerTraining,
    Setup,
    Stage,
    labelled_epochs,
)
from fedjax_ssl.methods.parts.settings import Count
from fedjax_ssl.methods.parts.static_batch_norm import with_static_batch_norm
from fedjax_ssl.methods.parts.terms import supervised_term


@checked
@dataclass(frozen=True)
class ServerTurn:
    """Settings of methods whose server trains in turn with the clients.

    Attributes:
        server_batch_size: labelled examples per step at the server.
        server_epochs: epochs per round at the server.
        static_batch_norm: statistics of batch norm layers by a pass over the data, see
            `fedjax_ssl.methods.parts.static_batch_norm`.
    """

    server_batch_size: Count = 10
    server_epochs: Count = 5
    static_batch_norm: bool = True


def alternating(
    setup: Setup,
    clients: Stage,
    settings: ServerTurn,
    needs: tuple[str, ...] = ("server",),
    pretraining_rounds: int = 0,
    keep_optimizer: bool = False,
    norm_batch_sizes: tuple[int | None, int] = (None, 250),
) -> Recipe:
    """Make the rounds in which the server trains after the clients, where it has examples.

    Args:
        setup: the run.
        clients: what they do; without terms, nothing.
        settings: of the server.
        needs: what the method learns from.
        pretraining_rounds: how often the server trains before round 0, each time as in a round and
            at the learning rate of round 0.
        keep_optimizer: the state of the server's optimizer lives on from round to round.
        norm_batch_sizes: sizes of the pass for batch norm layers: of the server's examples, None if
            they are in front of the clients' in one sequence, and of the clients'.
    """
    server = server_training(setup, settings)._replace(keep_optimizer=keep_optimizer)
    stage = clients._replace(server=server) if setup.max_server or not clients.terms else clients
    first = None
    if pretraining_rounds and setup.max_server:

        def rate(number: Int[Array, ""]) -> Float[Array, ""]:
            return setup.learning_rate(jnp.zeros_like(number))

        first = Pretraining(server, pretraining_rounds, rate)
    recipe = Recipe(setup, (stage,), needs=Needs(needs), pretraining=first)
    if not settings.static_batch_norm:
        return recipe
    of_server, of_clients = norm_batch_sizes
    return with_static_batch_norm(recipe, batch_size=of_clients, server_batch_size=of_server)


def server_training(setup: Setup, settings: ServerTurn) -> ServerTraining:
    """Epochs of supervised training on the server's labelled examples, weakly augmented."""
    epochs = labelled_epochs(settings.server_batch_size, settings.server_epochs, setup.max_server)
    return ServerTraining((supervised_term(setup),), epochs)
