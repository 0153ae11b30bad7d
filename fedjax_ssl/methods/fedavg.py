"""Federated averaging on the labelled examples only; stage 1 and lower baseline of the
semi-supervised methods.

References:
    McMahan et al., Communication-efficient learning of deep networks from decentralized data,
    AISTATS 2017. As "FedAvg (labeled only)": Scott et al., Cross-client label propagation for
    transductive and semi-supervised federated learning, TMLR 2023.
"""

from fedjax_ssl.federated import Recipe, Setup
from fedjax_ssl.methods.parts.two_stages import labelled_stage


def fedavg(setup: Setup) -> Recipe:
    """FedAvg (or whatever federated optimizer the run names) on labelled examples of clients that
    have some.

    The loss, mean cross-entropy, is `supervised_term` of `fedjax_ssl/methods/parts/terms.py`.
    """
    return Recipe(setup, (labelled_stage(setup, rounds=None),))
