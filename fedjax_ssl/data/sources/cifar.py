"""`cifar10` and `cifar100`: small photographs, the latter with superclasses.

Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedjax_ssl.data.correspondence import (
    CIFAR100_CLASSES,
    CIFAR100_SUPERCLASS_OF,
    CIFAR100_SUPERCLASSES,
    correspondence,
)
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, read_tar
from fedjax_ssl.data.reading.register import published

# fmt: off
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)
# fmt: on
HOME = "https://www.cs.toronto.edu/~kriz"
TAR10 = "cifar-10-binary.tar.gz"
TAR100 = "cifar-100-binary.tar.gz"
TERMS = "no licence stated; cite Krizhevsky (2009)"
FACTS10 = Facts(
    50_000,
    10_000,
    (32, 32, 3),
    10,
    fields={
        "class_names": CIFAR10_CLASSES,
        "mean": (0.4914, 0.4822, 0.4465),  # as in XCLP's code
        "std": (0.2470, 0.2435, 0.2616),
    },
)
FACTS100 = Facts(
    50_000,
    10_000,
    (32, 32, 3),
    100,
    fields={
        "class_names": CIFAR100_CLASSES,
        "mean": (0.5071, 0.4865, 0.4409),  # as in SemiFL
        "std": (0.2673, 0.2564, 0.2762),
        "coarse_names": CIFAR100_SUPERCLASSES,
        "correspondence": correspondence("superclass", len(CIFAR100_CLASSES)).matrix,
    },
)


@published(
    "cifar10",
    "60,000 photographs, 32x32x3, 10 classes; downloaded, 170 MB",
    terms=f"{TERMS}, Learning Multiple Layers of Features from Tiny Images",
    files=(
        RemoteFile(
            f"{HOME}/{TAR10}",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    facts=FACTS10,
)
def read_cifar10(files: Files) -> Dataset:
    """Read CIFAR-10 from its binary archive; a row has one label byte and 3,072 bytes in the planes
    red, green and blue.
    """
    batches = [f"data_batch_{i}.bin" for i in range(1, 6)]
    *train, test = _read_rows(files[TAR10], [*batches, "test_batch.bin"], {"label": 10})
    images, labels = (np.concatenate([part[place] for part in train]) for place in (0, 1))
    test_images, test_labels = test
    return Dataset(
        "cifar10",
        Split(images, labels[:, 0]),
        Split(test_images, test_labels[:, 0]),
        **FACTS10.fields,
    )


@published(
    "cifar100",
    "60,000 photographs, 32x32x3, 100 classes in 20 superclasses; downloaded, 169 MB",
    terms=f"{TERMS}, Learning Multiple Layers of Features from Tiny Images",
    files=(
        RemoteFile(
            f"{HOME}/{TAR100}",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
    facts=FACTS100,
)
def read_cifar100(files: Files) -> Dataset:
    """Read CIFAR-100 from its binary archive: rows of superclass, class and 3,072 bytes."""
    path = files[TAR100]
    splits: list[Split] = []
    for images, labels in _read_rows(
        path, ["train.bin", "test.bin"], {"superclass": 20, "class": 100}
    ):
        wrong = np.flatnonzero(np.array(CIFAR100_SUPERCLASS_OF)[labels[:, 1]] != labels[:, 0])
        if len(wrong):
            coarse, fine = labels[wrong[0]]
            raise FormatError(
                f"{path}: {len(wrong)} examples are not in the superclass of their class; the "
                f"first has class {fine}, which is in superclass {CIFAR100_SUPERCLASS_OF[fine]}, "
                f"and superclass {coarse}."
            )
        splits.append(Split(images, labels[:, 1], coarse=labels[:, 0]))
    return Dataset("cifar100", splits[0], splits[1], **FACTS100.fields)


def _read_rows(
    path: Path, names: Sequence[str], labels: Mapping[str, int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read images [n, 32, 32, 3] and label bytes [n, labels] of the named members of an archive.

    Args:
        path: the archive.
        names: members.
        labels: number of values of each label byte.

    Raises:
        FormatError: not a gzipped tar, members missing, or rows that do not fit.
    """
    row = len(labels) + math.prod((3, 32, 32))

    def read(name: str, file: IO[bytes], size: int) -> tuple[np.ndarray, np.ndarray]:
        if not size or size % row:
            raise FormatError(
                f"{path}: {name} has {size:,} bytes, which is no whole number of rows of {row:,}."
            )
        numbers, planes = np.split(
            np.frombuffer(file.read(), np.uint8).reshape(-1, row), [len(labels)], axis=1
        )
        for (kind, count), values in zip(labels.items(), numbers.T, strict=True):
            if values.max() >= count:
                raise FormatError(
                    f"{path}: {name} has the {kind} {values.max()}; there are 0 to {count - 1}."
                )
        return np.ascontiguousarray(
            planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        ), numbers.copy()

    found = read_tar(path, names, read)
    return [found[name] for name in names]
