"""`rsna_hemorrhage`: slices of computed tomography with one kind of bleeding each, from Kaggle's
files.

Source: Flanders et al., Construction of a Machine Learning Dataset through Collaboration: The RSNA
2019 Brain CT Hemorrhage Challenge, Radiology: Artificial Intelligence 2020.
"""

import importlib
import logging
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import facts_of, kept_for
from fedjax_ssl.data.reading.columns import Columns
from fedjax_ssl.data.reading.fetch import Facts, placed_folder
from fedjax_ssl.data.reading.formats import FormatError
from fedjax_ssl.data.reading.own import DatasetUnavailable, Findings, Place
from fedjax_ssl.data.reading.pictures import read_each, short, shown
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.errors import counted, how_to_install

NAME = "rsna_hemorrhage"
TABLE = "stage_2_train.csv"
IMAGES = "stage_2_train"
ANY = "any"
CLASSES = ("epidural", "intraparenchymal", "intraventricular", "subarachnoid", "subdural")
# Centre and width in Hounsfield units: brain, subdural, soft tissue.
WINDOWS = ((40, 80), (80, 200), (40, 380))
STEPS = (
    "      1. accept the rules at "
    "https://www.kaggle.com/c/rsna-intracranial-hemorrhage-detection (an account is needed)\n"
    f"      2. download the archive there (about 180 GB), unpack {TABLE} and {IMAGES}/\n"
)
TERMS = "Kaggle's rules of the competition, non-commercial; cite Flanders et al. (2020)"

logger = logging.getLogger(__name__)


@dataset(
    NAME,
    "slices of heads with one of 5 kinds of bleeding, 128x128x3 or size=; you place Kaggle's "
    "files at path=",
    terms=TERMS,
    kind="placed",
    facts=Facts(20_000, 0, (128, 128, 3), 5),
)
def load_rsna(
    *,
    root: Place = None,
    path: Place = None,
    size: Annotated[int, Whole(1)] = 128,
    max_images: Annotated[int | None, Whole(1)] = None,
    healthy: Annotated[int, Whole(0)] = 0,
) -> Dataset:
    """Read the training slices of the RSNA 2019 challenge that show exactly one of five kinds of
    bleeding.

    Three channels are three windows of the same slice: brain (centre 40, width 80 Hounsfield
    units), subdural (80, 200) and soft tissue (40, 380). The centre square is resized once; the
    arrays are kept in `<root>/rsna_hemorrhage/` until the table, the folder or an option changes.
    Files that cannot be read are left out and counted.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: folder with `stage_2_train.csv` and `stage_2_train/ID_*.dcm`; default
            `<root>/rsna_hemorrhage/raw`.
        size: side of the square images, in pixels.
        max_images: largest number of images, a fixed random choice; all by default.
        healthy: number of slices without bleeding, a fixed random choice; they are then the first
            class, and count towards `max_images`.

    Returns:
        Dataset with inputs uint8 [n, size, size, 3]. Clients are patients; there is no test split,
        so hold out patients.

    Raises:
        DatasetUnavailable: the files or pydicom are not there, or the table is damaged; says what
            to do.
        ValueError: an option below 1.
    """
    folder = placed_folder(NAME, root, path, (IMAGES, TABLE), STEPS)
    content = facts_of([folder / TABLE, folder / IMAGES])
    options = [size, max_images, *[healthy] * (healthy > 0)]
    return kept_for(
        root, NAME, folder, options, content, lambda: _read(folder, size, max_images, healthy)
    )


def _read(folder: Path, size: int, max_images: int | None, healthy: int) -> Dataset:
    findings = Findings()
    try:
        dicom: Any = importlib.import_module("pydicom")
    except ImportError as error:
        raise DatasetUnavailable(f"{NAME} needs pydicom: {how_to_install('medical')}") from error
    try:
        chosen = _read_table(folder / TABLE, findings, healthy)
    except FormatError as error:
        raise DatasetUnavailable(
            f"{NAME}: {error}\nTo go on, take {TABLE} from Kaggle's archive as it is."
        ) from error
    without = sorted(name for name, label in chosen.items() if healthy and label == 0)
    names = sorted(chosen.keys() - set(without))
    most = None if max_images is None else max(max_images - len(without), 0)
    if most is not None and len(names) > most:
        order = np.random.default_rng(0).permutation(len(names))[:most]
        names = [names[row] for row in np.sort(order)]
    names = sorted([*names, *without[:max_images]])
    if not names:
        raise DatasetUnavailable(
            f"{NAME}: {folder / TABLE} has no slice with exactly one of {', '.join(CLASSES)}."
        )
    logger.info("%s: reading %d slices; this is done once", NAME, len(names))
    patients = [""] * len(names)

    def read(row: int) -> np.ndarray | str:
        found = _slice(dicom, folder / IMAGES / f"{names[row]}.dcm", size)
        if isinstance(found, str):
            return found
        pixels, patients[row] = found
        return pixels

    x, rows = read_each(
        read, [f"{name}.dcm" for name in names], (size, size, len(WINDOWS)), findings
    )
    if findings.problems:
        raise DatasetUnavailable(f"{NAME}: {folder / IMAGES}: {findings.problems[0]}")
    people, client = np.unique([patients[row] for row in rows], return_inverse=True)
    y = np.array([chosen[names[row]] for row in rows])
    columns = Columns(
        y,
        ("healthy", *CLASSES) if healthy else CLASSES,
        client,
        tuple(people.tolist()),
        np.zeros(len(y), bool),
    )
    return columns.dataset(NAME, folder, x, None, findings.notes, terms=TERMS)


