"""Inputs to predict from files: arrays in an `.npz`, rows of a table, or images as Pillow reads
them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
from jaxtyping import Int, Shaped

from fedjax_ssl.data.dataset import check_labels
from fedjax_ssl.data.reading.arrays import (
    TEST_ARRAYS,
    TRAIN_ARRAYS,
    VALIDATION_ARRAYS,
    one_each,
    read_arrays,
)
from fedjax_ssl.data.reading.columns import read_columns
from fedjax_ssl.data.reading.features import TableReading
from fedjax_ssl.data.reading.names import cell_text
from fedjax_ssl.data.reading.pictures import (
    ImageReading,
    by_cell,
    is_image,
    list_images,
    read_alike,
    spelling,
)
from fedjax_ssl.data.reading.problems import DatasetUnavailable, Findings
from fedjax_ssl.data.reading.tables import as_text, is_table, no_column, read_roles, read_table
from fedjax_ssl.data.sources.folder import UNLABELLED, find_table
from fedjax_ssl.errors import counted
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError

IMAGES = "images (.bmp, .gif, .jpg, .png, .tif, .webp, ...)"
# the first that is there is taken
_ARRAYS = {**TEST_ARRAYS, **TRAIN_ARRAYS, **VALIDATION_ARRAYS, "x": "y"}


class Examples(NamedTuple):
    """Examples to label."""

    inputs: Shaped[np.ndarray, "n ..."]
    names: list[str]  # one per example: the file, or the row in it
    labels: Int[np.ndarray, " n"]  # -1 = none is known
    source: str  # in words
    notes: tuple[str, ...] = ()  # what was left out or is unlike training


def read_examples(paths: Sequence[Path], model: TrainedModel, resize: bool = False) -> Examples:
    """Read the files that the user names.

    Args:
        paths: one `.npz` file, one table, or image files, folders of them, and tables about those.
            An image has the label that a table in its folder says, or that of the class whose name
            its folder has.
        model: decides shape and type.
        resize: bring images of another size to the model's where it is not known how training's
            were read.

    Returns:
        The examples, in the order of the paths, and of the names in a folder.

    Raises:
        TrainedModelError: a file that is not there, cannot be read, or does not fit the model.
    """
    for path in paths:
        if not path.exists():
            raise TrainedModelError(
                f"{path} does not exist; give an .npz file, image files, or folders of images"
            )
        kind = path.suffix.lower()
        if path.is_file() and kind != ".npz" and not is_image(path) and not is_table(path):
            raise TrainedModelError(
                f"{path} cannot be labelled: give an .npz file with the array inputs, a table, "
                f"{IMAGES}, or folders of images"
            )
        if (kind == ".npz" or is_table(path)) and len(paths) > 1:
            raise TrainedModelError(
                f"{path} is given together with other files; give one .npz file, one table, or "
                "images"
            )
    try:
        if paths[0].suffix.lower() == ".npz":
            return _read_npz(paths[0], model)
        if is_table(paths[0]) and not isinstance(model.reading, ImageReading):
            return _read_table(paths[0], model)
        labels = dict(pair for path in paths for pair in _labelled(path, model))
        return _read_images(labels, model, resize)
    except TrainedModelError:
        raise
    except (ValueError, DatasetUnavailable) as error:
        raise TrainedModelError(str(error)) from error


def _read_npz(path: Path, model: TrainedModel) -> Examples:
    arrays, names = read_arrays(path)
    name = next((one for one in _ARRAYS if one in names), names[0] if len(names) == 1 else None)
    if name is None:
        raise TrainedModelError(
            f"{path} has no array of inputs. Arrays in it: {', '.join(names) or 'none'}; known "
            f"names: {', '.join(_ARRAYS)}"
        )
    inputs = arrays[name]
    notes: list[str] = []
    label_name = _ARRAYS.get(name, "labels")
    labels = np.full(len(inputs), -1)
    if label_name in names:
        given = arrays[label_name]
        if "class_names" in names and given.dtype.kind in "iu":
            given = _by_name(given, arrays["class_names"], path)
        elif given.dtype.kind in "iu" and model.config.data.name in ("table", "folder"):
            given = _as_in_texts(given, model.class_names, notes)
        labels = _labels(given, len(inputs), f"array {label_name!r}", model.class_names)
    rows = list(map(str, range(len(inputs))))
    if isinstance(model.reading, TableReading):
        columns = ", ".join(model.reading.inputs)
        notes.append(f"columns of an array have no names: they are taken as {columns}")
    return Examples(inputs, rows, labels, f"{path}, array {name!r}", tuple(notes))


def _read_table(path: Path, model: TrainedModel) -> Examples:
    reading = model.reading
    findings = Findings()
    if not isinstance(reading, TableReading):
        raise TrainedModelError(
            f"{path} cannot be labelled: this model did not learn from a table; it takes inputs "
            f"of shape {list(model.input_shape)}: give an .npz file with the array inputs, or "
            "images"
        )
    table = read_table(path, findings)
    inputs, used = reading.read(table, findings)
    label = {
        role: name for role, name in reading.roles.items() if role == "label" and name in table
    }
    columns = read_columns(
        read_roles(table, label, (), findings), model.class_names, findings, reading.marks
    )
    findings.stop(path)
    known = (*reading.roles.values(), *(feature.name for feature in reading.features))
    if others := [name for name in table if name not in known]:
        findings.notes.append(f"columns that the model does not use: {', '.join(others)}")
    labels = columns.y[used]
    names = table.index[used].tolist()
    return Examples(
        inputs[used], names, labels, f"{path}, {counted(len(names), 'row')}", tuple(findings.notes)
    )


def _by_name(labels: np.ndarray, class_names: np.ndarray, path: Path) -> np.ndarray:
    """Write labels by the names of the file's own classes, in whatever order the model has them;
    "" for none.
    """
    names = list(map(cell_text, class_names.tolist()))
    if len(wrong := np.flatnonzero(labels >= len(names))):
        raise TrainedModelError(
            f"{path} has label {labels[wrong[0]]} in row {wrong[0]}, and class_names has "
            f"{counted(len(names), 'name')}"
        )
    first = int(names[0] == "-1")  # a class like the others
    return np.array(["", *names])[np.maximum(labels + first, -1) + 1]


def _as_in_texts(labels: np.ndarray, classes: Sequence[str], notes: list[str]) -> np.ndarray:
    """Write numbers as names where classes are called by numbers, as in tables; else note what
    they are taken for.
    """
    texts = labels.astype(str)
    if {"-1", *classes}.issuperset(texts.ravel().tolist()):
        return texts
    notes.append(
        f"labels are numbers, taken as places among the classes, {classes[0]} = 0 and so on; give "
        "their names, or the array class_names"
    )
    return labels


def _labels(given: np.ndarray, length: int, name: str, classes: Sequence[str]) -> np.ndarray:
    given = one_each(name, given, length)
    if given.dtype.kind in "SU":
        findings = Findings()
        table = pandas.DataFrame({"label": given.astype(str)}).rename("row {}".format)
        found = read_columns(table, classes, findings)
        findings.stop(name)
        return found.y
    if given.dtype.kind not in "iu":
        raise TrainedModelError(
            f"{name} is {given.dtype}; labels are whole numbers or names of classes"
        )
    check_labels(name, given, len(classes))
    return given


def _labelled(path: Path, model: TrainedModel) -> list[tuple[Path, str]]:
    """Find image files, and what a table beside them, or else the names of their folders, says
    that they show.
    """
    if path.is_file() and is_image(path):
        return [(path, path.absolute().parent.name)]
    folder = path if path.is_dir() else path.parent
    data = model.config.data
    listing = list_images(folder)
    column = data.get("file_column") or "file"
    of_labels = data.get("label_column") or "label"
    table, paths_column = find_table(path, listing, column)
    if table is None or paths_column != column:
        found = [(folder / name, (folder.absolute() / name).parent.name) for name in listing.images]
    else:
        cells = read_table(table)
        if column not in cells:
            raise TrainedModelError(f"{table}: {no_column(column, cells, ', of files')}")
        texts = as_text(cells[of_labels]) if of_labels in cells else [""] * len(cells)
        there = by_cell(listing.images, folder)
        names = [there.get(spelling(cell), "") for cell in cells[column]]
        said = dict(zip(names, texts, strict=True))
        listed = [name for name in listing.images if path.is_dir() or name in said]
        found = [(folder / name, said.get(name, "")) for name in listed]
    if not found:
        raise TrainedModelError(f"{path} has no images; {IMAGES} are looked for, at any depth")
    return found


def _read_images(labels: Mapping[Path, str], model: TrainedModel, resize: bool) -> Examples:
    if len(model.input_shape) != 3 or model.input_shape[-1] not in (1, 3):
        raise TrainedModelError(
            f"this model takes inputs of shape {list(model.input_shape)}, not images; give an "
            ".npz file"
        )
    files = list(labels)
    names = list(map(str, labels))
    findings = Findings()
    stored = model.reading if isinstance(model.reading, ImageReading) else None
    read = read_alike(
        files, names, findings, stored or ImageReading(*model.input_shape, fit="stretch")
    )
    if findings.problems:
        raise TrainedModelError("; ".join(findings.problems))
    names = [names[row] for row in read.rows]
    height, width, _ = model.input_shape
    for name, facts in zip(names, read.facts, strict=True):
        if facts.size != (width, height) and not (stored or resize):
            raise TrainedModelError(
                f"{name} has {facts.size[0]}x{facts.size[1]} pixels, the model takes "
                f"{width}x{height}; --resize brings all images to that size"
            )
    values = read.x * (model.input_max / 255.0)
    if model.input_dtype == np.uint8:
        values = np.rint(values)
    texts = pandas.DataFrame({"label": [labels[files[row]] for row in read.rows]}, index=names)
    texts[texts.isin(UNLABELLED)] = ""
    told = Findings()
    known = read_columns(texts, model.class_names, told).y
    notes = (*findings.notes, *(told.problems if (known >= 0).any() else ()))
    inputs = values.astype(model.input_dtype)
    return Examples(inputs, names, known, counted(len(names), "image"), notes)
