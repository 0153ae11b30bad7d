"""Federations beyond labels at clients: class shares of sets, clients of several kinds, one-shot
prediction.
"""

from typing import Literal, get_args

import ml_collections

from fedjax_ssl.config import default
from fedjax_ssl.presets.variants import Iid, Several

FedulMethod = Literal["fedul", "fedpl", "fedllp", "fedllp_vat", "fedavg"]
FEDUL_METHODS = get_args(FedulMethod)
Mixed = Literal["mixed", "channels", "labels", "labels_xclp", "coarse", "sets"]
MIXED_VARIANTS = get_args(Mixed)
OneShot = Literal["inputs", "network", "left_out"]


def unlabelled_sets(
    sets: Several = 10,
    split: Iid = "iid",
    method: FedulMethod = "fedul",
) -> ml_collections.ConfigDict:
    """Return five clients with unlabelled sets, trained with Adam: the base of the configs of
    FedUL's benchmark.

    Args:
        sets: sets of each client.
        split: "noniid" gives every client two main classes.
        method: "fedavg" has class labels of a tenth of the examples in place of sets.
    """
    config = default(method)
    config.partition.update(name="iid" if split == "iid" else "majority", num_clients=5)
    if method == "fedavg":
        config.supervision.update(name="fraction", fraction=0.1)
    else:
        config.supervision.update(name="sets", sets=sets)
    config.optimizer.name = "adam"
    config.eval_every = 1
    return config


def mixed_federation(
    variant: Mixed, labelled: int, coarse: int, sets: int
) -> ml_collections.ConfigDict:
    """Return a federation of clients with labels, coarse labels, sets, or nothing; or the rest
    without some of them.

    Args:
        variant: "mixed": all of them, with channels and propagated labels. "channels": all of them,
            channels alone. "labels": only the clients with class labels, which is what most methods
            can use. "labels_xclp": all others are clients without labels (FedAvg+XCLP). "coarse",
            "sets": only such clients.
        labelled: clients with class labels.
        coarse: clients with coarse labels.
        sets: clients with sets.
    """
    everybody = variant in ("mixed", "channels")
    config = default(
        {"mixed": "mixed", "labels": "fedavg", "labels_xclp": "xclp"}.get(variant, "fedul")
    )
    config.supervision.name = "mixed"
    config.supervision.labelled_clients = (
        labelled if everybody or variant.startswith("labels") else 0
    )
    config.supervision.coarse_clients = coarse if everybody or variant == "coarse" else 0
    config.supervision.set_clients = sets if everybody or variant == "sets" else 0
    config.supervision.which = "random"
    return config


def one_shot(variant: OneShot, rounds: int) -> ml_collections.ConfigDict:
    """Return the base of the configs that predict for new examples (XCLP section 4).

    Args:
        variant: "inputs": graphs of the stored inputs, without training. "network": graphs of the
            features of a network that FedAvg trains on the labels. In both, a fifth of every
            client's examples is new and a tenth of the others is labelled. "left_out": features as
            in "network", all examples of one client are new, and all examples of the others are
            labelled.
        rounds: rounds of FedAvg, where a network is trained.
    """
    predictors = {
        "inputs": "xclp,per_client_lp",
        "network": "network,xclp,per_client_lp",
        # per-client LP has no label to propagate at a client that is left out
        "left_out": "network,xclp",
    }
    config = default("fedavg")
    config.rounds = 0 if variant == "inputs" else rounds
    config.prediction.predictors = predictors[variant]
    config.prediction.features = "inputs" if variant == "inputs" else "network"
    if variant == "left_out":
        config.data.left_out_client = 0
        return config
    config.data.client_test_fraction = 0.2
    config.supervision.update(name="fraction", fraction=0.1)
    config.prediction.unlabelled = "both"
    return config
