"""Workloads: federations of fixed shape, filled with fake images in memory, trained by ordinary configs.

Speed does not depend on what the images show. They show their class, so that losses stay finite and fall.
"""

import dataclasses
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
class Variant:
    """One way to run a workload."""

    name: str = ""  # shown beside the workload; "" where there is only one way
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # dotted fields of the config that differ
    seeds: int = 1  # runs in one program
    vectorized: bool = False  # seeds by `jax.vmap` on every backend, instead of by `fedjax_ssl.train.over_seeds`
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # other fields of the workload, as "method"


@dataclasses.dataclass(frozen=True)
class Workload:
    """A federation and what is trained on it."""

    title: str  # one line
    input_shape: tuple[int, int, int]  # height, width and channels of an image
    num_classes: int  # K
    num_clients: int  # C
    cohort_size: int  # clients per round
    mean_size: int  # examples per client, on average
    settings: Mapping[str, Any]  # dotted fields of the config that differ from its defaults
    rounds: int  # in one compiled call, which is what is timed
    rounds_before: int = 0  # at least this many run before those that are measured
    sigma: float = 0.0  # standard deviation of the logarithm of the sizes; 0: all clients are equal
    method: str = "fedavg"
    variants: tuple[Variant, ...] = (Variant(),)  # ways to run it
    note: str = ""  # remarks for readers of the numbers

    def scaled(self, scale: float) -> "Workload":
        """The same workload with `scale` times as many clients, clients per round and rounds, at least one of each."""
        cohort_size = max(1, round(scale * self.cohort_size))
        return dataclasses.replace(
            self,
            num_clients=max(cohort_size, round(scale * self.num_clients)),
            cohort_size=cohort_size,
            rounds=max(1, round(scale * self.rounds)),
        )

    def of(self, variant: Variant) -> "Workload":
        """The workload with the changes of a variant."""
        return dataclasses.replace(self, **variant.changes)

    def sizes(self) -> Int[np.ndarray, " C"]:
        """Examples of every client, at least one."""
        normal = np.random.default_rng(0).normal(size=self.num_clients)
        factor = np.exp(self.sigma * normal)
        return np.maximum(np.rint(self.mean_size * factor / factor.mean()), 1).astype(np.int64)

    def config(self, variant: Variant) -> ml_collections.ConfigDict:
        """The config of a variant, resolved."""
        config = configs.default(self.method)
        config.update_from_flattened_dict(
            {
                "rounds": self.rounds + self.rounds_before,
                "federated.cohort_size": self.cohort_size,
                **self.settings,
                **variant.settings,
            }
        )
        return configs.resolve(config)

    def dataset(self) -> data.Dataset:
        """Images of uint8 that are half the image of their class and half noise, the same in every call."""
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


_MNIST, _CIFAR = (28, 28, 1), (32, 32, 3)


def _sgd(model: str, batch_size: int, learning_rate: float, **more: Any) -> dict[str, Any]:
    return {
        "model.name": model,
        "optimizer.batch_size": batch_size,
        "optimizer.learning_rate": learning_rate,
        **{field.replace("__", "."): value for field, value in more.items()},
    }


_PROTOFSSL = {
    "method": "protofssl",
    "mean_size": 540,
    "rounds_before": 1,
    "settings": {
        "model.name": "resnet8",
        "supervision.name": "per_class",
        "supervision.labels": 5,
        "optimizer.name": "rmsprop",
        "optimizer.learning_rate": 1e-3,
        "optimizer.local_epochs": 10,
    },
}

_W2 = Workload(
    title="softmax regression, MNIST shape, 1,000 clients x 60 examples, 10 per round",
    input_shape=_MNIST,
    num_classes=10,
    num_clients=1000,
    cohort_size=10,
    mean_size=60,
    settings=_sgd("linear", 10, 0.03),
    rounds=100,
)

