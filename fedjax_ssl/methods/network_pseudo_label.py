"""FedAvg+network: the global network's own predictions as pseudo-labels, made anew for the cohort in every round.

References:
    Baseline of Scott et al., TMLR 2023, arXiv 2210.06434, after Lee, Pseudo-label, ICML workshop 2013.
"""

from fedjax_ssl.checks import checked
from fedjax_ssl.federated import Method, RoundContext, Setup
from fedjax_ssl.federated.method import PyTree
from fedjax_ssl.federated.terms import PseudoLabels, network_pseudo_labels, pseudo_label_term
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.settings import CountOrZero
from fedjax_ssl.methods.parts.two_stages import after_labelled_stage, mixed_stage


@checked
def network_pseudo_label(setup: Setup, *, warmup_rounds: CountOrZero = 0, augment_predictions: bool = False) -> Method:
    """FedAvg+network: target = the network's class, weight = 1 - entropy / log K of its softmax.

    Args:
        setup: the run.
        warmup_rounds: rounds of labels-only training before.
        augment_predictions: predict on weakly augmented examples, as the authors' code does.
    """

    def prepare(state: PyTree, round: RoundContext) -> tuple[PseudoLabels, PyTree]:
        key = named_key(round.key, "predictions") if augment_predictions else None
        return network_pseudo_labels(setup, round, round.clients, key), state

    return after_labelled_stage(setup, mixed_stage(setup, pseudo_label_term(setup, prepare)), warmup_rounds)
