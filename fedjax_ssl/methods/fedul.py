"""FedUL: learning a classifier from unlabelled sets whose class shares are known.

Client c knows the share pi_mk of class k in each of its sets m, the share bar_pi_m of set m in its
examples, and the class shares pi_k at test time. With eta_k(x) = p(y = k | x), an example is in set
m with probability

    Q_m(eta) = bar_pi_m sum_k pi_mk eta_k / pi_k, normalized over m    (theorem 1).

Clients minimize the mean of -log Q_m(softmax f(x)) over their examples, plus l1 times the sum of
the parameters' absolute values; any federated optimizer averages them (algorithm 1). The classifier
that separates the sets best is eta itself, so the layer Q, which has no parameters, is dropped at
test time. A client with class labels has pure sets, and a client with coarse labels another matrix,
so that all of them can train together.

References:
    Lu, Wang, Li, Niu, Dou, Sugiyama, Federated learning from only unlabeled data with
    class-conditional-sharing clients, ICLR 2022, arXiv 2204.03304: theorem 1 and algorithm 1.
"""

from typing import Literal

from fedjax_ssl.checks import checked
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Needs, Recipe, Setup
from fedjax_ssl.methods.parts.channel_terms import KNOWN, channel_term, known_stage, own_channel
from fedjax_ssl.methods.parts.composition import Part
from fedjax_ssl.methods.parts.recommended import IN_SETS
from fedjax_ssl.methods.parts.setting_types import Weight

RECOMMENDED = {"fedul": {"sets": IN_SETS}}


@checked
def fedul(
    setup: Setup,
    *,
    l1: Weight = 0.0,
    use_test_prior: bool = True,
    surrogate_loss: Literal["nll", "ce_on_probs"] = "nll",
    drop_last: bool = False,
) -> Recipe:
    """FedUL with whatever federated optimizer the run names.

    Args:
        setup: the run.
        l1: weight of the sum of the parameters' absolute values.
        use_test_prior: False: do not divide by the test prior, as in the released code; this learns
            the posterior under uniform class shares.
        surrogate_loss: "nll", or "ce_on_probs" as in the released code, which is not a proper loss.
        drop_last: leave out the last partial batch of an epoch, as in the released code.

    Raises:
        ValueError: for an unknown loss or a negative weight.
    """
    layer = own_channel(use_test_prior)  # Q, from the federation's facts about the client's sets
    loss = channel_term(setup, channel=layer, surrogate_loss=surrogate_loss)
    # Epochs over all examples that are in a set or have a label.
    stage = known_stage(setup, (loss,), l1, drop_last)
    needs = Needs(("sets", "coarse", "labels"))
    return Recipe(setup, (stage,), needs=needs, check=_check)


def channels(setup: Setup, *, use_test_prior: bool = True) -> Part:
    """Cross-entropy of class labels, coarse labels and counted sets (FedUL).

    Every observation is explained by its client's channel.

    Args:
        setup: the run.
        use_test_prior: as in `fedul`.
    """
    return Part(channel_term(setup, channel=own_channel(use_test_prior)), KNOWN, True)


def sets(setup: Setup, *, use_test_prior: bool = True) -> Part:
    """Cross-entropy of the sets that examples are in (FedUL).

    It uses the sets' class shares.

    Args:
        setup: the run.
        use_test_prior: as in `fedul`.
    """
    term = channel_term(setup, channel=own_channel(use_test_prior), kinds=("sets",))
    return Part(term._replace(name="sets"), ("sets",), True)


def _check(data: FederatedData) -> list[str]:
    if {"sets", "coarse"} & set(data.kinds()):
        return []
    return [
        "clients have class labels alone, no sets and no coarse labels: with those, fedul is FedAvg"
    ]
