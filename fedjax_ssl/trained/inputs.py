"""Inputs to predict from files: arrays in an `.npz`, rows of a table, or images as Pillow reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from fedjax_ssl.data.dataset import check_labels
from fedjax_ssl.data.reading.arrays import check_length, read_arrays
from fedjax_ssl.data.reading.columns import read_columns
from fedjax_ssl.data.reading.features import TableReading
from fedjax_ssl.data.reading.pictures import ImageReading, is_image, list_images, read_alike, spelling
from fedjax_ssl.data.reading.problems import DatasetUnavailable, Findings
from fedjax_ssl.data.reading.tables import is_table, read_roles, read_table
from fedjax_ssl.errors import counted, did_you_mean
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError

IMAGES = "images (.bmp, .gif, .jpg, .png, .tif, .webp, ...)"
# Arrays of inputs and of labels; the first whose inputs are there is taken, so new examples go before old ones.
_ARRAYS = {
    **{"test_inputs": "test_labels", "x_test": "y_test", "inputs": "labels", "images": "labels"},
    **{"x_train": "y_train", "x": "y"},
}


class Examples(NamedTuple):
    """Examples to label."""

    inputs: Shaped[np.ndarray, "n ..."]
    names: list[str]  # one per example: the file, or the row in it
    labels: Int[np.ndarray, " n"]  # -1 = none is known
    source: str  # in words
    notes: tuple[str, ...] = ()  # what was left out or is unlike training


def read_examples(paths: Sequence[Path], model: TrainedModel, resize: bool = False) -> Examples:
    """Reads the files that the user names.

    Args:
        paths: one `.npz` file, one table, or image files and folders of them. An image in a folder that has the name of
            a class has this label.
        model: decides shape and type.
        resize: bring images of another size to the model's where it is not known how training's were read.

    Returns:
        The examples, in the order of the paths, and of the names in a folder.

    Raises:
        TrainedModelError: a file that is not there, cannot be read, or does not fit the model.
    """
    for path in paths:
        if not path.exists():
            raise TrainedModelError(f"{path} does not exist; give an .npz file, image files, or folders of images")
        kind = path.suffix.lower()
        if path.is_file() and kind != ".npz" and not is_image(path) and not is_table(path):
            raise TrainedModelError(
                f"{path} cannot be labelled: give an .npz file with the array inputs, a table, {IMAGES}, or folders of "
                "images"
            )
        if (kind == ".npz" or is_table(path)) and len(paths) > 1:
            raise TrainedModelError(
                f"{path} is given together with other files; give one .npz file, one table, or images"
            )
    try:
        if paths[0].suffix.lower() == ".npz":
            return _read_npz(paths[0], model)
        if is_table(paths[0]):
            return _read_table(paths[0], model)
        return _read_images([file for path in paths for file in _files(path)], model, resize)
    except TrainedModelError:
        raise
    except (ValueError, DatasetUnavailable) as error:
        raise TrainedModelError(str(error)) from error


def _read_npz(path: Path, model: TrainedModel) -> Examples:
    arrays, names = read_arrays(path)
    name = next((one for one in _ARRAYS if one in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise TrainedModelError(
            f"{path} has no array of inputs. Arrays in it: {', '.join(names) or 'none'}; known names: "
            f"{', '.join(_ARRAYS)}"
        )
    inputs, label_name = arrays[name], _ARRAYS.get(name, "labels")
    if inputs.ndim == len(model.input_shape) == 3 and model.input_shape[-1] == 1:
        inputs = inputs[..., None]  # grey images without a channel axis, as the source "npz" takes them too
    labels = np.full(len(inputs), -1)
    if (given := arrays.get(label_name)) is not None:
        labels = _labels(given, len(inputs), f"array {label_name!r}", model.class_names)
    return Examples(inputs, [str(row) for row in range(len(inputs))], labels, f"{path}, array {name!r}")


def _read_table(path: Path, model: TrainedModel) -> Examples:
    reading, findings = model.reading, Findings()
    if not isinstance(reading, TableReading):
        raise TrainedModelError(
            f"{path} cannot be labelled: this model did not learn from a table; it takes inputs of shape "
            f"{list(model.input_shape)}: give an .npz file with the array inputs, or images"
        )
    table = read_table(path, findings)
    inputs, used = reading.read(table, findings)
    label = {role: name for role, name in reading.roles.items() if role == "label"}
    columns = read_columns(read_roles(table, label, (), findings), model.class_names, findings, reading.marks)
    findings.stop(path)
    known = (*reading.roles.values(), *(feature.name for feature in reading.features))
    if others := [name for name in table if name not in known]:
        findings.notes.append(f"columns that the model does not use: {', '.join(others)}")
    labels, names = columns.y[used], table.index[used].tolist()
    return Examples(inputs[used], names, labels, f"{path}, {counted(len(names), 'row')}", tuple(findings.notes))


def _labels(given: np.ndarray, length: int, name: str, classes: Sequence[str]) -> np.ndarray:
    check_length(name, given, length)
    if given.dtype.kind in "SU":
        texts = given.astype(str).tolist()
        if unknown := sorted(set(texts) - set(classes)):
            hint = did_you_mean(unknown[0], classes)
            raise TrainedModelError(f"{name} names the class {unknown[0]!r}, which the model does not know.{hint}")
        return np.array([classes.index(text) for text in texts], np.int64)
    if given.dtype.kind not in "iu":
        raise TrainedModelError(f"{name} is {given.dtype}; labels are whole numbers or names of classes")
    check_labels(name, given, len(classes))
    return given


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if not (inside := list_images(path).images):
        raise TrainedModelError(f"{path} has no images; {IMAGES} are looked for, at any depth")
    return [path / name for name in inside]


def _read_images(files: Sequence[Path], model: TrainedModel, resize: bool) -> Examples:
    if len(model.input_shape) != 3 or model.input_shape[-1] not in (1, 3):
        raise TrainedModelError(
            f"this model takes inputs of shape {list(model.input_shape)}, not images; give an .npz file"
        )
    names, findings, reading = [str(file) for file in files], Findings(), model.reading
    if stored := isinstance(reading, ImageReading):
        read = read_alike(files, names, findings, reading)
    else:
        read = read_alike(files, names, findings, ImageReading(*model.input_shape, fit="stretch"))
    if findings.problems:
        raise TrainedModelError("; ".join(findings.problems))
    names, (height, width, _) = [names[row] for row in read.rows], model.input_shape
    for name, facts in zip(names, read.facts, strict=True):
        if facts.size != (width, height) and not (stored or resize):
            raise TrainedModelError(
                f"{name} has {facts.size[0]}x{facts.size[1]} pixels, the model takes {width}x{height}; --resize brings "
                "all images to that size"
            )
    values = read.x * (model.input_max / 255.0)
    inputs = (np.rint(values) if model.input_dtype == np.uint8 else values).astype(model.input_dtype)
    folders = [spelling(files[row].parent.name) for row in read.rows]
    labels = [model.class_names.index(name) if name in model.class_names else -1 for name in folders]
    known = np.array(labels, np.int64)
    if (known >= 0).any() and (known < 0).any():
        others = sorted({folder for folder, label in zip(folders, labels, strict=True) if label < 0})
        findings.notes.append(
            f"images in folders that are no classes of the model, and without a true label: {(known < 0).sum():,} "
            f"({', '.join(others[:5])})"
        )
    return Examples(inputs, names, known, counted(len(names), "image"), tuple(findings.notes))
