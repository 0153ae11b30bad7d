"""Stages of the methods whose labels are at the server: `single`, SemiFL, FedMT, fedtrans."""

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.federated import Method, ServerTraining, Setup, Stage, federated_method, labelled_epochs
from fedjax_ssl.federated.static_batch_norm import with_static_batch_norm
from fedjax_ssl.federated.terms import supervised_term


def alternating(
    setup: Setup,
    stage: Stage,
    server_batch_size: int,
    server_epochs: int,
    static_batch_norm: bool,
    needs: tuple[str, ...],
    server_first: bool = False,
) -> Method:
    """Rounds of a stage in which the server trains after the clients, where it has examples.

    Args:
        setup: the run.
        stage: of the clients; one without terms leaves training to the server.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.
        static_batch_norm: whether statistics of batch norm layers come from a pass over the data.
        needs: what the method learns from.
        server_first: the server alone trains in the first round.
    """
    server = server_training(setup, server_batch_size, server_epochs)
    stages: tuple[Stage, ...] = (stage._replace(server=server) if setup.max_server or not stage.terms else stage,)
    if server_first and setup.max_server:
        stages = (Stage((), None, rounds=1, server=server), *stages)
    method = federated_method(setup, stages, needs=needs)
    return with_static_batch_norm(method, setup.model, setup.normalize) if static_batch_norm else method


def server_training(setup: Setup, batch_size: int, epochs: int) -> ServerTraining:
    """Epochs of supervised training on the server's labelled examples, weakly augmented.

    Raises:
        ValueError: a number below 1.
    """
    check_whole_numbers(server_batch_size=batch_size, server_epochs=epochs)
    return ServerTraining((supervised_term(setup),), labelled_epochs(batch_size, epochs, setup.max_server))
