"""`huggingface`: a dataset that Hugging Face's library `datasets` saved to disk, read by that
library.
"""

import importlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Reading
from fedjax_ssl.data.reading.arrays import axes_of_images
from fedjax_ssl.data.reading.cache import facts_of, kept_for
from fedjax_ssl.data.reading.catalogues import Choice, choose_columns, choose_splits
from fedjax_ssl.data.reading.columns import read_columns
from fedjax_ssl.data.reading.pictures import Channels, Side, read_images
from fedjax_ssl.data.reading.problems import (
    BadData,
    DatasetUnavailable,
    Findings,
    Place,
    given_path,
)
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.reading.tables import as_text
from fedjax_ssl.errors import how_to_install

if TYPE_CHECKING:  # takes long to import
    import pandas

# beginnings of the names of features that are lists
LISTS = ("List", "LargeList", "Sequence", "list", "Array")

logger = logging.getLogger(__name__)


def is_saved_dataset(folder: Path) -> bool:
    """Tell whether `save_to_disk` has written this folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


@dataset(
    "huggingface",
    "a dataset of Hugging Face's library: path= the folder that save_to_disk wrote",
    terms="yours",
    kind="own",
)
def load_huggingface(
    *,
    root: Place = None,
    path: Place = None,
    choice: Choice,
    size: Side = None,
    channels: Channels = None,
) -> Dataset:
    """Read a dataset that Hugging Face's `datasets` has saved to disk; the arrays are kept in
    `<root>/huggingface/`.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder that `save_to_disk` wrote, of one split or of several.
        choice: splits and columns; a folder of one split is that one, whatever its name.
        size: side of square images in pixels, cropped in the middle; by default their own where all
            have the same, else 64.
        channels: 1 (grey) or 3 (colour) of images; by default 3 if one is in colour.

    Returns:
        Dataset "huggingface" with inputs uint8 [n, H, W, C] or float32 [n, ...]; `extra["notes"]`
        says what was skipped.

    Raises:
        DatasetUnavailable: the folder or the library is not there.
        BadData: it cannot be trained on; has everything that is wrong.
        ValueError: no path, or an option out of range.
    """
    how = (
        "a folder that save_to_disk wrote; in Python: "
        'datasets.load_dataset("NAME").save_to_disk("FOLDER")'
    )
    folder = given_path("huggingface", path, how, "folder")
    if not is_saved_dataset(folder):
        raise DatasetUnavailable(
            f"huggingface: {folder} is no folder that save_to_disk wrote. Give path= {how}."
        )
    content = facts_of(file for file in folder.rglob("*") if file.is_file())
    told = [choice, size, channels]
    return kept_for(
        root, "huggingface", folder, told, content, lambda: _read(folder, choice, size, channels)
    )


def _read(folder: Path, choice: Choice, size: int | None, channels: int | None) -> Dataset:
    findings = Findings()
    table, rows, test = _open(folder, choice)
    kinds = ("Image", LISTS, "ClassLabel")
    images, lists, labels = (
        [name for name, one in table.features.items() if type(one).__name__.startswith(kind)]
        for kind in kinds
    )
    labels = labels if len(labels) == 1 else [name for name in table.features if name == "label"]
    names = choose_columns(
        folder, choice, table.features, {"input": images or lists, "label": labels}
    )
    texts = _texts(table, rows, names, choice.unlabelled_split, test, findings)
    findings.stop(folder)  # before the images, which take longest
    x, used, reading = _inputs(table, names["input"], texts.index, size, channels, findings)
    findings.stop(folder)
    columns = read_columns(
        texts.iloc[used], getattr(table.features[names["label"]], "names", None), findings
    )
    findings.stop(folder)
    return columns.dataset("huggingface", folder, x, None, findings.notes, reading)


def _open(folder: Path, choice: Choice) -> tuple[Any, list[tuple[str, int]], str | None]:
    """Open the splits to be used one after another; split and number of each row, and the split
    to be tested on.
    """
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise DatasetUnavailable(
            f"huggingface: {folder} needs the library datasets: {how_to_install('huggingface')}"
        ) from error
    try:
        found = library.load_from_disk(str(folder))
        there = found if isinstance(found, library.DatasetDict) else {choice.train_split: found}
        chosen, test = choose_splits(folder, choice, there)
        rows = [(name, row) for name in chosen for row in range(len(there[name]))]
        return library.concatenate_datasets([there[name] for name in chosen]), rows, test
    except BadData:
        raise
    except Exception as error:  # whatever it raises, a user needs the same message
        raise BadData(
            folder, f"is damaged: {' '.join(str(error).split())[:200]}; save the dataset again"
        ) from error


def _texts(
    table: Any,
    rows: Sequence[tuple[str, int]],
    names: Mapping[str, str],
    unlabelled: str | None,
    test: str | None,
    findings: Findings,
) -> "pandas.DataFrame":
    """Read what stands beside the inputs as text, "" where there is nothing; class labels by
    name.
    """
    import pandas

    found: dict[str, list[str]] = {}
    for role, name in names.items():
        feature = table.features[name]
        if role != "input" and type(feature).__name__ not in ("Value", "ClassLabel"):
            findings.problems.append(
                f"column {name!r} holds {feature}; labels and clients are text or numbers, one an "
                "example"
            )
        elif role != "input":
            # as floating point, large numbers beside a gap would lose digits
            cells = table.select_columns([name]).with_format("arrow")[:].column(name)
            texts = as_text(cells.to_pandas(integer_object_nulls=True))
            if classes := getattr(feature, "names", None):
                known = {str(number): label for number, label in enumerate(classes)}
                # -1 is none, and another number is refused as an unknown class
                texts = [known.get(text, text) for text in texts]
            hidden = unlabelled if role in ("label", "coarse") else None
            found[role] = [
                "" if split == hidden else text
                for (split, _), text in zip(rows, texts, strict=True)
            ]
    found["split"] = ["test" if split == test else "train" for split, _ in rows]
    return pandas.DataFrame(found, index=[f"{split}, row {row}" for split, row in rows])


class _Encoded(Sequence[bytes]):
    """Encoded images of a column, read when they are asked for."""

    def __init__(self, table: Any, name: str):
        self.table = table
        self.name = name

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: Any) -> Any:
        return self.table[int(row)][self.name]["bytes"] or b""


def _inputs(
    table: Any,
    name: str,
    places: Sequence[str],
    size: int | None,
    channels: int | None,
    findings: Findings,
) -> tuple[np.ndarray, np.ndarray, Reading | None]:
    """Read inputs, which of the rows they are, and how images were read."""
    feature = table.features[name]
    alone = table.select_columns([name])
    kind = type(feature).__name__
    if kind == "Image":
        encoded = _Encoded(alone.cast_column(name, type(feature)(decode=False)), name)
        if any(encoded):
            logger.info("huggingface: reading %d images; this is done once", len(encoded))
            pictures = read_images(encoded, places, findings, size=size, channels=channels)
            return pictures.x, pictures.rows, pictures.reading
        problem = "names image files and does not hold them; save it with the images in it"
    elif not kind.startswith(LISTS):
        problem = (
            f"holds {feature}; inputs are images or lists of numbers. Columns of single numbers: "
            "write them with to_csv or to_parquet, and read that as 'table'"
        )
    elif (x := alone.with_format("numpy")[:][name]).dtype.kind not in "iufb":
        problem = "holds text, gaps, or lists of several shapes; inputs are numbers of one"
    else:
        while isinstance(feature, list) or hasattr(feature, "feature"):
            feature = feature[0] if isinstance(feature, list) else feature.feature
        x = x[..., None] if x.ndim == 3 else x  # images in grey
        try:
            findings.notes += axes_of_images(f"column {name!r}", x.shape)
        except ValueError as error:
            findings.problems.append(str(error))
        is_image = x.ndim == 4 and x.dtype.kind == "i" and feature.dtype == "uint8"
        return x.astype(np.uint8 if is_image else np.float32), np.arange(len(x)), None
    findings.problems.append(f"column {name!r} {problem}")
    return np.empty(0), np.empty(0, int), None
