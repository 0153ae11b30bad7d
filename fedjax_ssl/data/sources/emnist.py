"""`emnist`: handwritten characters of NIST Special Database 19 in MNIST's form, without their
writers.

Source: Cohen, Afshar, Tapson and van Schaik, EMNIST: Extending MNIST to handwritten letters, IJCNN
2017.
"""

import string
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, damage
from fedjax_ssl.data.reading.register import published
from fedjax_ssl.data.sources.mnist import read_idx

HOME = "https://biometrics.nist.gov/cs_links/EMNIST"
ZIP = "gzip.zip"
Kind = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
_ALL = string.digits + string.ascii_uppercase + string.ascii_lowercase
# letters that look alike are one class
_MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"


class _Part(NamedTuple):
    classes: str
    examples: tuple[int, int]
    first_label: int = 0


PARTS = {
    "byclass": _Part(_ALL, (697_932, 116_323)),
    "bymerge": _Part(_MERGED, (697_932, 116_323)),
    "balanced": _Part(_MERGED, (112_800, 18_800)),
    "letters": _Part(string.ascii_lowercase, (124_800, 20_800), 1),
    "digits": _Part(string.digits, (240_000, 40_000)),
    "mnist": _Part(string.digits, (60_000, 10_000)),
}


@published(
    "emnist",
    "814,255 handwritten characters, 28x28x1, 62 classes, or kind=; downloaded, 562 MB",
    terms="of NIST; cite Cohen et al. (2017), EMNIST",
    files=(
        RemoteFile(
            f"{HOME}/{ZIP}",
            561_753_746,
            "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
        ),
    ),
    facts=lambda kind: Facts(
        *PARTS[kind].examples,
        (28, 28, 1),
        len(PARTS[kind].classes),
        fields={"class_names": tuple(PARTS[kind].classes)},
    ),
)
def read_emnist(files: Files, kind: Kind = "byclass") -> Dataset:
    """Read EMNIST from the zip file of gzipped IDX files; images come out upright, with high ink.

    Args:
        files: the zip file.
        kind: which of the six sets in the file: by class (62), with letters merged that look alike
            (47), a balanced part of that, letters of either case as one (26), digits, or EMNIST's
            own MNIST.

    Returns:
        Dataset with inputs uint8 [n, 28, 28, 1]; nobody knows the writers.

    Raises:
        FormatError: the file is no such archive, or labels are out of range.
    """
    path = files[ZIP]
    part = PARTS[kind]
    with damage(path), zipfile.ZipFile(path) as archive:
        there = {Path(name).name: name for name in archive.namelist()}

        def read(split: str, what: str) -> np.ndarray:
            name = f"emnist-{kind}-{split}-{what}-ubyte.gz"
            if name not in there:
                raise FormatError(f"{path} has no {name}.")
            with archive.open(there[name]) as file:
                return read_idx(file, f"{path}, {name}")

        splits = []
        for split in ("train", "test"):
            images = read(split, "images-idx3")
            labels = read(split, "labels-idx1").astype(np.int32) - part.first_label
            if len(labels) and not (labels.min() >= 0 and labels.max() < len(part.classes)):
                raise FormatError(
                    f"{path}: {kind} has labels outside its {len(part.classes)} classes."
                )
            splits.append(Split(np.ascontiguousarray(images.transpose(0, 2, 1))[..., None], labels))
    return Dataset("emnist", splits[0], splits[1], class_names=tuple(part.classes))
