"""Clients that know nothing but the class shares of their sets (FedUL)."""

import ml_collections

from fedjax_ssl.config import ConfigError, default

FEDUL_METHODS = ("fedul", "fedpl", "fedllp", "fedllp_vat", "fedavg")


def unlabelled_sets(argument: str | None = None) -> ml_collections.ConfigDict:
    """Five clients with unlabelled sets, trained with Adam: what the config files of FedUL's benchmark start from.

    Args:
        argument: sets of each client, split and method, the last two if wanted: "20", "20,noniid", "20,iid,fedpl".
            Split "noniid" gives every client two classes that it mostly has. Method "fedavg" has class labels of a
            tenth of the examples in place of sets.

    Raises:
        ConfigError: it is none of these.
    """
    given = (argument or "10").split(",")
    sets, split, method = (*given, *("10", "iid", "fedul")[len(given) :])[:3]
    known = sets.isdigit() and int(sets) > 1 and split in ("iid", "noniid") and method in FEDUL_METHODS
    if len(given) > 3 or not known:
        raise ConfigError(
            f"the argument of this config is {argument!r}; give the number of sets, at least 2, iid or noniid, and one "
            f"of {', '.join(FEDUL_METHODS)}: for example 10,iid,fedul"
        )
    config = default(method)
    config.partition.name = "iid" if split == "iid" else "majority"
    config.partition.num_clients = 5
    if method == "fedavg":
        config.supervision.name = "fraction"
        config.supervision.fraction = 0.1
    else:
        config.supervision.name = "sets"
        config.supervision.sets = int(sets)
    config.optimizer.name = "adam"
    config.eval_every = 1
    return config
