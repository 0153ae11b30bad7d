"""Metrics of a user's own: functions (labels [n], probabilities [n, K]) -> number, called on the host after a block."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
import numpy as np
from jaxtyping import Float, Int

from fedjax_ssl.config import ConfigError, own_metrics
from fedjax_ssl.data import FederatedData
from fedjax_ssl.own_code import said, where

Function = Callable[[Int[np.ndarray, " n"], Float[np.ndarray, "n K"]], Any]


class OwnMetrics:
    """The functions that `config.metrics` names, for the examples of one federation.

    Args:
        config: resolved.
        federation: its test and validation examples that have a label are scored; not traced.
        alone: whether clients train alone.

    Raises:
        ConfigError: a function raises, or returns no number, for random probabilities; or there is no global model.
    """

    def __init__(self, config: ml_collections.ConfigDict, federation: FederatedData, alone: bool):
        self._functions = own_metrics(config)
        if self._functions and alone:
            raise ConfigError(
                f"config.metrics names {', '.join(name for name in config.metrics if ':' in name)}, but with "
                f"config.federated.name={config.federated.name!r} clients train alone: there is no global model whose "
                "probabilities it could score"
            )
        labels, tables = np.asarray(federation.labels), {"test": (federation.test_index, federation.num_test)}
        if federation.valid_index.shape[0]:
            tables["validation"] = federation.valid_index, federation.num_valid
        rows = {kind: np.asarray(index)[: int(count)] for kind, (index, count) in tables.items()}
        self._labels = {kind: labels[one] for kind, one in rows.items()} if self._functions else {}
        draw = np.random.default_rng(0).dirichlet
        for found in self._labels.values():  # before anything is compiled
            self._score(found, draw(np.ones(federation.num_classes), len(found)).astype(np.float32))

    def take(self, row: dict[str, Any]) -> dict[str, float]:
        """Take the log-probabilities out of a block's metrics and score them, by name of the column."""
        found: dict[str, float] = {}
        for kind, labels in self._labels.items():
            probabilities = np.exp(row.pop(f"{kind}_log_probs")[: len(labels)])
            found |= {f"{kind}_{name}": value for name, value in self._score(labels, probabilities).items()}
        return found

    def _score(self, labels: np.ndarray, probabilities: np.ndarray) -> Mapping[str, float]:
        known = labels >= 0
        if not known.any():
            return dict.fromkeys(self._functions, math.nan)
        return {
            name: _number(name, function, labels[known], probabilities[known])
            for name, function in self._functions.items()
        }


def _number(name: str, function: Function, labels: np.ndarray, probabilities: np.ndarray) -> float:
    try:
        value = np.asarray(function(labels, probabilities))
    except Exception as error:
        raise ConfigError(f"config.metrics: {name} raised {type(error).__name__}: {said(error)}") from error
    if value.ndim or value.dtype.kind not in "biuf":
        given = f"{value.dtype} {list(value.shape)}" if value.ndim else value.dtype
        raise ConfigError(f"config.metrics: {name} has to return one number, and {given} came ({where(function)})")
    return float(value)
