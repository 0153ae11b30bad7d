"""`fed_isic2019`: dermoscopic images of six centres, read from the folder that FLamby prepares.

Source: du Terrail et al., FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning, NeurIPS 2022.
"""

import csv
import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources.cache import data_root, load_converted, save_converted
from fedjax_ssl.data.sources.entries import EMBEDDED
from fedjax_ssl.data.sources.fetch import DatasetUnavailable
from fedjax_ssl.data.sources.placed import require_placed

NAME = "fed_isic2019"
# Part of the cache's name: raise it whenever the same files give other arrays.
VERSION = 1
IMAGES = "ISIC_2019_Training_Input_preprocessed"
TABLE = "train_test_split"
COLUMNS = ("image", "target", "center", "fold")
FOLDS = ("train", "test")
CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
CENTRES = ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
PUBLISHED = {"train": (9_930, 3_163, 2_691, 1_807, 655, 351), "test": (2_483, 791, 672, 452, 164, 88)}
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
TERMS = (
    "ISIC 2019: CC BY-NC 4.0, non-commercial, and the terms of HAM10000; cite Tschandl et al. (2018), Codella et al. "
    "(2018), Combalia et al. (2019) and du Terrail et al. (2022), FLamby"
)

logger = logging.getLogger(__name__)
STEPS = (
    "      1. accept the terms of ISIC 2019 (https://challenge.isic-archive.com/data/; CC BY-NC 4.0, "
    "non-commercial) and of HAM10000\n"
    "      2. get FLamby (https://github.com/owkin/FLamby); in flamby/datasets/fed_isic2019/"
    "dataset_creation_scripts/ run\n"
    "         `python download_isic.py --output-folder FOLDER` (about 10 GB) and `python resize_images.py`\n"
    f"      3. copy the file {TABLE} from there into FOLDER\n"
)


class _Examples(NamedTuple):
    image: tuple[str, ...]  # file names without ending
    target: np.ndarray
    center: np.ndarray
    is_train: np.ndarray


def load_fed_isic(*, root: str | Path | None = None, path: str | Path | None = None, size: int = 64) -> Dataset:
    """Reads Fed-ISIC2019 as FLamby prepares it: 23,247 images, 8 classes, 6 centres.

    The folder holds `ISIC_2019_Training_Input_preprocessed/*.jpg`, which FLamby's scripts make (colour constancy,
    shorter side 224), and FLamby's table `train_test_split`, whose split is kept. Of each image the centre square is
    taken and resized once, antialiased. The arrays are kept in `<root>/fed_isic2019/` and opened from there as long
    as folder, table and `size` are the same.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder; default `<root>/fed_isic2019/raw`.
        size: side of the square images, in pixels.

    Returns:
        Dataset with inputs uint8 [n, size, size, 3] and the centres as clients; mean and standard deviation are
        ImageNet's.

    Raises:
        DatasetUnavailable: the folder or some images are not there, or an image is damaged; says what to do.
        ValueError: a size below 1, or a table without a column or with a value out of range.
    """
    check_whole_numbers(size=size)
    folder = data_root(root) / NAME
    given = folder / "raw" if path is None else Path(path).expanduser()
    require_placed(NAME, given, (IMAGES, TABLE), STEPS, f"{EMBEDDED}; digits has natural clients too")
    converted = folder / f"converted-v{VERSION}-size{size}-{_digest(given)}"
    cached = load_converted(converted)
    if cached is not None:
        return cached
    examples = _read_table(given / TABLE)
    files = _image_files(given / IMAGES, examples.image)
    logger.info("%s: reading %d images; this is done once", NAME, len(files))
    train, test = (
        Split(_read_images([files[i] for i in chosen], size), examples.target[chosen], examples.center[chosen])
        for chosen in (np.flatnonzero(examples.is_train), np.flatnonzero(~examples.is_train))
    )
    dataset = Dataset(
        name=NAME,
        train=train,
        test=test if len(test) else None,
        class_names=CLASSES,
        client_names=CENTRES,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        extra={"terms": TERMS},
    )
    save_converted(dataset, converted)
    return dataset


