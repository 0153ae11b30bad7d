"""Inputs to predict from files: arrays in an `.npz`, rows of a table, or images as Pillow reads
them.
"""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
from jaxtyping import Int, Shaped

from fedjax_ssl.data.dataset import in_one_form
from fedjax_ssl.data.reading.columns import TEST, TRAIN, VALIDATION, read_columns
from fedjax_ssl.data.reading.own import (
    MARKS,
    SHOWN,
    TEST_ARRAYS,
    TRAIN_ARRAYS,
    VALIDATION_ARRAYS,
    DatasetUnavailable,
    Findings,
    cell_text,
    is_table,
    named,
    one_each,
    read_arrays,
    read_roles,
    read_table,
)
from fedjax_ssl.data.reading.pictures import (
    ImageReading,
    is_image,
    list_images,
    read_alike,
)
from fedjax_ssl.data.reading.table_reading import TableReading
from fedjax_ssl.data.sources.folder import UNLABELLED, find_table, read_by_table
from fedjax_ssl.errors import counted
from fedjax_ssl.trained.trained_model import TrainedModel, TrainedModelError

IMAGES = "images (.bmp, .gif, .jpg, .png, .tif, .webp, ...)"
# The first one that exists is used.
_ARRAYS = {**TEST_ARRAYS, **TRAIN_ARRAYS, **VALIDATION_ARRAYS, "x": "y"}
_CLIENT = "client"  # array or column with the client, unless the run had another name


class Examples(NamedTuple):
    """Examples to label."""

    inputs: Shaped[np.ndarray, "n ..."]
    names: list[str]  # one per example: file, or row in it
    labels: Int[np.ndarray, " n"]  # -1 = none is known
    source: str  # in words
    notes: tuple[str, ...] = ()
    # ^ sentences about examples that were left out or differ from training
    clients: list[str] | None = None
    # ^ client of each example, if the run standardizes by client; None: unknown


