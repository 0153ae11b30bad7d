"""What a client computes and sends in a round, by the formulas of ProtoFSSL's Table 1.

Operations are additions and multiplications of forward passes alone; a pass goes over all examples
of a client once. With the paper's networks and client these are the figures of its Table 2.

Source: Kim et al., Federated semi-supervised learning with prototypical networks, arXiv 2205.13921,
Tables 1 and 2.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_ssl import models
from fedjax_ssl.federated.traffic import BYTES_PER_NUMBER
from fedjax_ssl.methods.protofssl import GIGA, MEGA, analytic_cost
from fedjax_ssl.runs.devices import forward_operations

# examples of a client of the paper
_LABELLED = 50
_UNLABELLED = 490


class Work(NamedTuple):
    """What the formulas count with."""

    labelled: float  # examples |D^L|
    unlabelled: float  # examples |D^U|
    operations: float  # F, of one example
    model_bytes: float  # Theta
    passes: int = 1  # E, over all examples


class Cost(NamedTuple):
    """Of one client in one round."""

    operations: float
    bytes: float  # down and up together

    @property
    def rounded(self) -> tuple[float, float]:
        """10^9 operations and 10^6 bytes, to one decimal."""
        return round(self.operations / GIGA, 1), round(self.bytes / MEGA, 1)


def client_with(network: Mapping[str, Any], num_classes: int, shape: Sequence[int]) -> Work:
    """Give the work of a client of the paper with a network.

    Args:
        network: name and options, as a config has them.
        num_classes: of its scores.
        shape: of an example.
    """
    options = {field: value for field, value in network.items() if value is not None}
    model = models.build(
        options.pop("name"), num_classes=num_classes, input_shape=tuple(shape), **options
    )
    params = jax.eval_shape(model.init, jax.random.key(0))[0]
    size = BYTES_PER_NUMBER * models.count_parameters(params)
    return Work(
        _LABELLED, _UNLABELLED, forward_operations(network, num_classes, shape), float(size)
    )


def mixmatch_cost(work: Work, augmentations: int = 2) -> Cost:
    """Count F (|D^L| + A |D^U|) E and 2 Theta: FedAvg with MixMatch, which looks at A views."""
    forwards = (work.labelled + augmentations * work.unlabelled) * work.passes
    return Cost(work.operations * forwards, 2 * work.model_bytes)


def fixmatch_cost(work: Work) -> Cost:
    """Count F (|D^L| + 2 |D^U|) E and 2 Theta: FedAvg with FixMatch, and FedRGD."""
    return mixmatch_cost(work)


def fedmatch_cost(work: Work, num_helpers: int = 2, helper_interval: int = 10) -> Cost:
    """Count F (|D^L| + (2 + H) |D^U|) E and (4 + 2 H / R_H) Theta: FedMatch, which sends H networks
    in every R_H-th round.
    """
    forwards = (work.labelled + (2 + num_helpers) * work.unlabelled) * work.passes
    networks = 4 + 2 * num_helpers / helper_interval
    return Cost(work.operations * forwards, networks * work.model_bytes)


def protofssl_cost(work: Work, num_helpers: int, num_classes: int, num_features: int) -> Cost:
    """Count as `fedjax_ssl.methods.protofssl.analytic_cost`: ProtoFSSL, with H prototype sets."""
    operations, size = analytic_cost(
        work.labelled,
        work.unlabelled,
        work.operations,
        work.model_bytes,
        num_helpers,
        num_classes,
        num_features,
        work.passes,
    )
    return Cost(float(operations), float(size))


OTHERS = {"mixmatch": mixmatch_cost, "fixmatch": fixmatch_cost, "fedmatch": fedmatch_cost}
