"""Metrics of a user's own: functions (labels [n], probabilities [n, K]) -> number, called on the
host after a block.
"""

import math
from typing import Any

import ml_collections
import numpy as np
from jaxtyping import Float

from fedjax_ssl.config import ConfigError, own_metrics
from fedjax_ssl.data import FederatedData
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.errors import naming
from fedjax_ssl.own_code import number_from


class OwnMetrics:
    """The functions that `config.metrics` names, for the examples of one federation.

    Args:
        config: resolved.
        federation: its test and validation examples that have a label are scored; not traced.
        alone: whether clients train alone.

    Raises:
        ConfigError: a function raises, or returns no number, for random probabilities; or there is
            no global model.
    """

    def __init__(self, config: ml_collections.ConfigDict, federation: FederatedData, alone: bool):
        self._functions = own_metrics(config)
        if self._functions and alone:
            raise ConfigError(
                "config.metrics names "
                f"{', '.join(name for name in config.metrics if ':' in name)}, but with "
                f"config.federated.name={config.federated.name!r} clients train alone: there is "
                "no global model whose probabilities it could score"
            )
        tables = {"test": (federation.test_index, federation.num_test)} if self._functions else {}
        if self._functions and federation.valid_index.shape[0]:
            tables["validation"] = federation.valid_index, federation.num_valid
        self._labels = {
            kind: np.asarray(federation.labels)[real_rows(*table)] for kind, table in tables.items()
        }
        draw = np.random.default_rng(0).dirichlet
        for kind, labels in self._labels.items():  # before anything is compiled
            self._score(kind, draw(np.ones(federation.num_classes), len(labels)).astype(np.float32))

    def take(self, row: dict[str, Any]) -> dict[str, float]:
        """Take the log-probabilities out of a block's metrics and score them, by name of the
        column.
        """
        found: dict[str, float] = {}
        for kind in self._labels:
            found |= self._score(kind, np.exp(row.pop(f"{kind}_log_probs")))
        return found

    def _score(self, kind: str, probabilities: Float[np.ndarray, "n K"]) -> dict[str, float]:
        labels = self._labels[kind]
        known = labels >= 0
        given = labels[known], probabilities[: len(labels)][known]
        with naming("metrics"):
            return {
                f"{kind}_{name}": number_from(name, function, *given) if known.any() else math.nan
                for name, function in self._functions.items()
            }
