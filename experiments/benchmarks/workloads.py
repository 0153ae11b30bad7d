"""Workloads: federations of fixed shape, filled with fake images in memory, trained by ordinary
configs.

Speed does not depend on what the images show. They show their class, so that losses stay finite and
fall.
"""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import ml_collections
import numpy as np
from jaxtyping import Int

from fedjax_ssl import config as configs
from fedjax_ssl import data

# Images that are drawn at once: the largest federation has half a gigabyte of them.
_IMAGES_AT_ONCE = 20_000


@dataclasses.dataclass(frozen=True)
class Workload:
    """A federation and one way to train on it."""

    title: str  # one line
    settings: Mapping[str, Any]  # dotted fields of the config that differ from its defaults
    cohort_size: int  # clients per round
    mean_size: int  # examples per client, on average
    num_clients: int  # C
    num_classes: int = 10  # K
    input_shape: tuple[int, int, int] = (28, 28, 1)  # height, width and channels of an image
    rounds: int = 1  # in one compiled call, which is what is timed
    rounds_before: int = 0  # at least this many run before those that are measured
    sigma: float = 0.0  # standard deviation of the logarithm of the sizes; 0: all clients are equal
    method: str = "fedavg"
    variant: str = ""  # shown beside the workload; "" where there is only one way to run it
    seeds: int = 1  # runs in one program
    vectorized: bool = False
    # ^ seeds by `jax.vmap` on every backend, instead of by `fedjax_ssl.train.over_seeds`
    note: str = ""  # remarks for readers of the numbers

    def scaled(self, scale: float) -> "Workload":
        """Return the same workload with `scale` times as many clients, clients per round and
        rounds, at least one of each.
        """
        cohort_size = max(1, round(scale * self.cohort_size))
        return dataclasses.replace(
            self,
            num_clients=max(cohort_size, round(scale * self.num_clients)),
            cohort_size=cohort_size,
            rounds=max(1, round(scale * self.rounds)),
        )

    def sizes(self) -> Int[np.ndarray, " C"]:
        """Examples of every client, at least one."""
        normal = np.random.default_rng(0).normal(size=self.num_clients)
        factor = np.exp(self.sigma * normal)
        return np.maximum(np.rint(self.mean_size * factor / factor.mean()), 1).astype(np.int64)

    def config(
        self, settings: Mapping[str, Any] = types.MappingProxyType({})
    ) -> ml_collections.ConfigDict:
        """Return the config, resolved. Args: dotted fields that differ, where the workload leaves
        them open.
        """
        config = configs.default(self.method)
        rounds = {
            "rounds": self.rounds + self.rounds_before,
            "federated.cohort_size": self.cohort_size,
        }
        config.update_from_flattened_dict({**rounds, **settings, **self.settings})
        return configs.resolve(config)

    def dataset(self) -> data.Dataset:
        """Images of uint8 that are half the image of their class and half noise, the same in
        every call.
        """
        sizes = self.sizes()
        generator = np.random.default_rng(0)
        labels = generator.integers(0, self.num_classes, sizes.sum()).astype(np.int32)
        halves = generator.integers(0, 128, (self.num_classes, *self.input_shape), np.uint8)
        images = np.empty((len(labels), *self.input_shape), np.uint8)
        for start in range(0, len(labels), _IMAGES_AT_ONCE):
            part = slice(start, start + _IMAGES_AT_ONCE)
            images[part] = generator.integers(0, 128, images[part].shape, np.uint8)
            images[part] += halves[labels[part]]
        return data.Dataset(
            name="fake",
            train=data.Split(images, labels, np.repeat(np.arange(len(sizes)), sizes)),
            test=None,
            class_names=tuple(str(label) for label in range(self.num_classes)),
        )


_CIFAR = (32, 32, 3)


def _sgd(model: str, batch_size: int, learning_rate: float, **more: Any) -> dict[str, Any]:
    return {
        "model.name": model,
        "optimizer.batch_size": batch_size,
        "optimizer.learning_rate": learning_rate,
        **{field.replace("__", "."): value for field, value in more.items()},
    }


def _ways(workload: Workload, **changes: Mapping[str, Any]) -> tuple[Workload, ...]:
    """Return a workload in several ways: the name of each, and the fields that differ."""
    return tuple(
        dataclasses.replace(workload, variant=name, **fields) for name, fields in changes.items()
    )


