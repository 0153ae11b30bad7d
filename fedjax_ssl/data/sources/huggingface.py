"""`huggingface`: a dataset of the library `datasets`, saved to disk, read without that library."""

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.sources.cache import data_root, fingerprint, kept
from fedjax_ssl.data.sources.columns import Texts, read_columns
from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.pictures import read_images
from fedjax_ssl.data.sources.problems import BadData, Findings
from fedjax_ssl.data.sources.saved_datasets import Part, is_saved_dataset, read_parts
from fedjax_ssl.data.sources.spreadsheet import arrow_column, as_text
from fedjax_ssl.registry import did_you_mean

VERSION = 1  # of what a folder becomes: goes into the cache's name
ROLES = ("input", "label", "coarse", "client")

logger = logging.getLogger(__name__)


def load_huggingface(
    *,
    root: Path | str | None = None,
    path: Path | str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    unlabelled_split: str | None = None,
    input_key: str | None = None,
    label_key: str | None = None,
    coarse_key: str | None = None,
    client_key: str | None = None,
    size: int | None = None,
    channels: int | None = None,
) -> Dataset:
    """Reads a dataset that Hugging Face's `datasets` has saved to disk; the arrays are kept in `<root>/huggingface/`.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder that `save_to_disk` wrote, of one split or of several.
        train_split: the split that is trained on; a folder of one split is that one, whatever its name.
        test_split: the split that is tested on; by default "test", if there is one.
        unlabelled_split: a split whose examples follow the training examples without a label.
        input_key: the column of inputs, images or lists of numbers; by default the only one.
        label_key: the column of classes; by default the only class label, else "label".
        coarse_key: a column of labels in another space.
        client_key: a column that says whose example it is.
        size: side of square images in pixels, cropped in the middle; by default their own where all have the same,
            else 64.
        channels: 1 (grey) or 3 (colour) of images; by default 3 if one is in colour.

    Returns:
        Dataset "huggingface" with inputs uint8 [n, H, W, C] or float32 [n, ...]; `extra["notes"]` says what was
        skipped.

    Raises:
        DatasetUnavailable: the folder is not there.
        BadData: it cannot be trained on; has everything that is wrong.
        ValueError: no path, or an option out of range.
    """
    if path is None:
        raise ValueError('load("huggingface") needs path=, a folder that save_to_disk of the library datasets wrote')
    if size is not None:
        check_whole_numbers(size=size)
    if channels not in (None, 1, 3):
        raise ValueError(f"channels is {channels}; allowed: 1 (grey) and 3 (colour)")
    folder = Path(path).expanduser()
    if not is_saved_dataset(folder):
        raise DatasetUnavailable(
            f"huggingface: {folder} is {'no folder that save_to_disk wrote' if folder.exists() else 'not there'}. In "
            f'Python: datasets.load_dataset("NAME").save_to_disk("FOLDER"), and give path= that FOLDER.'
        )
    keys = dict(zip(ROLES, (input_key, label_key, coarse_key, client_key), strict=True))
    wanted = {"train": train_split, "test": test_split, "unlabelled": unlabelled_split}
    options = {"keys": keys, "splits": wanted, "size": size, "channels": channels}
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    stats = [(str(file.relative_to(folder)), file.stat()) for file in files]
    content = [VERSION, [(name, status.st_size, status.st_mtime_ns) for name, status in stats]]
    home = data_root(root) / "huggingface" / f"{folder.resolve().name}-{fingerprint([str(folder.resolve()), options])}"
    return kept(home, fingerprint(content), lambda: _read(folder, keys, wanted, size, channels))


