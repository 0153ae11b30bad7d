"""Federated averaging on the labelled examples only; stage 1 and lower baseline of the
semi-supervised methods.

This is Algorithm 1 of the paper, with the place in `fedjax_ssl/` of every line. All methods run the
same lines with other losses, batches and messages.

| Server executes: | |
|---|---|
| initialize w_0 | `federated/engine.py` `_init_of` |
| for each round t = 1, 2, ... do | `runs/rounds.py` `run_rounds` |
| - one round | `federated/round.py` `run_round` |
| - S_t = random set of m clients | `federated/cohort.py` `sample_cohort` |
| - for each client k in S_t in parallel do | `federated/placement.py` `train_cohort` |
| -- w_t+1^k = ClientUpdate(k, w_t) | `federated/client.py` `train_client` |
| - n_k, the weight of a client | `federated/setup.py` `WEIGHTINGS` |
| - sum over k of n_k (w_t+1^k - w_t), in client order | `federated/placement.py` `add_in_order` |
| - w_t+1 = w_t + that sum / n | `federated/optimizers.py` `fedavg` |

| ClientUpdate(k, w): | |
|---|---|
| B = split the examples P_k into batches of size B | `federated/sampler.py` `labelled_epochs` |
| for each local epoch, for each batch b in B do | `federated/client.py` `train_client` |
| - the examples of b | `federated/forward.py` `gather_streams` |
| - loss l(w; b) | `methods/parts/terms.py` `supervised_term` |
| - its gradient | `federated/client.py` `plain_gradient` |
| - w = w - eta times the gradient | `federated/local_optimizer.py` `descend` |
| return w to the server | `federated/client.py` `finish_client` |

References:
    McMahan et al., Communication-efficient learning of deep networks from decentralized data,
    AISTATS 2017. As "FedAvg (labeled only)": Scott et al., Cross-client label propagation for
    transductive and semi-supervised federated learning, TMLR 2023.
"""

from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Recipe, Setup, local
from fedjax_ssl.methods.parts.composition import Part
from fedjax_ssl.methods.parts.terms import supervised_term
from fedjax_ssl.methods.parts.two_stages import labelled_stage


def fedavg(setup: Setup) -> Recipe:
    """FedAvg (or whatever federated optimizer the run names) on labelled examples of clients that
    have some.
    """
    return Recipe(setup, (labelled_stage(setup, rounds=None),))


def supervised(setup: Setup) -> Part:
    """Cross-entropy of class labels."""
    return Part(supervised_term(setup), ("labels",), True)


def alone(setup: Setup) -> Recipe:
    """No federation: each client trains its own model on its labelled examples, without the run's
    federated optimizer.
    """
    return fedavg(setup._replace(federated_optimizer=local()))


def pooled(setup: Setup) -> Recipe:
    """All data in one place: training on the labelled examples of all clients and the server, as
    one client.
    """

    def check(federation: FederatedData) -> list[str]:
        if federation.num_clients > 1:
            raise ValueError(
                f"method 'pooled' trains in one place, but there are {federation.num_clients} "
                "clients; set config.partition.pooled=True"
            )
        return []

    return fedavg(setup)._replace(check=check)
