"""Whether a run's weights of clients fit the method and the federation."""

import numpy as np

from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method


def check_weighting(weighting: str, method: Method, federation: FederatedData) -> None:
    """Refuses weights of 0 for clients that train.

    Args:
        weighting: `config.federated.weighting`.
        method: of the run.
        federation: its clients; not traced.

    Raises:
        ConfigError: clients are weighted by their class labels, and some that the method trains have none.
    """
    if weighting != "labelled" or not method.trains_unlabelled:
        return
    without = (np.asarray(federation.num_examples) > 0) & (np.asarray(federation.num_labelled) == 0)
    if without.any():
        raise ConfigError(
            f"config.federated.weighting is 'labelled', but {without.sum()} of {federation.num_clients} clients have "
            "no class labels: this method trains them, and with weight 0 nothing of it would count. Use 'uniform' or "
            "'examples'"
        )
