"""Prediction for new examples (XCLP section 4)."""

import ml_collections

from fedjax_ssl.config import ConfigError, default


def one_shot(variant: str, rounds: int) -> ml_collections.ConfigDict:
    """Prediction for new examples (XCLP section 4): what all of its config files start from.

    Args:
        variant: "inputs": graphs of the inputs as they are stored, nothing is trained. "network": graphs of the
            features of a network that FedAvg trains on the labels. In both, a fifth of every client's examples is
            new and a tenth of the others is labelled. "left_out": features as in "network", all examples of one
            client are new and all of the others are labelled.
        rounds: of FedAvg, where a network is trained.

    Raises:
        ConfigError: there is no such variant.
    """
    predictors = {
        "inputs": "xclp,per_client_lp",
        "network": "network,xclp,per_client_lp",
        "left_out": "network,xclp",  # per-client LP has no label to propagate there
    }
    if variant not in predictors:
        raise ConfigError(f"there is no variant {variant!r} of this config; it has: {', '.join(predictors)}")
    config = default("fedavg")
    config.rounds = 0 if variant == "inputs" else rounds
    config.prediction.predictors = predictors[variant]
    config.prediction.features = "inputs" if variant == "inputs" else "network"
    if variant == "left_out":
        config.data.left_out_client = 0
        return config
    config.data.client_test_fraction = 0.2
    config.supervision.name = "fraction"
    config.supervision.fraction = 0.1
    config.prediction.unlabelled = "both"
    return config
