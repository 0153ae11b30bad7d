"""Networks with published weights, as encoders: their inputs, and what their weights are read
from.
"""

import hashlib
import importlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl.errors import how_to_install

EXPORT = "np.savez(path, **{name: value.numpy() for name, value in model.state_dict().items()})"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Published(NamedTuple):
    """What a network with published weights takes."""

    side: int  # of the square images that it was trained on
    mean: tuple[float, ...]  # of a channel, where the largest stored value is 1
    std: tuple[float, ...]
    options: Mapping[str, Any] = {}  # of the network


PUBLISHED = {
    "efficientnet_b0": Published(224, IMAGENET_MEAN, IMAGENET_STD),
    "efficientnet_lite0": Published(224, (127 / 255,) * 3, (128 / 255,) * 3),
    "resnet18": Published(224, IMAGENET_MEAN, IMAGENET_STD, {"stem": "imagenet"}),
    "resnet50": Published(224, IMAGENET_MEAN, IMAGENET_STD, {"stem": "imagenet"}),
    "vit_s16": Published(224, (0.5,) * 3, (0.5,) * 3),
    "vit_b16": Published(224, IMAGENET_MEAN, IMAGENET_STD),
}


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a state dict: `.npz`, `.safetensors`, or `.pth` and `.pt` by PyTorch.

    Raises:
        ValueError: the file is not there or cannot be read, or it takes a package that is not here.
    """
    from fedjax_ssl.models.pretrained import read_npz

    if path.suffix not in (".safetensors", ".pth", ".pt") or not path.is_file():
        return read_npz(path)
    if path.suffix == ".safetensors":
        safetensors = _imported("safetensors.numpy", path, how_to_install("pretrained"))
        try:
            arrays: dict[str, np.ndarray] = safetensors.load_file(path)
        except Exception as error:  # of its own kinds
            raise ValueError(f"weights {path} cannot be read: {error}") from error
        return arrays
    torch = _imported("torch", path, f"pip install torch, or make an .npz where it is: {EXPORT}")
    try:
        # A file of PyTorch may run any code unless weights alone are read.
        stored = torch.load(path, map_location="cpu", weights_only=True)
        return {name: np.asarray(values) for name, values in stored.items()}
    except (
        RuntimeError,
        ValueError,
        AttributeError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(f"weights {path} are no plain state dict of PyTorch: {error}") from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        raise ValueError(
            f"weights {path} hold more than arrays, which PyTorch does not read as weights alone; "
            "save model.state_dict()"
        ) from error


def _imported(module: str, path: Path, remedy: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"weights {path} need the package {module.split('.')[0]}: {remedy}"
        ) from error


def digest(path: Path) -> str:
    """Compute a digest of a file of weights."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:16]
