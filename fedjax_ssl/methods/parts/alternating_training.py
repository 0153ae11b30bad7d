"""Alternating training of clients and server: `single`, SemiFL, FedMT, fedtrans, (FL)^2."""

from dataclasses import dataclass

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import (
    Needs,
    Recipe,
    Setup,
    Stage,
    Training,
    labelled_epochs,
)
from fedjax_ssl.methods.parts.setting_types import Count
from fedjax_ssl.methods.parts.static_batch_norm import with_static_batch_norm
from fedjax_ssl.methods.parts.terms import supervised_term


@checked
@dataclass(frozen=True)
class ServerTurn:
    """Settings of methods whose server trains alternately with the clients.

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
    warm_up_rounds: int = 0,
    keep_optimizer: bool = False,
    norm_batch_sizes: tuple[int | None, int] = (None, 250),
) -> Recipe:
    """Return the stages in which clients train, and then the server, if it has examples.

    Args:
        setup: the run.
        clients: the clients' training.
        settings: settings of the server.
        needs: kinds of labels that the method needs.
        warm_up_rounds: rounds at the start in which the server trains alone.
        keep_optimizer: keep the state of the server's optimizer between rounds.
        norm_batch_sizes: batch sizes of the pass for batch norm layers: for the server's examples
            (None: they come before the clients' in one sequence), and for the clients'.
    """
    stage = clients._replace(keep_server_optimizer=keep_optimizer)
    stages: tuple[Stage, ...] = (stage,)
    if setup.max_server or not clients.clients:
        stage = stage._replace(server=server_training(setup, settings))
        stages = (stage,)
        if warm_up_rounds:
            stages = (stage._replace(clients=None, rounds=warm_up_rounds), stage)
    recipe = Recipe(setup, stages, needs=Needs(needs))
    if not settings.static_batch_norm:
        return recipe
    of_server, of_clients = norm_batch_sizes
    return with_static_batch_norm(recipe, batch_size=of_clients, server_batch_size=of_server)


def server_training(setup: Setup, settings: ServerTurn) -> Training:
    """Return supervised training on the server's labelled examples, weakly augmented."""
    epochs = labelled_epochs(settings.server_batch_size, settings.server_epochs, setup.max_server)
    return Training((supervised_term(setup),), epochs)
