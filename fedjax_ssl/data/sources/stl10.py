"""`stl10`: photographs of ten classes, few with a label and many without.

Source: Coates, Lee and Ng, An Analysis of Single Layer Networks in Unsupervised Feature Learning,
AISTATS 2011.
"""

import math
from typing import IO, Annotated

import numpy as np
from PIL import Image

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, read_tar
from fedjax_ssl.data.reading.register import published

HOME = "http://ai.stanford.edu/~acoates/stl10"
TAR = "stl10_binary.tar.gz"
CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
SHAPE = (3, 96, 96)  # planes, columns, rows
BLOCK = 1000  # images read at once


@published(
    "stl10",
    "13,000 photographs and 100,000 without a label, 96x96x3 or size=, 10 classes; downloaded, "
    "2.6 GB",
    terms="images from ImageNet, for research; cite Coates, Lee and Ng (2011)",
    files=(
        RemoteFile(
            f"{HOME}/{TAR}",
            2_640_397_119,
            "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
        ),
    ),
    facts=Facts(
        105_000, 8_000, (96, 96, 3), 10, unlabelled=100_000, fields={"class_names": CLASSES}
    ),
)
def read_stl10(files: Files, size: Annotated[int, Whole(1, SHAPE[1])] = 96) -> Dataset:
    """Read STL-10 from its binary archive: planes in the order of columns, labels from 1.

    The 100,000 images without a label follow the 5,000 training images.

    Args:
        files: the archive.
        size: side of the images; smaller ones are resized once (area-averaged). All at 96: 3.1 GB;
            at 32: 0.35 GB.

    Returns:
        Dataset with inputs uint8 [n, size, size, 3].

    Raises:
        FormatError: the file is no such archive, or damaged.
    """
    path = files[TAR]
    wanted = ["train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"]

    def read(name: str, file: IO[bytes], length: int) -> np.ndarray:
        if name.endswith("_y.bin"):
            return np.frombuffer(file.read(), np.uint8)
        return _images(file, length, f"{path}: {name}", size)

    content = read_tar(path, wanted, read)
    splits = {}
    for split in ("train", "test"):
        images = content[f"{split}_X.bin"]
        labels = content[f"{split}_y.bin"]
        fits = 0 < len(images) == len(labels)
        if not fits or labels.min() < 1 or labels.max() > len(CLASSES):
            raise FormatError(
                f"{path}: {split} has {len(images)} images and {len(labels)} labels, or labels "
                "outside 1 to 10."
            )
        splits[split] = images, labels.astype(np.int32) - 1
    x, y = splits["train"]
    more = content.pop("unlabeled_X.bin")
    train = Split(np.concatenate([x, more]), np.append(y, np.full(len(more), -1, np.int32)))
    return Dataset("stl10", train, Split(*splits["test"]), class_names=CLASSES)


def _images(file: IO[bytes], length: int, where: str, size: int) -> np.ndarray:
    """Read uint8 [n, size, size, 3] in blocks, because the unlabelled images alone take 2.8 GB at
    their original size.
    """
    row = math.prod(SHAPE)
    if length % row:
        raise FormatError(f"{where} has {length:,} bytes, no whole number of images of {row:,}.")
    images = np.empty((length // row, size, size, 3), np.uint8)
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
