"""Inputs to predict from files: arrays in an `.npz`, or images as Pillow reads them."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from PIL import Image, UnidentifiedImageError

from fedjax_ssl.errors import counted, did_you_mean
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_TABLES = (".csv", ".tsv", ".txt", ".parquet")
# Arrays of inputs and of labels; the first whose inputs are there is taken, so new examples go before old ones.
_ARRAYS = {
    **{"test_inputs": "test_labels", "x_test": "y_test", "inputs": "labels", "images": "labels"},
    **{"x_train": "y_train", "x": "y"},
}
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")  # of 8 bits a channel, or fewer


class Examples(NamedTuple):
    """Examples to label."""

    inputs: Shaped[np.ndarray, "n ..."]
    names: list[str]  # one per example: the file, or the row in it
    labels: Int[np.ndarray, " n"]  # -1 = none is known
    source: str  # in words


def read_examples(paths: Sequence[Path], model: TrainedModel, resize: bool = False) -> Examples:
    """Reads the files that the user names.

    Args:
        paths: one `.npz` file, or image files and folders of them. An image in a folder that has the name of a class
            has this label.
        model: decides shape and type.
        resize: bring images of another size to the model's.

    Returns:
        The examples, in the order of the paths, and of the names in a folder.

    Raises:
        TrainedModelError: a file that is not there, cannot be read, or does not fit the model.
    """
    for path in paths:
        if not path.exists():
            raise TrainedModelError(f"{path} does not exist; give an .npz file, image files, or folders of images")
        kind = path.suffix.lower()
        if path.is_file() and kind not in (".npz", *IMAGES):
            hint = ""
            if kind in _TABLES and len(model.input_shape) == 1:
                hint = (
                    f". Of a table, save the {model.input_shape[0]} features in the order of training: "
                    "numpy.savez('rows.npz', inputs=rows)"
                )
            raise TrainedModelError(
                f"{path} cannot be labelled: give an .npz file with the array inputs, images ({', '.join(IMAGES)}), or "
                f"folders of images{hint}"
            )
        if kind == ".npz" and len(paths) > 1:
            raise TrainedModelError(f"{path} is given together with other files; give one .npz file, or images")
    if paths[0].suffix.lower() == ".npz":
        return _read_npz(paths[0], model)
    return _read_images([file for path in paths for file in _files(path)], model, resize)


def _read_npz(path: Path, model: TrainedModel) -> Examples:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            names = loaded.files if isinstance(loaded, np.lib.npyio.NpzFile) else []
            name = next((one for one in _ARRAYS if one in names), names[0] if len(names) == 1 else None)
            inputs = None if name is None else loaded[name]
            label_name = _ARRAYS.get(name or "", "labels")
            given = loaded[label_name] if label_name in names else None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = "it is of another kind, or holds Python objects" if "pickle" in str(error) else _line(error)
        raise TrainedModelError(f"{path} is not a readable .npz file of plain arrays: {why}") from error
    if inputs is None:
        raise TrainedModelError(
            f"{path} has no array of inputs. Arrays in it: {', '.join(names) or 'none'}; known names: "
            f"{', '.join(_ARRAYS)}"
        )
    if inputs.ndim == len(model.input_shape) == 3 and model.input_shape[-1] == 1:
        inputs = inputs[..., None]  # grey images without a channel axis, as the source "npz" takes them too
    labels = np.full(len(inputs), -1) if given is None else _labels(given, len(inputs), label_name, model)
    return Examples(inputs, [str(row) for row in range(len(inputs))], labels, f"{path}, array {name!r}")


def _labels(given: np.ndarray, length: int, name: str, model: TrainedModel) -> np.ndarray:
    classes = model.class_names
    if given.shape != (length,):
        raise TrainedModelError(f"array {name!r} has shape {list(given.shape)}; there are {length} inputs")
    if given.dtype.kind in "SU":
        texts = given.astype(str).tolist()
        if unknown := sorted(set(texts) - set(classes)):
            hint = did_you_mean(unknown[0], classes)
            raise TrainedModelError(
                f"array {name!r} names the class {unknown[0]!r}, which the model does not know.{hint}"
            )
        return np.array([classes.index(text) for text in texts], np.int64)
    if given.dtype.kind not in "iu":
        raise TrainedModelError(f"array {name!r} is {given.dtype}; labels are whole numbers or names of classes")
    bad = np.flatnonzero((given < -1) | (given >= len(classes)))
    if bad.size:
        raise TrainedModelError(
            f"array {name!r} has label {given[bad[0]]} in row {bad[0]}; the model has the classes 0 to "
            f"{len(classes) - 1}, and -1 = no label"
        )
    return given


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGES and file.is_file())
    if not inside:
        raise TrainedModelError(f"{path} has no images; files of {', '.join(IMAGES)} are looked for, at any depth")
    return inside


def _read_images(files: Sequence[Path], model: TrainedModel, resize: bool) -> Examples:
    if len(model.input_shape) != 3 or model.input_shape[-1] not in (1, 3):
        raise TrainedModelError(
            f"this model takes inputs of shape {list(model.input_shape)}, not images; give an .npz file"
        )
    inputs = np.zeros((len(files), *model.input_shape), model.input_dtype)
    for place, file in enumerate(files):
        values = _pixels(file, model, resize).reshape(model.input_shape) * (model.input_max / 255.0)
        inputs[place] = np.rint(values) if model.input_dtype == np.uint8 else values
    folders = [file.parent.name for file in files]
    labels = [model.class_names.index(name) if name in model.class_names else -1 for name in folders]
    return Examples(inputs, [str(file) for file in files], np.array(labels, np.int64), counted(len(files), "image"))


def _pixels(file: Path, model: TrainedModel, resize: bool) -> np.ndarray:
    height, width, channels = model.input_shape
    try:
        with Image.open(file) as image:
            mode, converted = image.mode, image.convert("L" if channels == 1 else "RGB")
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
        raise TrainedModelError(f"{file} cannot be read as an image: {_line(error)}") from error
    if mode not in _MODES:
        raise TrainedModelError(f"{file} has pixels of mode {mode!r}; give images of 8 bits a channel, or an .npz file")
    if converted.size != (width, height):
        if not resize:
            raise TrainedModelError(
                f"{file} has {converted.size[0]}x{converted.size[1]} pixels, the model takes {width}x{height}; "
                "--resize brings all images to that size"
            )
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(converted, np.float64)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
