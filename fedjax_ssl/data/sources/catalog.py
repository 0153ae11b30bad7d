"""Published datasets: where their files are, how they become arrays, and their terms."""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF, CIFAR100_SUPERCLASSES, correspondence
from fedjax_ssl.data.dataset import Dataset, Split
from fedjax_ssl.data.sources import formats, tff
from fedjax_ssl.data.sources.emnist import emnist
from fedjax_ssl.data.sources.entries import Archive, Prepared, RemoteFile
from fedjax_ssl.data.sources.femnist import FEMNIST
from fedjax_ssl.data.sources.mini_imagenet import mini_imagenet
from fedjax_ssl.data.sources.omniglot import omniglot
from fedjax_ssl.data.sources.stl10 import stl10
from fedjax_ssl.data.sources.svhn import svhn

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# fmt: off
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock",
    "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish",
    "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate", "poppy", "porcupine",
    "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk",
    "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)
# fmt: on
FASHION_CLASSES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


# What a dataset is described by beside its arrays, whichever files they come from.
MNIST_FACTS: dict[str, Any] = {"class_names": tuple(string.digits), "mean": (0.1307,), "std": (0.3081,)}
FASHION_FACTS: dict[str, Any] = {"class_names": FASHION_CLASSES}
CIFAR10_FACTS: dict[str, Any] = {
    "class_names": CIFAR10_CLASSES,
    "mean": (0.4914, 0.4822, 0.4465),  # as XCLP's code has them
    "std": (0.2470, 0.2435, 0.2616),
}
CIFAR100_FACTS: dict[str, Any] = {
    "class_names": CIFAR100_CLASSES,
    "mean": (0.5071, 0.4865, 0.4409),  # as SemiFL has them
    "std": (0.2673, 0.2564, 0.2762),
    "coarse_names": CIFAR100_SUPERCLASSES,
    "correspondence": correspondence("superclass", len(CIFAR100_CLASSES)).matrix,
}


def _four_idx(name: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> Dataset:
    images, labels, test_images, test_labels = (formats.read_idx(files[file.name]) for file in MNIST.files)
    train, test = Split(images[..., None], labels), Split(test_images[..., None], test_labels)
    return Dataset(name=name, train=train, test=test, **facts)


def read_mnist(files: Mapping[str, Path]) -> Dataset:
    """MNIST from its four IDX files."""
    return _four_idx("mnist", files, MNIST_FACTS)


def read_fashion_mnist(files: Mapping[str, Path]) -> Dataset:
    """Fashion-MNIST from files of MNIST's names and form."""
    return _four_idx("fashion_mnist", files, FASHION_FACTS)


def read_cifar10(files: Mapping[str, Path]) -> Dataset:
    """CIFAR-10 from its binary archive."""
    images, labels, test_images, test_labels = formats.read_cifar10_binary(files["cifar-10-binary.tar.gz"])
    train, test = Split(images, labels), Split(test_images, test_labels)
    return Dataset(name="cifar10", train=train, test=test, **CIFAR10_FACTS)


def read_cifar100(files: Mapping[str, Path]) -> Dataset:
    """CIFAR-100 from its binary archive, with classes and superclasses."""
    path = files["cifar-100-binary.tar.gz"]
    images, labels, test_images, test_labels = formats.read_cifar100_binary(path)
    for both in (labels, test_labels):
        wrong = np.flatnonzero(np.array(CIFAR100_SUPERCLASS_OF)[both[:, 1]] != both[:, 0])
        if len(wrong):
            coarse, fine = both[wrong[0]]
            raise formats.FormatError(
                f"{path}: {len(wrong)} examples are not in the superclass of their class; the first has class {fine}, "
                f"which is in superclass {CIFAR100_SUPERCLASS_OF[fine]}, and superclass {coarse}."
            )
    return Dataset(
        name="cifar100",
        train=Split(images, labels[:, 1], coarse=labels[:, 0]),
        test=Split(test_images, test_labels[:, 1], coarse=test_labels[:, 0]),
        **CIFAR100_FACTS,
    )


def _mnist(name: str, size: int, sha256: str) -> RemoteFile:
    hosts = ("https://storage.googleapis.com/cvdf-datasets/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist")
    return RemoteFile(f"{name}-ubyte.gz", tuple(f"{host}/{name}-ubyte.gz" for host in hosts), size, sha256)


def _fashion(name: str, size: int, sha256: str) -> RemoteFile:
    hosts = (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
    )
    return RemoteFile(f"{name}-ubyte.gz", tuple(f"{host}/{name}-ubyte.gz" for host in hosts), size, sha256)


def _cifar(name: str, size: int, sha256: str) -> RemoteFile:
    file = f"{name}-binary.tar.gz"
    return RemoteFile(file, (f"https://www.cs.toronto.edu/~kriz/{file}",), size, sha256)


MNIST = Archive(
    name="mnist",
    description="70,000 handwritten digits, 28x28x1, 10 classes; downloaded, 12 MB",
    files=(
        _mnist("train-images-idx3", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        _mnist("train-labels-idx1", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        _mnist("t10k-images-idx3", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        _mnist("t10k-labels-idx1", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    read=read_mnist,
    prepared=Prepared("mnist", MNIST_FACTS),
    examples=(60_000, 10_000),
    terms="CC BY-SA 3.0 as Keras states it; cite LeCun, Bottou, Bengio and Haffner (1998)",
)

FASHION_MNIST = Archive(
    name="fashion_mnist",
    description="70,000 articles of clothing, 28x28x1, 10 classes; downloaded, 31 MB",
    files=(
        _fashion("train-images-idx3", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        _fashion("train-labels-idx1", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        _fashion("t10k-images-idx3", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        _fashion("t10k-labels-idx1", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    read=read_fashion_mnist,
    prepared=Prepared("fashion_mnist", FASHION_FACTS),
    terms="MIT; cite Xiao, Rasul and Vollgraf (2017), Fashion-MNIST",
    examples=(60_000, 10_000),
)

CIFAR10 = Archive(
    name="cifar10",
    description="60,000 photographs, 32x32x3, 10 classes; downloaded, 170 MB",
    files=(_cifar("cifar-10", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
    read=read_cifar10,
    prepared=Prepared("cifar10", CIFAR10_FACTS),
    examples=(50_000, 10_000),
    terms="no licence stated; cite Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
)

CIFAR100 = Archive(
    name="cifar100",
    description="60,000 photographs, 32x32x3, 100 classes in 20 superclasses; downloaded, 169 MB",
    files=(_cifar("cifar-100", 168_513_733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
    read=read_cifar100,
    prepared=Prepared("cifar100", CIFAR100_FACTS, {"coarse_key": "coarse_label"}),
    examples=(50_000, 10_000),
    terms="no licence stated; cite Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
)

ARCHIVES = {
    archive.name: archive
    for archive in (
        *(MNIST, FASHION_MNIST, emnist(), CIFAR10, CIFAR100, tff.cifar100_federated(CIFAR100_CLASSES), svhn(), stl10()),
        *(omniglot(), mini_imagenet(), FEMNIST),
    )
}