def _digest(folder: Path) -> str:
    """Short name of what is read: the table's content, and the folder, because images carry no digest."""
    content = (folder / TABLE).read_bytes() + str((folder / IMAGES).resolve()).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def _read_table(path: Path) -> _Examples:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except OSError as error:
        raise DatasetUnavailable(f"{NAME}: {path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{NAME}: {path} is no table of comma-separated values: {error}.") from error
    columns = reader.fieldnames or ()
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise ValueError(
            f"{NAME}: {path} has no column {', '.join(missing)}; found: {', '.join(columns) or 'nothing'}. Needed are "
            f"{', '.join(COLUMNS)}: take the file {TABLE} of FLamby as it is."
        )
    names = tuple(row["image"] for row in rows)
    target, center = (
        np.array([_number(path, line, row, name, bound) for line, row in enumerate(rows, 2)], np.int32)
        for name, bound in (("target", len(CLASSES)), ("center", len(CENTRES)))
    )
    for line, row in enumerate(rows, 2):
        if row["fold"] not in FOLDS:
            raise ValueError(f"{NAME}: {path}, line {line}: fold is {row['fold']!r}; allowed: {', '.join(FOLDS)}.")
    is_train = np.array([row["fold"] == "train" for row in rows], bool)
    if not is_train.any():
        raise ValueError(f"{NAME}: {path} has {len(rows)} rows and no training example among them.")
    _compare_with_published(path, center, is_train)
    return _Examples(names, target, center, is_train)


def _number(path: Path, line: int, row: dict[str, str], name: str, bound: int) -> int:
    value = row[name] or ""
    if not (value.isascii() and value.isdigit() and int(value) < bound):
        raise ValueError(f"{NAME}: {path}, line {line}: {name} is {row[name]!r}; allowed are 0 to {bound - 1}.")
    return int(value)


def _compare_with_published(path: Path, center: np.ndarray, is_train: np.ndarray) -> None:
    for fold, chosen in zip(FOLDS, (is_train, ~is_train), strict=True):
        found = tuple(np.bincount(center[chosen], minlength=len(CENTRES)).tolist())
        if found != PUBLISHED[fold]:
            logger.warning("%s has %s %s examples of the centres; published are %s", path, found, fold, PUBLISHED[fold])


def _image_files(folder: Path, names: Sequence[str]) -> list[Path]:
    here = {path.name for path in folder.iterdir()}
    missing = [f"{name}.jpg" for name in names if f"{name}.jpg" not in here]
    if missing:
        raise DatasetUnavailable(
            f"{NAME}: {len(missing):,} of the {len(names):,} images of {TABLE} are not in {folder}, first "
            f"{missing[0]}. To go on, let FLamby's resize_images.py run to its end, or run on data that needs no "
            f"download: {EMBEDDED}."
        )
    return [folder / f"{name}.jpg" for name in names]


def _read_images(files: Sequence[Path], size: int) -> np.ndarray:
    """uint8 [n, size, size, 3]; threads, because Pillow decodes and resizes without Python's lock."""
    images = np.empty((len(files), size, size, 3), np.uint8)

    def read(row: int) -> None:
        images[row] = _read_image(files[row], size)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(read, range(len(files))):
            pass
    return images


def _read_image(path: Path, size: int) -> np.ndarray:
    try:
        with Image.open(path) as image:
            width, height = image.size
            side = min(width, height)
            left, top = (width - side) // 2, (height - side) // 2
            square = image.convert("RGB").crop((left, top, left + side, top + side))
            return np.asarray(square.resize((size, size), Image.Resampling.BILINEAR))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DatasetUnavailable(
            f"{NAME}: {path} is damaged or no image: {error}. To go on, delete it and run FLamby's resize_images.py "
            f"again, or run on data that needs no download: {EMBEDDED}."
        ) from error