def _read_table(path: Path, findings: Findings, healthy: int) -> dict[str, int]:
    """Read the class of every slice with exactly one kind of bleeding, from rows `ID_x_KIND,0 or
    1`.

    Raises:
        FormatError: it is no such table; names the line.
    """
    import pandas

    try:
        table = pandas.read_csv(path, dtype=str, keep_default_na=False)
    except ValueError as error:  # pandas' own errors are subclasses of this
        raise FormatError(f"{path} is no table of comma-separated values: {error}") from error
    if list(table.columns) != ["ID", "Label"]:
        raise FormatError(
            f"{path} begins with {','.join(table.columns)[:60]!r}; expected is 'ID,Label'."
        )
    table[["slice", "kind"]] = table["ID"].str.rpartition("_")[[0, 2]].to_numpy()
    right = (
        table["kind"].isin([*CLASSES, ANY])
        & table["Label"].isin(["0", "1"])
        & table["slice"].str.startswith("ID_")
    )
    if not right.all():
        row = int(right.argmin())
        said = ",".join(table.loc[row, ["ID", "Label"]])[:60]
        raise FormatError(f"{path}, line {row + 2}: {said!r} is no ID_x_KIND,0 or 1.")
    once = table.drop_duplicates(["slice", "kind", "Label"])
    differing = once.loc[once.duplicated("ID"), "slice"].unique()
    if repeated := int(table.duplicated("ID").sum()):
        findings.notes.append(
            f"{counted(repeated, 'row')} of {path.name} said before; they count once"
        )
    if len(differing):
        findings.notes.append(
            f"{counted(len(differing), 'slice has', 'slices have')} rows of {path.name} that "
            f"differ, first {min(differing)}; left out"
        )
    kinds = once[~once["slice"].isin(differing)].pivot(
        index="slice", columns="kind", values="Label"
    )
    shown = kinds.reindex(columns=list(CLASSES)).dropna() == "1"
    one = shown[shown.sum(axis=1) == 1]
    found = dict(zip(one.index, one.to_numpy().argmax(axis=1).tolist(), strict=True))
    if not healthy:
        return found
    names = shown.index[shown.sum(axis=1) == 0].to_numpy(str)
    without = np.random.default_rng(0).permutation(names)[:healthy]
    return {name: label + 1 for name, label in found.items()} | dict.fromkeys(without.tolist(), 0)


def _slice(dicom: Any, path: Path, size: int) -> tuple[np.ndarray, str] | str:
    """Read pixels uint8 [size, size, 3] and patient, or return the reason why the file cannot be
    used.
    """
    try:
        if not path.is_file():
            return "not there"
        image = dicom.dcmread(path)
        if (image.get("NumberOfFrames") or 1) != 1:
            return "of several frames"
        units = _in_units(image)
        if units.ndim != 2:
            return "in colour"
        return _windows(units, size), str(image.get("PatientID") or path.stem)
    except Exception as error:
        return f"cut short or damaged ({short(error)})"


def _in_units(head: Any) -> np.ndarray:
    """Return the pixels of a DICOM file in grey, float64 [H, W], in the units of slope and
    intercept, from dark to bright.
    """
    values: np.ndarray = importlib.import_module("pydicom.pixels").pixel_array(head, index=0)
    if values.ndim > 2:
        return values
    if head.PhotometricInterpretation == "MONOCHROME1":  # from bright to dark
        values = (0 if head.PixelRepresentation else 2**head.BitsStored) - 1.0 - values
    # values that are not finite are refused later
    with np.errstate(over="ignore", invalid="ignore"):
        return values * float(head.get("RescaleSlope", 1)) + float(head.get("RescaleIntercept", 0))


def _windows(units: np.ndarray, size: int) -> np.ndarray:
    """Return Hounsfield units [H, W] as uint8 [size, size, windows]: values below a window are 0,
    above it 255.
    """
    if not np.isfinite(units).all():
        raise ValueError("values that are not finite")
    windows = [np.clip((units - (centre - width / 2)) / width, 0, 1) for centre, width in WINDOWS]
    image = Image.fromarray(np.rint(255 * np.stack(windows, axis=-1)).astype(np.uint8))
    return shown(image, (size, size, len(WINDOWS)))
