"""Random images in the place of datasets that would have to be downloaded: what is compiled depends on shapes alone."""

from typing import NamedTuple

import ml_collections
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF, CIFAR100_SUPERCLASSES, correspondence
from fedjax_ssl.runs.build import Experiment, load_experiment


class Shape(NamedTuple):
    """What a program depends on."""

    example: tuple[int, ...]  # an image, or a row of numbers
    classes: int
    train: int  # examples
    test: int
    clients: int | None = None  # natural ones
    sets: int | None = None  # of each natural client, with class shares that are known


SHAPES = {
    "mnist": Shape((28, 28, 1), 10, 60_000, 10_000),
    "cifar10": Shape((32, 32, 3), 10, 50_000, 10_000),
    "cifar100": Shape((32, 32, 3), 100, 50_000, 10_000),
    "femnist": Shape((28, 28, 1), 62, 671_585, 77_483, clients=3_400),
    "rsna": Shape((224, 224, 3), 6, 3_000, 300),
    "images": Shape((28, 28, 1), 10, 6_000, 1_000, clients=20),
    "sets": Shape((28, 28, 1), 10, 6_000, 1_000, clients=20, sets=4),
    "rows": Shape((20,), 10, 6_000, 1_000, clients=20),
}
# For files of a user's own: what the shipped config of this name is for, and what others of their source are taken for.
_CONFIGS = {"rsna_fedul": "rsna", "npz_xclp": "mnist", "npz_fedul": "sets"}
_SOURCES = {"npz": "images", "folder": "images", "table": "rows"}


def stand_in_experiment(name: str, config: ml_collections.ConfigDict) -> Experiment:
    """A config with its dataset, or with random images of the same shape where that is not in the package.

    Args:
        name: of the config.
        config: not resolved.

    Raises:
        ConfigError: a setting cannot be used.
        DatasetUnavailable: nothing stands in for the dataset, and it is not on disk and could not be downloaded.
    """
    source = config.data.name
    if source in _SOURCES:
        source = _CONFIGS.get(name, _SOURCES[source])
    if source not in SHAPES:
        return load_experiment(config)
    return Experiment(configs.resolve(config), stand_in(source))


def stand_in(name: str) -> data.Dataset:
    """Random examples of a dataset's shape, natural clients with equally many.

    Args:
        name: a key of `SHAPES`. "rsna" has 3,000 slices instead of the paper's 66,000.
    """
    shape = SHAPES[name]
    generator = np.random.default_rng(0)
    superclasses = name == "cifar100"

    def split(count: int, sets: int | None) -> data.Split:
        labels = np.arange(count) % shape.classes
        values = generator.integers(0, 256, (count, *shape.example), np.uint8)
        return data.Split(
            values if len(shape.example) == 3 else values.astype(np.float32),
            labels,
            None if shape.clients is None else generator.permutation(count) % shape.clients,
            np.array(CIFAR100_SUPERCLASS_OF)[labels] if superclasses else None,
            None if sets is None else generator.integers(0, sets, count),
        )

    shares = None
    if shape.clients is not None and shape.sets is not None:
        shares = generator.dirichlet(np.ones(shape.classes), (shape.clients, shape.sets))
    return data.Dataset(
        name,
        split(shape.train, shape.sets),
        split(shape.test, None),
        tuple(str(label) for label in range(shape.classes)),
        coarse_names=CIFAR100_SUPERCLASSES if superclasses else None,
        correspondence=correspondence("superclass", shape.classes).matrix if superclasses else None,
        set_shares=shares,
    )
