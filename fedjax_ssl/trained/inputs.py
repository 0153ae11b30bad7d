"""Inputs to predict from files: arrays in an `.npz`, or images as Pillow reads them."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped
from PIL import Image, UnidentifiedImageError

from fedjax_ssl.errors import counted
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
_TABLES = (".csv", ".tsv", ".txt", ".parquet")
# Pairs of arrays, inputs and labels; the first whose inputs are there is taken, so new examples go before old ones.
_PAIRS = (
    *(("test_inputs", "test_labels"), ("x_test", "y_test"), ("inputs", "labels"), ("images", "labels")),
    *(("x_train", "y_train"), ("x", "y")),
)
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")  # of 8 bits a channel, or fewer


class Examples(NamedTuple):
    """What is to be labelled."""

    inputs: Shaped[np.ndarray, "n ..."]
    names: list[str]  # of every example: the file, or the row in it
    labels: Int[np.ndarray, " n"]  # -1 = none is known
    source: str  # in words


def read_examples(paths: Sequence[Path], model: TrainedModel, resize: bool = False) -> Examples:
    """Reads what the user names.

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
        if path.is_file() and path.suffix.lower() not in (".npz", *IMAGES):
            raise TrainedModelError(
                f"{path} cannot be labelled: give an .npz file with the array inputs, images ({', '.join(IMAGES)}), or "
                f"folders of images{_of_table(path, model)}"
            )
    arrays = [path for path in paths if path.suffix.lower() == ".npz"]
    if not arrays:
        return _read_images(_files(paths), model, resize)
    if len(paths) > 1:
        raise TrainedModelError(f"{arrays[0]} is given together with other files; give one .npz file, or images")
    return _read_npz(arrays[0], model)


def _read_npz(path: Path, model: TrainedModel) -> Examples:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            names = loaded.files if isinstance(loaded, np.lib.npyio.NpzFile) else []
            pair = next((pair for pair in _PAIRS if pair[0] in names), None)
            if pair is None and len(names) == 1:
                pair = (names[0], "labels")
            if pair is None:
                there = ", ".join(names) or "none"
                wanted = ", ".join(dict.fromkeys(pair[0] for pair in _PAIRS))
                raise TrainedModelError(f"{path} has no array of inputs. Arrays in it: {there}; known names: {wanted}")
            inputs = loaded[pair[0]]
            given = loaded[pair[1]] if pair[1] in names else None
    except TrainedModelError:
        raise
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = "it is of another kind, or holds Python objects" if "pickle" in str(error) else _line(error)
        raise TrainedModelError(f"{path} is not a readable .npz file of plain arrays: {why}") from error
    if inputs.ndim == len(model.input_shape) == 3 and model.input_shape[-1] == 1:
        inputs = inputs[..., None]  # grey images without a channel axis, as the source "npz" takes them too
    labels = np.full(len(inputs), -1) if given is None else _labels(given, len(inputs), pair[1], model)
    return Examples(inputs, [str(row) for row in range(len(inputs))], labels, f"{path}, array {pair[0]!r}")


def _labels(given: np.ndarray, length: int, name: str, model: TrainedModel) -> np.ndarray:
    if given.shape != (length,):
        raise TrainedModelError(f"array {name!r} has shape {list(given.shape)}; there are {length} inputs")
    if given.dtype.kind in "SU":
        texts = given.astype(str)
        unknown = sorted(set(texts.tolist()) - set(model.class_names))
        if unknown:
            hint = did_you_mean(unknown[0], model.class_names)
            raise TrainedModelError(
                f"array {name!r} names the class {unknown[0]!r}, which the model does not know.{hint}"
            )
        return np.array([model.class_names.index(text) for text in texts.tolist()], np.int64)
    if given.dtype.kind not in "iu":
        raise TrainedModelError(f"array {name!r} is {given.dtype}; labels are whole numbers or names of classes")
    bad = np.flatnonzero((given < -1) | (given >= len(model.class_names)))
    if bad.size:
        raise TrainedModelError(
            f"array {name!r} has label {given[bad[0]]} in row {bad[0]}; the model has the classes 0 to "
            f"{len(model.class_names) - 1}, and -1 = no label"
        )
    return given


def _of_table(path: Path, model: TrainedModel) -> str:
    """How the rows of a table become arrays, where the model takes rows."""
    if path.suffix.lower() not in _TABLES or len(model.input_shape) != 1:
        return ""
    (columns,) = model.input_shape
    return f". Of a table, save the {columns} features in the order of training: numpy.savez('rows.npz', inputs=rows)"


def _files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGES and file.is_file())
        if not inside:
            raise TrainedModelError(f"{path} has no images; files of {', '.join(IMAGES)} are looked for, at any depth")
        found += inside
    return found


def _read_images(files: Sequence[Path], model: TrainedModel, resize: bool) -> Examples:
    if len(model.input_shape) != 3 or model.input_shape[-1] not in (1, 3):
        raise TrainedModelError(
            f"this model takes inputs of shape {list(model.input_shape)}, which are no images; give an .npz file"
        )
    height, width, channels = model.input_shape
    scale = model.input_max / 255.0
    inputs = np.zeros((len(files), *model.input_shape), model.input_dtype)
    for place, file in enumerate(files):
        pixels = _pixels(file, (width, height), "L" if channels == 1 else "RGB", resize)
        values = pixels.reshape(model.input_shape) * scale
        inputs[place] = np.rint(values) if model.input_dtype == np.uint8 else values
    labels = [model.class_names.index(p.parent.name) if p.parent.name in model.class_names else -1 for p in files]
    return Examples(inputs, [str(file) for file in files], np.array(labels, np.int64), counted(len(files), "image"))


def _pixels(file: Path, size: tuple[int, int], mode: str, resize: bool) -> np.ndarray:
    try:
        with Image.open(file) as image:
            if image.mode not in _MODES:
                raise TrainedModelError(
                    f"{file} has pixels of mode {image.mode!r}; give images of 8 bits a channel, or an .npz file"
                )
            converted = image.convert(mode)
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
        raise TrainedModelError(f"{file} cannot be read as an image: {_line(error)}") from error
    if converted.size != size:
        if not resize:
            raise TrainedModelError(
                f"{file} has {converted.size[0]}x{converted.size[1]} pixels, the model takes {size[0]}x{size[1]}; "
                "--resize brings all images to that size"
            )
        converted = converted.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(converted, np.float64)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