WORKLOADS: dict[str, Workload] = {
    "W1": Workload(
        title="CNN, CIFAR-10 shape, 1,000 clients x 50 images, 50 per round",
        input_shape=_CIFAR,
        num_classes=10,
        num_clients=1000,
        cohort_size=50,
        mean_size=50,
        settings=_sgd("cnn", 10, 0.03),
        rounds=1,
    ),
    "W2": _W2,
    "W3": Workload(
        title="CNN, FEMNIST shape, 3,400 clients of log-normal sizes (mean 197, sigma 0.4), 10 per round",
        input_shape=_MNIST,
        num_classes=62,
        num_clients=3400,
        cohort_size=10,
        mean_size=197,
        sigma=0.4,
        settings=_sgd("cnn", 20, 0.1),
        rounds=2,
    ),
    "W5": Workload(
        title="fedjax's EMNIST CNN with dropout, 10 clients x 200 examples, all in every round",
        input_shape=_MNIST,
        num_classes=62,
        num_clients=10,
        cohort_size=10,
        mean_size=200,
        settings=_sgd("cnn", 20, 0.1),
        rounds=2,
    ),
    "W7": Workload(
        title="XCLP with CNN-13 (450 images per client) and ProtoFSSL with ResNet8 (540), CIFAR-10 shape, 100 clients "
        "with 50 labels each, 5 per round",
        input_shape=_CIFAR,
        num_classes=10,
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
        rounds=1,
        method="xclp",
        variants=(Variant("XCLP"), Variant("ProtoFSSL", changes=_PROTOFSSL)),
        note="XCLP: one round of stage 2 with one local epoch (the paper's have five), embeddings and graph count in "
        "the time but not in the operations; ProtoFSSL: the second round, since the first has no pseudo-labels, ten "
        "episodes of 30 labelled and 100 unlabelled images as in the paper; prototypes and the diagnosis of "
        "pseudo-labels count in the time but not in the operations",
    ),
    "W8": dataclasses.replace(
        _W2,
        title="W2 with several seeds in one program",
        rounds=20,
        variants=(
            Variant("1 seed"),
            Variant("8 seeds", seeds=8),
            Variant("64 seeds", seeds=64),
            Variant("64 seeds, vmap", seeds=64, vectorized=True),
        ),
        note="seeds by over_seeds: in turn on a CPU, vectorized elsewhere; vmap: vectorized everywhere; rounds and "
        "client updates are those of all seeds",
    ),
    "W9": Workload(
        title="CNN, MNIST shape, 48 clients of log-normal sizes (mean 60, sigma 1), all in every round",
        input_shape=_MNIST,
        num_classes=10,
        num_clients=48,
        cohort_size=48,
        mean_size=60,
        sigma=1.0,
        settings=_sgd("cnn", 10, 0.03),
        rounds=1,
        variants=tuple(
            Variant(placement, {"federated.placement": placement})
            for placement in ("vmap", "chunked", "lanes", "sequential")
        ),
        note="vmap pads every client to the largest one, chunked to the largest of its chunk; chunked and lanes run "
        "8 at once where the device's memory is not known, as on a CPU",
    ),
}


def prepared(
    name: str, variant_name: str, scale: float = 1.0, placement: str | None = None, devices: int = 1
) -> tuple[Workload, Variant]:
    """A workload with the changes of one of its variants, and that variant.

    Args:
        name: a key of `WORKLOADS`.
        variant_name: the name of one of its variants.
        scale: see `Workload.scaled`.
        placement: where the variant does not fix it.
        devices: number of devices that share each cohort.
    """
    variant = next(variant for variant in WORKLOADS[name].variants if variant.name == variant_name)
    workload = WORKLOADS[name].of(variant).scaled(scale)
    chosen: dict[str, Any] = {"federated.devices": devices}
    if placement:
        chosen["federated.placement"] = placement
    return workload, dataclasses.replace(variant, settings={**chosen, **variant.settings})
