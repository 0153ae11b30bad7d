"""FedUL: learning a classifier from unlabelled sets whose class shares are known.

Every client tells its sets apart through a fixed transition layer on top of the classifier; the classifier that does so
best is the one wanted, and the layer is dropped at test time. A client with class labels is a client whose sets are
pure, and one with coarse labels has another matrix, so that all of them may train together.

References:
    Lu, Wang, Li, Niu, Dou, Sugiyama, Federated learning from only unlabeled data with class-conditional-sharing
    clients, ICLR 2022, arXiv 2204.03304: theorem 1 and algorithm 1.
"""

from fedjax_ssl.federated import Method, Setup, federated_method
from fedjax_ssl.methods.parts.channel_terms import channel_term, known_stage, own_channel


def fedul(
    setup: Setup,
    *,
    l1: float = 0.0,
    use_test_prior: bool = True,
    surrogate_loss: str = "nll",
    drop_last: bool = False,
) -> Method:
    """FedUL with whatever federated optimizer the run names.

    Args:
        setup: the run.
        l1: weight of the sum of the parameters' absolute values.
        use_test_prior: False leaves the division by the test prior out, as the released code does: then a posterior
            under uniform class shares is learned.
        surrogate_loss: "nll", or "ce_on_probs" as in the released code, which is no proper loss.
        drop_last: leave the last partial batch of an epoch out, as the released code does.

    Raises:
        ValueError: for an unknown loss or a negative weight.
    """
    term = channel_term(setup, channel=own_channel(use_test_prior), surrogate_loss=surrogate_loss)
    return federated_method(setup, (known_stage(setup, (term,), l1, drop_last),), needs=("sets", "coarse", "labels"))