def read_examples(
    paths: Sequence[Path], model: TrainedModel, resize: bool = False, client: str | None = None
) -> Examples:
    """Read the files that the user names.

    Args:
        paths: one `.npz` file, one table, or image files, folders of them, and tables about those.
            The label of an image comes from a table in its folder, or from the name of its folder.
        model: model, for shape and type.
        resize: resize images of another size to the model's, if the conversion in training is
            unknown.
        client: client of all examples; None: as the files say.

    Returns:
        The examples, in the order of the paths, and of the names in a folder.

    Raises:
        TrainedModelError: a file is missing, cannot be read, or does not fit the model.
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
            return _read_table(paths[0], model, client)
        return _read_images(paths, model, resize)
    except TrainedModelError:
        raise
    except (ValueError, DatasetUnavailable) as error:
        raise TrainedModelError(str(error)) from error


def _read_npz(path: Path, model: TrainedModel) -> Examples:
    arrays, names = read_arrays(path)
    name = next((one for one in _ARRAYS if one in names), None)
    if name is None:
        raise TrainedModelError(
            f"{path} has no array of inputs. Arrays in it: {', '.join(names) or 'none'}; known "
            f"names: {', '.join(_ARRAYS)}"
        )
    inputs = arrays[name]
    notes: list[str] = []
    texts = pandas.DataFrame(index=[f"row {row}" for row in range(len(inputs))])
    label_name = _ARRAYS.get(name, "labels")
    if label_name in names:
        given = one_each(f"array {label_name!r}", arrays[label_name], len(inputs))
        texts["label"] = _names_of_labels(given, arrays.get("class_names"), model, notes)
    labels = _known(texts, model.class_names, notes, ())
    rows = list(map(str, range(len(inputs))))
    if isinstance(model.reading, TableReading):
        columns = ", ".join(model.reading.inputs)
        notes.append(f"columns of an array have no names: they are taken as {columns}")
    whose = f"test_{_CLIENT}" if name in TEST_ARRAYS else _CLIENT
    clients = None
    if model.scales and whose in names:
        clients = named(list(map(cell_text, one_each(whose, arrays[whose], len(inputs)).tolist())))
    return Examples(inputs, rows, labels, f"{path}, array {name!r}", tuple(notes), clients)


def _read_table(path: Path, model: TrainedModel, client: str | None) -> Examples:
    reading = model.reading
    findings = Findings()
    if not isinstance(reading, TableReading):
        raise TrainedModelError(
            f"{path} cannot be labelled: this model did not learn from a table; it takes inputs "
            f"of shape {list(model.input_shape)}: give an .npz file with the array inputs, or "
            "images"
        )
    table = read_table(path)
    clients = None
    column = reading.roles.get("client")
    if model.scales and client is None and column in table:
        clients = named(table[column].tolist())
    inputs, used = reading.read(table, findings)
    findings.stop(path)
    label = {
        role: name for role, name in reading.roles.items() if role == "label" and name in table
    }
    texts = read_roles(table, label, (), findings)
    labels = _known(texts, model.class_names, findings.notes, reading.marks)[used]
    places = table.index[used].tolist()
    if (group := reading.roles.get("group")) in table:
        ids = table[group][used]
        places = [f"{one}, {place}" for one, place in zip(ids, places, strict=True)]
    known = (*reading.roles.values(), *(feature.name for feature in reading.features))
    if others := [name for name in table if name not in known]:
        findings.notes.append(f"columns that the model does not use: {', '.join(others)}")
    rows = f"{path}, {counted(len(places), 'row')}"
    whose_rows = None if clients is None else [clients[row] for row in np.flatnonzero(used)]
    return Examples(inputs[used], places, labels, rows, tuple(findings.notes), whose_rows)


def _known(
    texts: pandas.DataFrame,
    classes: Sequence[str],
    notes: list[str],
    marks: Collection[str] = MARKS,
) -> np.ndarray:
    """Turn labels into numbers, -1 = none that training knew; note those."""
    told = Findings()
    labels = read_columns(texts, classes, told, marks).y
    notes += told.notes
    if told.problems:
        more = f"; {len(told.problems) - SHOWN} more" * (len(told.problems) > SHOWN)
        notes.append(
            f"{'; '.join(told.problems[:SHOWN])}{more}; all rows are predicted, and the accuracy "
            "leaves these out"
        )
    return labels


def _names_of_labels(
    labels: np.ndarray, class_names: np.ndarray | None, model: TrainedModel, notes: list[str]
) -> list[str]:
    """Write labels as names of their classes, "" for none: whole numbers are indices into the
    file's own class names, or otherwise into the model's.
    """
    if labels.dtype.kind in "SU":
        return list(map(cell_text, labels.tolist()))
    if labels.dtype.kind not in "iu":
        raise TrainedModelError(
            f"labels are {labels.dtype}; they are whole numbers, -1 = none, or names of classes"
        )
    own = None if class_names is None else list(map(cell_text, class_names.tolist()))
    names = own or list(model.class_names)
    if own is None and names != list(map(str, range(len(names)))):
        notes.append(
            f"labels are numbers, taken as places among the classes, {names[0]} = 0 and so on; "
            "give their names, or the array class_names"
        )
    known = dict(enumerate(names)) | {-1: ""}
    return [known.get(label, f"number {label}") for label in labels.tolist()]


def _texts_of_images(path: Path, model: TrainedModel, findings: Findings) -> pandas.DataFrame:
    """Find image files, with labels and clients from the names of their folders or from a table
    beside them: a row per file, "" = none.
    """
    folder = path if path.is_dir() else path.parent
    listing = list_images(folder)
    images = [path.name] if path.is_file() and is_image(path) else list(listing.images)
    found = [_by_folders(folder, folder / name, model) for name in images]
    texts = pandas.DataFrame(found, index=images, columns=["label", "client"])
    # An image next to the folders of the classes is nearest to the folder of its site.
    of_class = texts["label"].map(in_one_form).isin(map(in_one_form, model.class_names))
    sites = {*texts["client"][of_class], *model.client_names}
    texts.loc[~of_class & texts["label"].isin(sites), "label"] = ""
    data = model.config.data
    columns = {role: data.get(f"{role}_column") or role for role in ("file", "label", "client")}
    table = None if images == [path.name] else find_table(path, columns["file"])
    if table is not None:
        files, told = read_by_table(table, read_table(table), listing, columns, findings)
        findings.stop(table)
        texts["label"] = ""
        texts.update(told.set_axis(files))
        texts = texts.loc[files] if path == table else texts
    if not len(texts):
        raise TrainedModelError(f"{path} has no images; {IMAGES} are looked for, at any depth")
    return texts.rename(lambda name: str(folder / name))


def _by_folders(folder: Path, file: Path, model: TrainedModel) -> tuple[str, str]:
    """Read class and site of an image from its folders: the nearest folder with such a name."""
    classes = {in_one_form(name) for name in (*model.class_names, *UNLABELLED)}
    above = Path(os.path.abspath(folder))
    names = [*reversed(file.parent.relative_to(folder).parts), above.name]
    for parent in above.parents:
        if not (_is_split(names[-1]) or in_one_form(names[-1]) in classes):
            break
        names.append(parent.name)
    plain = [name for name in names if not _is_split(name)] or names
    label = next((name for name in plain if in_one_form(name) in classes), plain[0])
    sites = [name for name in plain if in_one_form(name) not in classes] or plain
    return label, next((name for name in sites if model.scales.has(name)), sites[0])


def _is_split(name: str) -> bool:
    return name.casefold() in (*TRAIN[1:], *TEST, *VALIDATION)


def _read_images(paths: Sequence[Path], model: TrainedModel, resize: bool) -> Examples:
    if len(model.input_shape) != 3 or model.input_shape[-1] not in (1, 3):
        raise TrainedModelError(
            f"this model takes inputs of shape {list(model.input_shape)}, not images; give an "
            ".npz file"
        )
    findings = Findings()
    texts = pandas.concat([_texts_of_images(path, model, findings) for path in paths])
    texts = texts[~texts.index.duplicated(keep="last")]
    names = texts.index.tolist()
    stored = model.reading if isinstance(model.reading, ImageReading) else None
    alike = stored or ImageReading(*model.input_shape, fit="stretch")
    read = read_alike(list(map(Path, names)), names, findings, alike)
    findings.stop(paths[0])
    texts = texts.iloc[read.rows]
    names = texts.index.tolist()
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
    labels = texts[["label"]]
    told: list[str] = []
    known = _known(labels.mask(labels.isin(UNLABELLED), ""), model.class_names, told)
    # Names of folders that are no class are not labels.
    notes = (*findings.notes, *(told if (known >= 0).any() else ()))
    clients = texts["client"].tolist() if model.scales else None
    inputs = values.astype(model.input_dtype)
    return Examples(inputs, names, known, counted(len(names), "image"), notes, clients)
