"""Shared parts of the runs in a process: the dataset, the federations drawn from it, the
programs.
"""

import json
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.data import FederatedData, LoadedInputs
from fedjax_ssl.data.federation.federated_data import of_one_shape
from fedjax_ssl.folder.files import plain_value
from fedjax_ssl.prediction import one_shot
from fedjax_ssl.runs.build import (
    Built,
    Experiment,
    build,
    drawing_of,
    federate,
    load_resolved,
)
from fedjax_ssl.runs.devices import start_processor
from fedjax_ssl.runs.program import Program, described
from fedjax_ssl.runs.residence import on_host, why_not_on_host


class Shared:
    """Loads, draws and compiles the shared parts of the runs of a process, once.

    The dataset of the last run is kept, with the federations drawn from it, which share its
    examples.

    Example:
        >>> from fedjax_ssl.runs import Shared, run
        >>> shared = Shared()
        >>> for seed in range(3):  # compiles once
        ...     config.seed = seed
        ...     run(config, f"runs/{seed}", shared=shared)  # doctest: +SKIP
    """

    def __init__(self, own_process: bool = False) -> None:
        """Start without any shared parts.

        Args:
            own_process: this process runs nothing but runs of one program, and is configured for
                them.
        """
        self._own_process = own_process
        self._dataset: tuple[str, Experiment] | None = None
        self._federations: dict[str, FederatedData] = {}
        self._drawing: tuple[str, data.Drawing | None] | None = None
        self.compiled: dict[tuple[Hashable, ...], Any] = {}

    def experiment(self, config: ml_collections.ConfigDict) -> Experiment:
        """Load the dataset of a resolved config, with its inputs in their place; raises the errors
        of `build`.
        """
        away = on_host(self._load(config))
        return away if away.host is None else self.build(config).experiment

    def _load(self, config: ml_collections.ConfigDict) -> Experiment:
        # Only these settings decide what a private run refuses in a dataset.
        private = config.privacy.name != "none"
        divides = private and configs.divides_by_shares(config)
        name = f"{_text(config.data)} {private} {divides}"
        if self._dataset is None or self._dataset[0] != name:
            self._dataset = name, load_resolved(config)
            if self._own_process:
                start_processor(config, self._dataset[1].dataset)
            self._federations = {}
            self._drawing = None
        return self._dataset[1]._replace(config=config)

    def program(self, config: ml_collections.ConfigDict) -> Program:
        """Build a run and return its program; raises the errors of `build`."""
        return Program(self.build(config), self.compiled)

    def build(self, config: ml_collections.ConfigDict) -> Built:
        """Load, draw and build a run, with its inputs in their place.

        Args:
            config: resolved.

        Raises:
            ConfigError: a setting cannot be used, or inputs must stay on the host and this run
                cannot train like that.
            DatasetUnavailable: the dataset is not on disk and could not be downloaded.
        """
        experiment = self._load(config)
        away = on_host(experiment)
        if away.host is not None:
            reason = why_not_on_host(config)
            if not reason:
                found = self._build(away)
                reason = why_not_on_host(config, found)
                if not reason:
                    return found
            if config.data.residence == "host":
                raise ConfigError(f"config.data.residence is 'host', but {reason}")
        return self._build(experiment)

    def _build(self, experiment: Experiment) -> Built:
        config = experiment.config
        federation = self.federation(experiment)
        one_shot.check(config, federation)
        with naming("data, config.partition or config.supervision"):
            data.validate(federation, truth_required=not configs.predictors(config))
        return build(experiment, federation)

    def federation(self, experiment: Experiment) -> FederatedData:
        """Draw the federation of an experiment with the seed of its config, once."""
        name = self._name(experiment)
        if name not in self._federations:
            whole = (
                one.inputs
                for one in self._federations.values()
                if not isinstance(one.inputs, LoadedInputs)
            )
            config = experiment.config
            described = _text(config.partition) + _text(config.supervision)
            # Keep the drawing of the last run alone: it may hold examples.
            if self._drawing is None or self._drawing[0] != described:
                self._drawing = described, drawing_of(experiment)
            key = jax.random.key(config.seed)
            drawing = self._drawing[1]
            self._federations[name] = federate(experiment, key, next(whole, None), drawing)
        return self._federations[name]

    def align(self, configs: Sequence[ml_collections.ConfigDict]) -> None:
        """Give the federations of runs tables of equal width, if the shapes of their states do not
        change.

        Clients of other seeds may be larger, for example with Dirichlet partitions, and every run
        would need separate programs. States whose shapes follow the tables do not change, so that a
        run can go on without the others.

        Args:
            configs: resolved configs, with the same program except for shapes.
        """
        experiments = [self.experiment(config) for config in configs]
        found = {self._name(one): self.federation(one) for one in experiments}
        if len({described(one) for one in found.values()}) == 1:
            return
        widened = dict(zip(found, of_one_shape(list(found.values())), strict=True))
        first = experiments[0]
        name = self._name(experiments[0])
        before, after = (
            jax.eval_shape(build(first, one).method.init, jax.random.key(0), one)
            for one in (found[name], widened[name])
        )
        if described(before) == described(after):
            self._federations.update(widened)

    @staticmethod
    def _name(experiment: Experiment) -> str:
        config = experiment.config
        where = "device" if experiment.host is None else "host"
        return f"{_text(config.partition)} {_text(config.supervision)} {config.seed} {where}"


def _text(section: Any) -> str:
    return json.dumps(plain_value(section.to_dict()), sort_keys=True)
