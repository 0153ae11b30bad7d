"""Where a run starts from: the trained network of another run, in place of random weights."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl.config import naming
from fedjax_ssl.models import Model, started
from fedjax_ssl.runs import model_file


def start_of(config: ml_collections.ConfigDict) -> Callable[[Model], Model] | None:
    """Give the function that puts in the weights which a resolved config names; None: it names
    none.
    """

    def start(model: Model) -> Model:
        with naming("start_from"):
            return start_from(model, config.start_from)

    return start if config.start_from else None


def start_from(model: Model, place: str) -> Model:
    """Return the same model, started from parameters and batch statistics that were trained before.

    Args:
        model: the network with random weights.
        place: a run folder, whose model is the one that `load_run` takes, or a file of
            `TrainedModel.save_parameters`.

    Returns:
        A model with another `init`, which reads nothing, and the same `apply`.

    Raises:
        ValueError: there are no such weights, or they are of another network; says which.
    """
    path = Path(place).expanduser()
    return started(model, _of_file(path) if path.is_file() else _of_run(path), place)


def _of_run(folder: Path) -> Mapping[str, np.ndarray]:
    stored, description, _, checkpoints = model_file.find(folder, "auto")
    with jax.ensure_compile_time_eval():  # a run's `init` is traced where this is read
        _, rebuilt = model_file.rebuild(stored.config, description)
        if rebuilt.method.network is None or rebuilt.method.alone:
            raise ValueError(
                f"the run in {folder} has no global network; save that of a client with "
                "save_parameters"
            )
        params, statistics = rebuilt.method.network(checkpoints.restore(rebuilt.state)[1])
        return flatten_dict(jax.device_get({"params": params, "batch_stats": statistics}), sep=".")


def _of_file(path: Path) -> Mapping[str, np.ndarray]:
    try:
        arrays: Mapping[str, np.ndarray] = importlib.import_module("safetensors.numpy").load(
            path.read_bytes()
        )
    except ImportError as error:
        raise ValueError(
            f"{path} needs the package safetensors: pip install 'fedjax_ssl[export]'"
        ) from error
    except Exception as error:  # the library has an error of its own, which is no ValueError
        raise ValueError(
            f"{path} is neither a run folder nor a .safetensors file that can be read: {error}"
        ) from error
    return arrays
