"""Training at the server alone, on its own labelled examples: what the clients' data have to improve on."""

from fedjax_ssl.federated import Method, ServerTraining, Setup, Stage, federated_method, labelled_epochs
from fedjax_ssl.federated.static_batch_norm import with_static_batch_norm
from fedjax_ssl.federated.terms import supervised_term


def single(
    setup: Setup, *, server_batch_size: int = 10, server_epochs: int = 5, static_batch_norm: bool = True
) -> Method:
    """Supervised training at the server; the clients do nothing.

    Args:
        setup: the run.
        server_batch_size: labelled examples per step.
        server_epochs: epochs per round.
        static_batch_norm: statistics of batch norm layers by a pass over the data, see
            `fedjax_ssl.federated.static_batch_norm`.

    Raises:
        ValueError: a number below 1.
    """
    stage = Stage((), None, server=server_training(setup, server_batch_size, server_epochs))
    method = federated_method(setup, (stage,), needs=("server",))
    return with_static_batch_norm(method, setup.model, setup.normalize) if static_batch_norm else method


def server_training(setup: Setup, batch_size: int, epochs: int) -> ServerTraining:
    """Epochs of supervised training on the server's labelled examples, weakly augmented.

    Raises:
        ValueError: a number below 1.
    """
    for name, value in (("server_batch_size", batch_size), ("server_epochs", epochs)):
        if isinstance(value, bool) or int(value) != value or value < 1:
            raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
    return ServerTraining((supervised_term(setup),), labelled_epochs(batch_size, epochs, setup.max_server))
