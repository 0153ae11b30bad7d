"""`fed_isic2019`: dermoscopic images of six centres, read from the folder that FLamby prepares.

Source: du Terrail et al., FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning,
NeurIPS 2022.
"""

import dataclasses
import logging
from pathlib import Path
from typing import Annotated

import numpy as np

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import kept_for
from fedjax_ssl.data.reading.columns import Columns
from fedjax_ssl.data.reading.fetch import Facts, file_sha256, placed_folder
from fedjax_ssl.data.reading.own import (
    EMBEDDED,
    DatasetUnavailable,
    Findings,
    Place,
    read_table,
)
from fedjax_ssl.data.reading.pictures import read_images
from fedjax_ssl.data.reading.register import dataset

NAME = "fed_isic2019"
IMAGES = "ISIC_2019_Training_Input_preprocessed"
TABLE = "train_test_split"
COLUMNS = ("image", "target", "center", "fold")
FOLDS = ("train", "test")
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = (
    "BCN",
    "HAM_vidir_molemax",
    "HAM_vidir_modern",
    "HAM_rosendahl",
    "MSK",
    "HAM_vienna_dias",
)
PUBLISHED = {
    "train": (9_930, 3_163, 2_691, 1_807, 655, 351),
    "test": (2_483, 791, 672, 452, 164, 88),
}
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TERMS = (
    "ISIC 2019: CC BY-NC 4.0, non-commercial, and the terms of HAM10000; cite Tschandl et al. "
    "(2018), Codella et al. (2018), Combalia et al. (2019) and du Terrail et al. (2022), FLamby"
)

logger = logging.getLogger(__name__)
STEPS = (
    "      1. accept the terms of ISIC 2019 (https://challenge.isic-archive.com/data/; CC BY-NC "
    "4.0, non-commercial) and of HAM10000\n      2. get FLamby "
    "(https://github.com/owkin/FLamby); in flamby/datasets/fed_isic2019/"
    "dataset_creation_scripts/ run\n         `python download_isic.py --output-folder FOLDER` "
    f"(about 10 GB) and `python resize_images.py`\n      3. copy the file {TABLE} from there into "
    "FOLDER\n"
)


@dataset(
    NAME,
    "23,247 dermoscopic images of 6 centres, 64x64x3 or size=, 8 classes; you place FLamby's "
    "folder at path=",
    terms=TERMS,
    kind="placed",
    facts=Facts(18_598, 4_649, (64, 64, 3), 8, clients=6),
)
def load_fed_isic(
    *,
    root: Place = None,
    path: Place = None,
    size: Annotated[int, Whole(1)] = 64,
) -> Dataset:
    """Read Fed-ISIC2019 as FLamby prepares it: 23,247 images, 8 classes, 6 centres.

    The folder holds `ISIC_2019_Training_Input_preprocessed/*.jpg`, which FLamby's scripts make
    (colour constancy, shorter side 224), and FLamby's table `train_test_split`, whose split is
    kept. Of each image the centre square is taken and resized once, antialiased. The arrays are
    kept in `<root>/fed_isic2019/` and opened from there as long as folder, table and `size` are the
    same.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder; default `<root>/fed_isic2019/raw`.
        size: side of the square images, in pixels.

    Returns:
        Dataset with inputs uint8 [n, size, size, 3] and the centres as clients; mean and standard
        deviation are ImageNet's.

    Raises:
        DatasetUnavailable: the folder or some images are not there, or an image is damaged; says
            what to do.
        ValueError: a size below 1, or a table without a column or with a value out of range.
    """
    given = placed_folder(NAME, root, path, (IMAGES, TABLE), STEPS)
    content = file_sha256(given / TABLE)  # images carry no digest
    return kept_for(root, NAME, given, size, content, lambda: _read(given, size))


def _read(folder: Path, size: int) -> Dataset:
    names, target, center, is_train = _read_table(folder / TABLE)
    here = {path.name for path in (folder / IMAGES).iterdir()}
    missing = [f"{name}.jpg" for name in names if f"{name}.jpg" not in here]
    if missing:
        raise DatasetUnavailable(
            f"{NAME}: {len(missing):,} of the {len(names):,} images of {TABLE} are not in "
            f"{folder / IMAGES}, first {missing[0]}. To go on, let FLamby's resize_images.py run "
            f"to its end, or run on data that needs no download: {EMBEDDED}."
        )
    logger.info("%s: reading %d images; this is done once", NAME, len(names))
    files = [folder / IMAGES / f"{name}.jpg" for name in names]
    findings = Findings()
    named = np.array([file.name for file in files])
    read = read_images(files, named.tolist(), findings, size=size, channels=3, fit="square")
    if len(read.x) < len(names):
        raise DatasetUnavailable(
            f"{NAME}: {'; '.join(findings.problems or findings.notes)} in {folder / IMAGES}. To "
            "go on, delete what is damaged and run FLamby's resize_images.py again, or run on "
            f"data that needs no download: {EMBEDDED}."
        )
    columns = Columns(target, CLASSES, center, CENTRES, ~is_train, names=named)
    found = columns.dataset(NAME, folder, read.x, None, (), read.reading, terms=TERMS)
    return dataclasses.replace(found, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _read_table(path: Path) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Read names of images, targets, centres, and which images are trained on."""
    table = read_table(path)
    missing = [name for name in COLUMNS if name not in table]
    if missing:
        raise ValueError(
            f"{NAME}: {path} has no column {', '.join(missing)}; found: {', '.join(table)}. "
            f"Needed are {', '.join(COLUMNS)}: take the file {TABLE} of FLamby as it is."
        )
    names, target, center, fold = (table[name].tolist() for name in COLUMNS)
    for name, cells, bound in (("target", target, len(CLASSES)), ("center", center, len(CENTRES))):
        for row, cell in enumerate(cells):
            if not (cell.isascii() and cell.isdigit() and int(cell) < bound):
                raise ValueError(
                    f"{NAME}: {table.index[row]}: {name} is {cell!r}; allowed are 0 to {bound - 1}."
                )
    if wrong := [row for row, cell in enumerate(fold) if cell not in FOLDS]:
        allowed = ", ".join(FOLDS)
        raise ValueError(
            f"{NAME}: {table.index[wrong[0]]}: fold is {fold[wrong[0]]!r}; allowed: {allowed}."
        )
    centres = np.array(center, np.int32)
    is_train = np.array(fold) == "train"
    if not is_train.any():
        raise ValueError(
            f"{NAME}: {path} has {len(names)} rows and no training example among them."
        )
    for name, chosen in zip(FOLDS, (is_train, ~is_train), strict=True):
        found = tuple(np.bincount(centres[chosen], minlength=len(CENTRES)).tolist())
        if found != PUBLISHED[name]:
            logger.warning(
                "%s has %s %s examples of the centres; published are %s",
                path,
                found,
                name,
                PUBLISHED[name],
            )
    return names, np.array(target, np.int32), centres, is_train