def _read(
    folder: Path,
    keys: Mapping[str, str | None],
    wanted: Mapping[str, str | None],
    size: int | None,
    channels: int | None,
) -> Dataset:
    findings = Findings()
    parts = read_parts(folder, wanted, findings)
    findings.stop(folder)
    names = _columns(next(iter(parts.values())), keys, findings)
    for split, part in parts.items():
        absent = [name for name in names.values() if name not in part.features]
        if absent and not findings.problems:
            findings.problems.append(f"split {split!r} has no column {absent[0]!r}, which others have")
    findings.stop(folder)
    rows = [(split, row) for split, part in parts.items() for row in range(part.table.num_rows)]
    texts = _texts(parts, names, wanted, rows, findings)
    findings.stop(folder)  # before the images, which take longest
    x, used = _inputs(parts, names["input"], rows, size, channels, findings)
    findings.stop(folder)
    columns = read_columns(texts.rows(used), len(used), _class_names(parts, names), findings)
    findings.stop(folder)
    try:
        return columns.dataset("huggingface", x, None, findings.notes)
    except ValueError as error:
        raise BadData(folder, [str(error)]) from error


def _columns(part: Part, keys: Mapping[str, str | None], findings: Findings) -> dict[str, str]:
    """The column of each role: as given, or the only one that could be it."""
    images = [name for name, one in part.features.items() if one.get("_type") == "Image"]
    lists = [name for name in part.features if _is_list(part.table.column(name))]
    labels = [name for name, one in part.features.items() if one.get("_type") == "ClassLabel"]
    guessed = {
        "input": images or lists,
        "label": labels if len(labels) == 1 else [n for n in part.features if n == "label"],
    }
    names = {}
    for role, given in keys.items():
        if given is not None and given not in part.features:
            findings.problems.append(
                f"there is no column {given!r}.{did_you_mean(given, part.features)} Columns: {', '.join(part.features)}"
            )
        elif given is not None:
            names[role] = given
        elif role in guessed and len(guessed[role]) == 1:
            names[role] = guessed[role][0]
        elif role in guessed:
            findings.problems.append(
                f"{len(guessed[role]) or 'no'} columns could be the {role}; name one with data.{role}_key. Columns: "
                f"{', '.join(part.features)}"
            )
    return names


def _type(column: Any) -> Any:
    """The type of a column; of one that `datasets` has extended, what it is stored as."""
    return getattr(column.type, "storage_type", column.type)


def _is_list(column: Any) -> bool:
    types: Any = importlib.import_module("pyarrow.types")
    kind = _type(column)
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _texts(
    parts: Mapping[str, Part],
    names: Mapping[str, str],
    wanted: Mapping[str, str | None],
    rows: Sequence[tuple[str, int]],
    findings: Findings,
) -> Texts:
    """What stands beside the inputs, of all splits one after another."""
    found: dict[str, list[str]] = {role: [] for role in names if role != "input"}
    for split, part in parts.items():
        for role, texts in found.items():
            if role in ("label", "coarse") and split == wanted["unlabelled"]:
                texts += [""] * part.table.num_rows
            else:
                texts += _text(part, split, names[role], findings)
    last = list(parts)[-1]
    tested = None if len(parts) == 1 or last == wanted["unlabelled"] else last
    kinds = None if tested is None else ["test" if name == tested else "train" for name, _ in rows]

    def where(row: int) -> str:
        return f"{rows[row][0]}, row {rows[row][1]}"

    return Texts(where, found.get("label"), found.get("client"), kinds, None, found.get("coarse"))


def _text(part: Part, split: str, name: str, findings: Findings) -> list[str]:
    """A column as text, "" where there is nothing; class labels by name."""
    types: Any = importlib.import_module("pyarrow.types")
    column, classes = part.table.column(name), part.features[name].get("names")
    kind = column.type
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    if not any(is_kind(kind) for is_kind in plain):
        findings.problems.append(f"column {name!r} holds {kind}; labels and clients are text or numbers")
        return [""] * part.table.num_rows
    if not isinstance(classes, list) or not types.is_integer(kind):
        return as_text(arrow_column(column))
    values = column.to_pylist()
    wrong = [row for row, value in enumerate(values) if value is not None and not -1 <= value < len(classes)]
    if wrong:
        findings.problems.append(
            f"column {name!r} is {values[wrong[0]]} in {split}, row {wrong[0]}; it has {len(classes)} names"
        )
        return [""] * len(values)
    return ["" if value is None or value < 0 else str(classes[value]) for value in values]


