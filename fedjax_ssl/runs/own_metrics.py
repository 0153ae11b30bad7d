"""Metrics of a user's own: functions (labels [n], probabilities [n, K]) -> number, called on the
host after a block.
"""

import math

import numpy as np
from jaxtyping import Float

from fedjax_ssl.config import ConfigError, own_metrics
from fedjax_ssl.data.federation.federated_data import real_rows
from fedjax_ssl.errors import naming
from fedjax_ssl.own_code import number_from
from fedjax_ssl.runs.build import Built
from fedjax_ssl.runs.callbacks import Block
from fedjax_ssl.runs.processes import Team


class OwnMetrics:
    """The functions that `config.metrics` names, as a callback that adds their columns."""

    def __init__(self, built: Built, team: Team):
        """Try the functions, before anything is compiled.

        Args:
            built: the run; test and validation examples that have a label are scored.
            team: all processes; the numbers are those of the first one.

        Raises:
            ConfigError: a function raises, or returns no number, for random probabilities; or
                there is no global model.
        """
        config = built.experiment.config
        federation = built.federation
        self._team = team
        self._functions = own_metrics(config)
        if self._functions and built.method.recipe.alone:
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
        for kind, labels in self._labels.items():
            self._score(kind, draw(np.ones(federation.num_classes), len(labels)).astype(np.float32))

    def __call__(self, block: Block) -> None:
        """Take the log-probabilities out of a block's metrics and score them.

        Raises:
            ConfigError: a function raises, or returns no number. The row can be stored without it.
        """
        taken = {kind: block.row.pop(f"{kind}_log_probs") for kind in self._labels}
        found: dict[str, float] = {}
        for kind, log_probs in taken.items():
            found |= self._score(kind, np.exp(log_probs))
        if self._functions:
            block.row.update(self._team.values_from_first(found))

    def _score(self, kind: str, probabilities: Float[np.ndarray, "n K"]) -> dict[str, float]:
        labels = self._labels[kind]
        known = labels >= 0
        given = labels[known], probabilities[: len(labels)][known]
        with naming("metrics"):
            return {
                f"{kind}_{name}": number_from(name, function, *given) if known.any() else math.nan
                for name, function in self._functions.items()
            }
