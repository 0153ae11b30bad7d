"""Training at the server alone, on its own labelled examples: what the clients' data have to improve on."""

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Method, Setup, Stage
from fedjax_ssl.methods.parts.alternating_training import alternating
from fedjax_ssl.methods.parts.settings import Count


@checked
def single(
    setup: Setup, *, server_batch_size: Count = 10, server_epochs: Count = 5, static_batch_norm: bool = True
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
    nobody = Stage((), None)
    return alternating(setup, nobody, server_batch_size, server_epochs, static_batch_norm, needs=("server",))
