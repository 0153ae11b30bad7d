"""`stl10`: photographs of ten classes, few with a label and many without.

Source: Coates, Lee and Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning, AISTATS 2011.
"""

import math
import tarfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from fedjax_ssl.checks import check_whole_numbers
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources.archives import load_archive
from fedjax_ssl.data.sources.entries import Archive, Prepared, RemoteFile, Source
from fedjax_ssl.data.sources.formats import LARGEST, FormatError, damage

TAR = "stl10_binary.tar.gz"
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SHAPE = (3, 96, 96)  # planes, columns, rows
BLOCK = 1000  # images that are read at once


def load_stl10(
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    source: Source = "auto",
    unlabelled: bool = True,
    size: int = 96,
) -> Dataset:
    """Loads STL-10.

    Args:
        root: folder of all datasets.
        path: folder with the original file.
        download: whether the network may be used.
        source: of the files, as of `load`.
        unlabelled: whether the 100,000 images without a label follow the 5,000 training images.
        size: side of the images; smaller ones are resized once (area-averaged). All at 96: 3.1 GB; at 32: 0.35 GB.

    Returns:
        Dataset with inputs uint8 [n, size, size, 3].

    Raises:
        DatasetUnavailable: it is neither here nor to be had, or damaged.
        ValueError: a size that is not 1 to 96.
    """
    check_whole_numbers(1, SHAPE[1], size=size)
    return load_archive(stl10(unlabelled, size), root=root, path=path, download=download, source=source)


def stl10(unlabelled: bool = True, size: int = 96) -> Archive:
    """The catalogue entry."""
    return Archive(
        name="stl10",
        description="13,000 photographs and 100,000 without a label, 96x96x3 or size=, 10 classes; downloaded, 2.6 GB",
        files=(
            RemoteFile(
                TAR,
                (f"http://ai.stanford.edu/~acoates/stl10/{TAR}",),
                2_640_397_119,
                "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
            ),
        ),
        read=partial(read_stl10, unlabelled=unlabelled, size=size),
        # Smaller images are resized in another way there.
        prepared=Prepared("stl10", {"class_names": CLASSES}, {"unlabelled_split": "unlabelled" if unlabelled else None})
        if size == SHAPE[1]
        else None,
        terms="images from ImageNet, for research; cite Coates, Lee and Ng (2011)",
        variant=f"size{size}" + "-labelled" * (not unlabelled),
        examples=(5_000 + 100_000 * unlabelled, 8_000),
    )


def read_stl10(files: Mapping[str, Path], unlabelled: bool, size: int) -> Dataset:
    """From the binary archive: planes in the order of columns, labels from 1.

    Raises:
        FormatError: the file is no such archive, or damaged.
    """
    path = files[TAR]
    wanted = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", *["unlabeled_X.bin"] * unlabelled]
    content: dict[str, np.ndarray] = {}
    with damage(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            name = Path(member.name).name
            if name in wanted and (file := archive.extractfile(member)) is not None:
                if member.size > LARGEST:
                    raise FormatError(f"{path}: {name} has {member.size:,} bytes; more than {LARGEST:,} are not read.")
                is_labels = name.endswith("_y.bin")
                content[name] = np.frombuffer(file.read(), np.uint8) if is_labels else _images(file, member, path, size)
    missing = [name for name in wanted if name not in content]
    if missing:
        raise FormatError(f"{path} has no {', '.join(missing)}; found: {', '.join(sorted(content)) or 'nothing'}.")
    splits = {}
    for split in ("train", "test"):
        images, labels = content[f"{split}_X.bin"], content[f"{split}_y.bin"]
        if len(images) != len(labels) or not (len(labels) and labels.min() >= 1 and labels.max() <= len(CLASSES)):
            raise FormatError(
                f"{path}: {split} has {len(images)} images and {len(labels)} labels, or labels outside 1 to 10."
            )
        splits[split] = images, labels.astype(np.int32) - 1
    x, y = splits["train"]
    if unlabelled:
        more = content.pop("unlabeled_X.bin")
        x, y = np.concatenate([x, more]), np.concatenate([y, np.full(len(more), -1, np.int32)])
    return Dataset(name="stl10", train=Split(x, y), test=Split(*splits["test"]), class_names=CLASSES)


def _images(file, member: tarfile.TarInfo, path: Path, size: int) -> np.ndarray:
    """uint8 [n, size, size, 3], in blocks: the unlabelled images alone take 2.8 GB at their own size."""
    row = math.prod(SHAPE)
    if member.size % row:
        raise FormatError(f"{path}: {member.name} has {member.size:,} bytes, no whole number of images of {row:,}.")
    images = np.empty((member.size // row, size, size, 3), np.uint8)
    for start in range(0, len(images), BLOCK):
        stop = min(start + BLOCK, len(images))
        planes = np.frombuffer(file.read((stop - start) * row), np.uint8).reshape(-1, *SHAPE)
        block = planes.transpose(0, 3, 2, 1)
        if size == SHAPE[1]:
            images[start:stop] = block
        else:
            for place, image in enumerate(block, start):
                whole = Image.fromarray(np.ascontiguousarray(image))
                images[place] = np.asarray(whole.resize((size, size), Image.Resampling.BOX))
    return images
