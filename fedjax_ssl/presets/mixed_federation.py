"""Clients with labels, coarse labels, sets, or nothing."""

import ml_collections

from fedjax_ssl.config import ConfigError, default

MIXED_VARIANTS = ("mixed", "channels", "labels", "labels_xclp", "coarse", "sets")


def mixed_federation(variant: str, labelled: int, coarse: int, sets: int) -> ml_collections.ConfigDict:
    """A federation of clients with labels, coarse labels, sets, or nothing; or what is left without some of them.

    Args:
        variant: "mixed": all of them, with channels and propagated labels. "channels": all of them, channels alone.
            "labels": only the clients with class labels, as people do who leave out what they cannot use.
            "labels_xclp": all others are clients without labels (FedAvg+XCLP). "coarse", "sets": only such clients.
        labelled: clients with class labels.
        coarse: clients with coarse labels.
        sets: clients with sets.

    Raises:
        ConfigError: there is no such variant.
    """
    if variant not in MIXED_VARIANTS:
        raise ConfigError(f"there is no variant {variant!r} of this config; it has: {', '.join(MIXED_VARIANTS)}")
    everybody = variant in ("mixed", "channels")
    config = default({"mixed": "mixed", "labels": "fedavg", "labels_xclp": "xclp"}.get(variant, "fedul"))
    config.supervision.name = "mixed"
    config.supervision.labelled_clients = labelled if everybody or variant.startswith("labels") else 0
    config.supervision.coarse_clients = coarse if everybody or variant == "coarse" else 0
    config.supervision.set_clients = sets if everybody or variant == "sets" else 0
    config.supervision.which = "random"
    return config
