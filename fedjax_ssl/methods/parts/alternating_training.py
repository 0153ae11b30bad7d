"""Training in turns at clients and server: `single`, SemiFL, FedMT, fedtrans."""

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.federated import Method, Pretraining, ServerTraining, Setup, Stage, federated_method, labelled_epochs
from fedjax_ssl.federated.static_batch_norm import with_static_batch_norm
from fedjax_ssl.federated.terms import supervised_term


def alternating(
    setup: Setup,
    clients: Stage,
    server_batch_size: int,
    server_epochs: int,
    static_batch_norm: bool,
    needs: tuple[str, ...],
    server_first: bool = False,
) -> Method:
    """Rounds in which the server trains after the clients, where it has examples.

    Args:
        setup: the run.
        clients: what they do; without terms, nothing.
        server_batch_size: examples per step at the server.
        server_epochs: epochs per round at the server.
        static_batch_norm: whether statistics of batch norm layers come from a pass over the data.
        needs: what the method learns from.
        server_first: before round 0 the server trains as in a round, at the learning rate of round 0.
    """
    server = server_training(setup, server_batch_size, server_epochs)
    stage = clients._replace(server=server) if setup.max_server or not clients.terms else clients
    first = Pretraining(server, 1, setup.learning_rate) if server_first and setup.max_server else None
    method = federated_method(setup, (stage,), needs=needs, pretraining=first)
    return with_static_batch_norm(method, setup.model, setup.normalize) if static_batch_norm else method


def server_training(setup: Setup, batch_size: int, epochs: int) -> ServerTraining:
    """Epochs of supervised training on the server's labelled examples, weakly augmented.

    Raises:
        ValueError: a number below 1.
    """
    check_whole_numbers(server_batch_size=batch_size, server_epochs=epochs)
    return ServerTraining((supervised_term(setup),), labelled_epochs(batch_size, epochs, setup.max_server))
