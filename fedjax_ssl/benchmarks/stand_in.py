"""Random images in the place of datasets that would have to be downloaded: what is compiled depends on shapes alone."""

import ml_collections
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.data.correspondence import CIFAR100_SUPERCLASS_OF, CIFAR100_SUPERCLASSES, correspondence
from fedjax_ssl.experiment import Experiment, load_experiment

# image shape, classes, training examples, test examples, writers
SHAPES = {
    "mnist": ((28, 28, 1), 10, 60_000, 10_000, None),
    "cifar10": ((32, 32, 3), 10, 50_000, 10_000, None),
    "cifar100": ((32, 32, 3), 100, 50_000, 10_000, None),
    "femnist": ((28, 28, 1), 62, 671_585, 77_483, 3_400),
    "rsna": ((224, 224, 3), 6, 3_000, 300, None),
}
# For files of a user's own: what the shipped config of this name is for, and what any other one is taken for.
_FILES, _ANY_FILE = {"rsna_fedul": "rsna"}, "mnist"


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
    if source == "npz":
        source = _FILES.get(name, _ANY_FILE)
    if source not in SHAPES:
        return load_experiment(config)
    return Experiment(configs.resolve(config), stand_in(source))


def stand_in(name: str) -> data.Dataset:
    """Random images of a dataset's shape, writers with equally many.

    Args:
        name: a key of `SHAPES`. "rsna" has 3,000 slices instead of the paper's 66,000.
    """
    shape, classes, train, test, writers = SHAPES[name]
    generator = np.random.default_rng(0)
    superclasses = name == "cifar100"

    def split(count: int) -> data.Split:
        labels = np.arange(count) % classes
        return data.Split(
            generator.integers(0, 256, (count, *shape), np.uint8),
            labels,
            None if writers is None else generator.permutation(count) % writers,
            np.array(CIFAR100_SUPERCLASS_OF)[labels] if superclasses else None,
        )

    return data.Dataset(
        name,
        split(train),
        split(test),
        tuple(str(label) for label in range(classes)),
        coarse_names=CIFAR100_SUPERCLASSES if superclasses else None,
        correspondence=correspondence("superclass", classes).matrix if superclasses else None,
    )
