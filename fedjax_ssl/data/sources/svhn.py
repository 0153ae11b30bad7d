"""`svhn`: digits from house numbers in street views, cut out.

Source: Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS
workshop 2011.
"""

import string
from pathlib import Path

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, damage
from fedjax_ssl.data.reading.register import published

FILES = {
    part: RemoteFile(f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat", *facts)
    for part, facts in {
        "train": (182_040_794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        "test": (64_275_384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    }.items()
}


@published(
    "svhn",
    "99,289 digits of house numbers, 32x32x3, 10 classes; downloaded, 246 MB",
    terms="for non-commercial use, as its page says; cite Netzer et al. (2011)",
    files=tuple(FILES.values()),
    facts=Facts(
        73_257,
        26_032,
        (32, 32, 3),
        10,
        fields={"class_names": tuple(string.digits)},
    ),
)
def read_svhn(files: Files) -> Dataset:
    """Read SVHN's cropped digits from MATLAB files with `X` [32, 32, 3, n] and `y` [n, 1], where 10
    is the digit 0.

    Args:
        files: the two files.

    Returns:
        Dataset with inputs uint8 [n, 32, 32, 3].

    Raises:
        FormatError: a file is no such file, or damaged.
    """
    train, test = (Split(*_read(files[file.name])) for file in FILES.values())
    return Dataset("svhn", train, test, class_names=tuple(string.digits))


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat, matlab  # slow to import

    with damage(path):
        try:
            content = loadmat(path, variable_names=["X", "y"])
        except matlab.MatReadError as error:
            raise ValueError(str(error)) from error
    missing = [name for name in ("X", "y") if name not in content]
    if missing:
        raise FormatError(f"{path} has no variable {' and '.join(missing)}.")
    images = content["X"]
    labels = content["y"].reshape(-1)
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
        raise FormatError(
            f"{path} has X of {images.dtype} {images.shape} and {len(labels)} labels; it must be "
            "uint8 (32, 32, 3, labels)."
        )
    if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
        raise FormatError(
            f"{path} has labels from {labels.min()} to {labels.max()}; there are 1 to 10."
        )
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), (labels % 10).astype(np.int32)
