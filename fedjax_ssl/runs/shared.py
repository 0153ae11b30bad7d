"""What the runs of one process share: the dataset, federations of a seed, compiled programs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections

from fedjax_ssl import data
from fedjax_ssl.data.federation.federated_data import of_one_shape
from fedjax_ssl.runs.build import Experiment, build_method, federate, load_resolved
from fedjax_ssl.runs.compile import Programs, described
from fedjax_ssl.runs.files import plain_value
from fedjax_ssl.runs.residence import settled


class Shared:
    """Loads, draws and compiles once what several runs need.

    The dataset of the last run is kept, with the federations that were drawn from it: these share its examples.

    Attributes:
        programs: compiled so far.
    """

    def __init__(self) -> None:
        self.programs = Programs()
        self._dataset: tuple[str, Experiment] | None = None
        self._federations: dict[str, data.FederatedData] = {}
        self._pictures: dict[str, bytes] = {}

    def experiment(self, config: ml_collections.ConfigDict) -> Experiment:
        """The experiment of a resolved config, inputs where they belong; raises as `load_resolved` and `settled`."""
        name = _text(config.data)
        if self._dataset is None or self._dataset[0] != name:
            self._dataset = name, load_resolved(config)
            self._federations, self._pictures = {}, {}
        return settled(self._dataset[1]._replace(config=config), self.federation)

    def federation(self, experiment: Experiment) -> data.FederatedData:
        """The federation of an experiment from `self.experiment` with the seed of its config."""
        config, name = experiment.config, self._name(experiment)
        if name not in self._federations:
            whole = [one.inputs for one in self._federations.values() if not isinstance(one.inputs, data.LoadedInputs)]
            inputs = whole[0] if whole else None
            self._federations[name] = federate(experiment, jax.random.key(config.seed), inputs)
        return self._federations[name]

    def draw(self, experiment: Experiment, path: Path) -> None:
        """Draws the partition of an experiment into a file; each federation is drawn once."""
        name = self._name(experiment)
        if name not in self._pictures:
            data.plot_partition(self.federation(experiment), path)
            self._pictures[name] = path.read_bytes()
        else:
            path.write_bytes(self._pictures[name])

    def align(self, configs: Sequence[ml_collections.ConfigDict]) -> None:
        """Gives the federations of runs tables of equal width, where that leaves the shapes of their states alone.

        Clients of other seeds may be larger, as with Dirichlet partitions; without this, each would need programs of
        its own. States whose shapes follow the tables are left alone, so that a run can go on without the others.

        Args:
            configs: resolved, of one program but for shapes.
        """
        experiments = [self.experiment(config) for config in configs]
        found = {self._name(one): self.federation(one) for one in experiments}
        if len({described(one) for one in found.values()}) == 1:
            return
        widened = dict(zip(found, of_one_shape(list(found.values())), strict=True))
        first, key = experiments[0], jax.random.key(0)
        before, after = (
            jax.eval_shape(build_method(first, one).init, key, one)
            for one in (found[self._name(first)], widened[self._name(first)])
        )
        if described(before) == described(after):
            self._federations.update(widened)

    @staticmethod
    def _name(experiment: Experiment) -> str:
        config, where = experiment.config, "device" if experiment.host is None else "host"
        return f"{_text(config.partition)} {_text(config.supervision)} {config.seed} {where}"


def _text(section: Any) -> str:
    return json.dumps(plain_value(section.to_dict()), sort_keys=True)