_W2 = Workload(
    title="softmax regression, MNIST shape, 1,000 clients x 60 examples, 10 per round",
    num_clients=1000,
    cohort_size=10,
    mean_size=60,
    settings=_sgd("linear", 10, 0.03),
    rounds=100,
)
_W7 = Workload(
    title=(
        "XCLP with CNN-13 (450 images per client) and ProtoFSSL with ResNet8 (540), CIFAR-10 "
        "shape, 100 clients with 50 labels each, 5 per round"
    ),
    input_shape=_CIFAR,
    num_clients=100,
    cohort_size=5,
    mean_size=450,
    settings=_sgd(
        "cnn13",
        50,
        0.3,
        optimizer__weight_decay=2e-4,
        augment__name="crop_flip",
        supervision__name="per_client",
        supervision__labels=50,
        method__graph_augment=True,
    ),
    method="xclp",
    note=(
        "XCLP: one round of stage 2 with one local epoch (the paper's have five), embeddings and "
        "graph count in the time but not in the operations; ProtoFSSL: the second round, since "
        "the first has no pseudo-labels, ten episodes of 30 labelled and 100 unlabelled images "
        "as in the paper; prototypes and the diagnosis of pseudo-labels count in the time but "
        "not in the operations"
    ),
)
_PROTOFSSL = {
    "model.name": "resnet8",
    "supervision.name": "per_class",
    "supervision.labels": 5,
    "optimizer.name": "rmsprop",
    "optimizer.learning_rate": 1e-3,
    "optimizer.local_epochs": 10,
}
_W8 = dataclasses.replace(
    _W2,
    title="W2 with several seeds in one program",
    rounds=20,
    note=(
        "seeds by over_seeds: in turn on a CPU, vectorized elsewhere; vmap: vectorized "
        "everywhere; rounds and client updates are those of all seeds"
    ),
)
_W9 = Workload(
    title="CNN, MNIST shape, 48 clients of log-normal sizes (mean 60, sigma 1), all in every round",
    num_clients=48,
    cohort_size=48,
    mean_size=60,
    sigma=1.0,
    settings=_sgd("cnn", 10, 0.03),
    note=(
        "vmap pads every client to the largest one, chunked to the largest of its chunk; chunked "
        "and lanes run 8 at once where the device's memory is not known, as on a CPU"
    ),
)

# Workloads by name, each in the ways that it is run.
WORKLOADS: dict[str, tuple[Workload, ...]] = {
    "W1": (
        Workload(
            title="CNN, CIFAR-10 shape, 1,000 clients x 50 images, 50 per round",
            input_shape=_CIFAR,
            num_clients=1000,
            cohort_size=50,
            mean_size=50,
            settings=_sgd("cnn", 10, 0.03),
        ),
    ),
    "W2": (_W2,),
    "W3": (
        Workload(
            title=(
                "CNN, FEMNIST shape, 3,400 clients of log-normal sizes (mean 197, sigma 0.4), 10 "
                "per round"
            ),
            num_classes=62,
            num_clients=3400,
            cohort_size=10,
            mean_size=197,
            sigma=0.4,
            settings=_sgd("cnn", 20, 0.1),
            rounds=2,
        ),
    ),
    "W5": (
        Workload(
            title="fedjax's EMNIST CNN with dropout, 10 clients x 200 examples, all in every round",
            num_classes=62,
            num_clients=10,
            cohort_size=10,
            mean_size=200,
            settings=_sgd("cnn", 20, 0.1),
            rounds=2,
        ),
    ),
    "W7": _ways(
        _W7,
        XCLP={},
        ProtoFSSL={
            "method": "protofssl",
            "mean_size": 540,
            "rounds_before": 1,
            "settings": _PROTOFSSL,
        },
    ),
    "W8": _ways(
        _W8,
        **{"1 seed": {}, "8 seeds": {"seeds": 8}, "64 seeds": {"seeds": 64}},
        **{"64 seeds, vmap": {"seeds": 64, "vectorized": True}},
    ),
    "W9": _ways(
        _W9,
        **{
            placement: {"settings": {**_W9.settings, "federated.placement": placement}}
            for placement in ("vmap", "chunked", "lanes", "sequential")
        },
    ),
}
