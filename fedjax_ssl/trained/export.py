"""Trained models for elsewhere: parameters as `.safetensors`, prediction as StableHLO."""

import importlib
import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl.runs.files import write_atomically

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")  # for which predictions are lowered


def save_parameters(path: str | os.PathLike, parameters: Any, statistics: Any, facts: Mapping[str, Any]) -> Path:
    """Writes arrays by the names of their place in the trees, with dots between.

    Args:
        path: the file.
        parameters: nested dicts of arrays.
        statistics: likewise; {} without batch statistics.
        facts: for the metadata, as JSON under "fedjax_ssl".

    Returns:
        The file.
    """
    safetensors = importlib.import_module("safetensors.numpy")
    trees = {"params": parameters, "batch_stats": statistics}
    arrays = {
        name: np.ascontiguousarray(array)
        for name, array in flatten_dict(jax.device_get(trees), sep=".").items()
        if hasattr(array, "shape")
    }
    write_atomically(path, safetensors.save(arrays, metadata={"fedjax_ssl": json.dumps(facts)}))
    return Path(path)


def save_prediction(
    path: str | os.PathLike,
    predict: Callable[[jax.Array], jax.Array],
    input_shape: tuple[int, ...],
    dtype: np.dtype,
    platforms: Collection[str] = PLATFORMS,
) -> Path:
    """Writes a function of a batch of inputs, of any size, as `jax.export` serializes it.

    Args:
        path: the file.
        predict: raw inputs [n, *input_shape] -> [n, ...].
        input_shape: one example's.
        dtype: the inputs' type.
        platforms: for which it is lowered.

    Returns:
        The file.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    inputs = jax.ShapeDtypeStruct((batch, *input_shape), jnp.dtype(dtype))
    exported = jax.export.export(jax.jit(predict), platforms=list(platforms))(inputs)
    write_atomically(path, bytes(exported.serialize()))
    return Path(path)
