"""`mnist` and `fashion_mnist`: digits and clothing in grey, from four IDX files each.

Sources: LeCun, Bottou, Bengio and Haffner, Gradient-based learning applied to document recognition,
1998; Xiao, Rasul and Vollgraf, Fashion-MNIST, 2017.
"""

import gzip
import math
import string
import struct
from typing import IO

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.reading.fetch import Facts, Files, RemoteFile
from fedjax_ssl.data.reading.formats import FormatError, damage
from fedjax_ssl.data.reading.register import published

MNIST = Facts(
    60_000,
    10_000,
    (28, 28, 1),
    10,
    fields={"class_names": tuple(string.digits), "mean": (0.1307,), "std": (0.3081,)},
)
# fmt: off
FASHION = Facts(
    60_000, 10_000, (28, 28, 1), 10,
    fields={
        "class_names": (
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
            "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
        ),
    },
)
# fmt: on
NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _files(host: str, mirrors: tuple[str, ...], *facts: tuple[int, str]) -> tuple[RemoteFile, ...]:
    files = zip((f"{name}-ubyte.gz" for name in NAMES), facts, strict=True)
    return tuple(
        RemoteFile(f"{host}/{file}", *fact, tuple(f"{one}/{file}" for one in mirrors))
        for file, fact in files
    )


@published(
    "mnist",
    "70,000 handwritten digits, 28x28x1, 10 classes; downloaded, 12 MB",
    terms="CC BY-SA 3.0 as Keras states it; cite LeCun, Bottou, Bengio and Haffner (1998)",
    files=_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist",),
        (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    facts=MNIST,
)
def read_mnist(files: Files) -> Dataset:
    """Read MNIST from its four IDX files."""
    return _read("mnist", files, MNIST)


@published(
    "fashion_mnist",
    "70,000 articles of clothing, 28x28x1, 10 classes; downloaded, 31 MB",
    terms="MIT; cite Xiao, Rasul and Vollgraf (2017), Fashion-MNIST",
    files=_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
        ),
        (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    facts=FASHION,
)
def read_fashion_mnist(files: Files) -> Dataset:
    """Read Fashion-MNIST from files of MNIST's names and form."""
    return _read("fashion_mnist", files, FASHION)


def _read(name: str, files: Files, facts: Facts) -> Dataset:
    arrays = []
    for file in NAMES:
        path = files[f"{file}-ubyte.gz"]
        with path.open("rb") as content:
            arrays.append(read_idx(content, str(path)))
    images, labels, test_images, test_labels = arrays
    train = Split(images[..., None], labels)
    test = Split(test_images[..., None], test_labels)
    return Dataset(name=name, train=train, test=test, **facts.fields)


def read_idx(file: IO[bytes], name: str) -> np.ndarray:
    """Read a gzipped IDX file of bytes, the format of MNIST and its relatives.

    The format: two zero bytes, type 8 (unsigned byte), the number of axes, big-endian sizes, the
    bytes.

    Args:
        file: the open `.gz` file.
        name: name of the file in messages.

    Returns:
        uint8 array of the shape the file states.

    Raises:
        FormatError: no gzip, no IDX of bytes, or not the length it states.
    """
    with damage(name), gzip.open(file) as content:
        start = content.read(4)
        if len(start) < 4 or start[:3] != b"\0\0\x08":
            raise FormatError(f"{name} is no IDX file of bytes: it starts with {start!r}.")
        sizes = content.read(4 * start[3])
        if len(sizes) < 4 * start[3]:
            raise FormatError(f"{name} ends inside its header, after {4 + len(sizes)} bytes.")
        shape = struct.unpack(f">{start[3]}I", sizes)
        count = math.prod(shape)
        values = content.read(count + 1)  # one byte more, to check that the file ends there
    if len(values) != count:
        raise FormatError(
            f"{name} states the shape {shape} but holds "
            f"{'more' if len(values) > count else len(values)} values."
        )
    return np.frombuffer(values, np.uint8).reshape(shape)
