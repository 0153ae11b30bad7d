"""The choice of devices on a processor: how many share a cohort, and whether threads are worth
it.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl import config as configs
from fedjax_ssl import data, models, processor

# Number of operations of a local step from which on devices are worth waiting for each other in
# every round, and of an evaluation from which on several threads are worth it: about 0.1 and 10
# milliseconds of a core (docs/speed.md).
_WORTH_SHARING = 5e6
_WORTH_THREADS = 5e8
# Every device holds the values of the whole cohort, to add them in order. They may take this share
# of the memory.
_SHARE = 0.25


def forward_operations(network: Mapping[str, Any], num_classes: int, shape: Sequence[int]) -> int:
    """Count the operations of one example's forward pass, which are a third of those of its
    gradient.

    Args:
        network: the section `model` of a config.
        num_classes: number of class scores.
        shape: of an example.
    """
    return _counts(network, num_classes, shape)[0]


def _counts(network: Mapping[str, Any], num_classes: int, shape: Sequence[int]) -> tuple[int, int]:
    """Count the operations of an example's forward pass, and the parameters."""
    options = {
        option: value
        for option, value in configs.network_options(network).items()
        if option != "weights"
    }
    return _count(network["name"], json.dumps(options), num_classes, tuple(shape))


@functools.cache
def _count(name: str, options: str, num_classes: int, shape: tuple[int, ...]) -> tuple[int, int]:
    with configs.naming("model"):
        model = models.build(
            name, num_classes=num_classes, input_shape=shape, **json.loads(options)
        )
    parameters = models.count_parameters(jax.eval_shape(lambda: model.init(jax.random.key(0)))[0])
    # A user's own model does not count its operations; it uses each parameter at least once.
    return (
        2 * parameters if model.forward_operations is None else model.forward_operations(),
        parameters,
    )


def choose_devices(config: ml_collections.ConfigDict, dataset: data.Dataset) -> int:
    """Choose how many devices share a cohort if `config.federated.devices` does not say.

    On a CPU, all devices if a local step has enough work and the memory can hold the cohort's
    values on each of them; results have the same bits. Otherwise one.

    Args:
        config: resolved.
        dataset: the run's.
    """
    section = config.federated
    if section.devices is not None:
        return int(section.devices)
    available = jax.local_devices()
    if available[0].platform != "cpu" or len(available) == 1:
        return 1
    operations, parameters = _counts(config.model, dataset.num_classes, dataset.input_shape)
    if 3 * config.optimizer.batch_size * operations < _WORTH_SHARING:
        return 1
    natural = 1 if dataset.train.client is None else len(np.unique(dataset.train.client))
    cohort = config.federated.cohort_size or config.partition.get("num_clients") or natural
    devices = min(len(available), cohort)
    memory = processor.memory()
    return 1 if memory and 4 * parameters * cohort * (devices + 1) > _SHARE * memory else devices


def start_processor(config: ml_collections.ConfigDict, dataset: data.Dataset) -> None:
    """Give XLA one thread in a process for runs like this one, if its operations are too small for
    more.

    Without effect if JAX has computed before, or if the model asks for the backend, as convolutions
    do. Graphs and predictions use all cores.

    Args:
        config: resolved.
        dataset: the run's.
    """
    given = (config.threads, config.federated.devices) != (None, None)
    of_method = flatten_dict(config.method.to_dict(), sep=".")
    has_graph = any(name.endswith("num_neighbors") for name in of_method)
    if given or configs.predictors(config) or has_graph:
        return
    operations = forward_operations(config.model, dataset.num_classes, dataset.input_shape)
    tested = 0 if dataset.test is None else len(dataset.test.y)
    if (
        3 * config.optimizer.batch_size * operations < _WORTH_SHARING
        and operations * tested < _WORTH_THREADS
    ):
        processor.start(threads=1)


def check_debugging() -> None:
    """Refuse JAX's search for NaN and infinity, because NaN stands for undefined values, such as
    the accuracy of a client without test examples.
    """
    for name in ("jax_debug_nans", "jax_debug_infs"):
        if getattr(jax.config, name):
            raise configs.ConfigError(
                f"{name.upper()} is set, and finds the NaN and infinities that stand for what is "
                "not defined, such as the accuracy of a client without test examples; leave it "
                "out: a run says itself from which round on no update is finite"
            )
