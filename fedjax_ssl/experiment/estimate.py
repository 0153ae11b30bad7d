"""What a run is estimated to take of a device's memory, and how many runs fit on it at once."""

from typing import NamedTuple

import jax
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl.experiment.build import Experiment, build_method, execution_of
from fedjax_ssl.experiment.residence import bytes_on_device
from fedjax_ssl.experiment.shared import Shared
from fedjax_ssl.federated.memory import USABLE, tree_bytes, whole_program


class Estimate(NamedTuple):
    """Bytes."""

    examples: int  # of the dataset and copies of it, held once for all runs
    each: int  # of a run with one client at a time


def estimate(config: ml_collections.ConfigDict, shared: Shared | None = None) -> Estimate:
    """Estimates the memory of a run: tables, state twice, and a round in which one client trains at a time.

    Args:
        config: as for `fedjax_ssl.experiment.run.run`.
        shared: where the dataset and the federation are looked up.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: the dataset is not on disk and could not be downloaded.
    """
    shared = shared or Shared()
    experiment = shared.experiment(configs.resolve(config))
    federation = shared.federation(experiment)
    execution = execution_of(experiment, federation, alone=True)
    execution = execution._replace(placement="chunked", chunk_size=1, everyone=None, mesh=None)
    method = build_method(experiment, federation, execution=execution)
    key, examples = jax.random.key(0), bytes_on_device(experiment, federation)
    state = jax.eval_shape(method.init, key, federation)
    own = tree_bytes(federation) - tree_bytes(federation.inputs) + 2 * tree_bytes(state)
    if method.on_host:
        return Estimate(examples, own)
    jaxpr = jax.make_jaxpr(method.round)(key, state, federation)
    program = whole_program(jaxpr)
    return Estimate(examples + program.images, own + program.live)


def runs_that_fit(config: ml_collections.ConfigDict, shared: Shared, limit: int | None) -> int:
    """How many runs of a config fit on a device at once; one where its memory is not known, and on a CPU.

    There the work is the limit, and vectorized runs take longer than the same runs in turn (docs/benchmarks.md, W8).

    Args:
        config: as for `fedjax_ssl.experiment.run.run`.
        shared: where the dataset and the federation are looked up.
        limit: bytes of the device.
    """
    experiment: Experiment = shared.experiment(configs.resolve(config))
    alone = experiment.config.federated.devices > 1 or experiment.host is not None
    if limit is None or jax.default_backend() == "cpu" or alone:
        return 1
    found = estimate(config, shared)
    return max(int(USABLE * (limit - found.examples)) // max(found.each, 1), 1)