def _class_names(parts: Mapping[str, Part], names: Mapping[str, str]) -> tuple[str, ...] | None:
    """All classes in their order, where the dataset names them."""
    found = next(iter(parts.values())).features[names["label"]].get("names")
    return tuple(map(str, found)) if isinstance(found, list) and found else None


class _Encoded(Sequence[bytes]):
    """Encoded images of a column, read when they are asked for."""

    def __init__(self, columns: Sequence[Any]):
        self._columns = columns
        self._ends = np.cumsum([len(column) for column in columns])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: Any) -> Any:
        place = int(np.searchsorted(self._ends, row, side="right"))
        column = self._columns[place]
        return column[int(row - (self._ends[place] - len(column)))].as_py() or b""


def _inputs(
    parts: Mapping[str, Part],
    name: str,
    rows: Sequence[tuple[str, int]],
    size: int | None,
    channels: int | None,
    findings: Findings,
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, and which of the rows they are."""
    compute: Any = importlib.import_module("pyarrow.compute")
    types: Any = importlib.import_module("pyarrow.types")
    columns = [part.table.column(name) for part in parts.values()]
    if all(types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0 for column in columns):
        encoded = [compute.struct_field(column, "bytes") for column in columns]
        if all(column.null_count == len(column) for column in encoded):
            findings.problems.append(
                f"column {name!r} names image files and does not hold them; save it with the images in it"
            )
            return np.empty(0), np.empty(0, int)
        shown = [f"{split}, row {row}" for split, row in rows]
        logger.info("huggingface: reading %d images; this is done once", len(rows))
        pictures = read_images(
            _Encoded(encoded), shown, size=size, channels=channels, fit="crop", white=None, findings=findings
        )
        return pictures.x, pictures.rows
    if not all(_is_list(column) for column in columns):
        findings.problems.append(
            f"column {name!r} holds {columns[0].type}; inputs are images or lists of numbers. Columns of single "
            "numbers: write them with to_csv or to_parquet, and read that as 'table'"
        )
        return np.empty(0), np.empty(0, int)
    arrays = [
        _numbers(split, name, column, findings) for (split, _), column in zip(parts.items(), columns, strict=True)
    ]
    if not findings.problems and len({array.shape[1:] for array in arrays}) > 1:
        findings.problems.append(f"column {name!r} has another shape in each split: {[a.shape[1:] for a in arrays]}")
    if findings.problems:
        return np.empty(0), np.empty(0, int)
    x = np.concatenate(arrays)
    if x.ndim == 3:
        x = x[..., None]  # images in grey
    return x if x.dtype == np.uint8 and x.ndim == 4 else x.astype(np.float32), np.arange(len(x))


def _numbers(split: str, name: str, column: Any, findings: Findings) -> np.ndarray:
    """A column of lists, of lists of lists and so on, as an array."""
    compute: Any = importlib.import_module("pyarrow.compute")
    types: Any = importlib.import_module("pyarrow.types")
    array = column.combine_chunks()
    array, shape = getattr(array, "storage", array), [len(array)]
    while _is_list(array):
        found = compute.min_max(compute.list_value_length(array)).as_py()
        if array.null_count or found["min"] != found["max"] or not found["min"]:
            findings.problems.append(
                f"column {name!r} of split {split!r} holds lists of {found['min']} to {found['max']} values, or empty "
                "ones; inputs are all of one shape"
            )
            return np.empty(0)
        shape.append(found["max"])
        array = array.flatten()
    is_number = types.is_integer(array.type) or types.is_floating(array.type) or types.is_boolean(array.type)
    if not is_number or array.null_count:
        findings.problems.append(f"column {name!r} of split {split!r} holds {array.type}, or gaps; inputs are numbers")
        return np.empty(0)
    return array.to_numpy(zero_copy_only=False).reshape(shape)
