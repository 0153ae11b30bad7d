"""Federated optimizers by name, from the settings that a config has for them."""

from typing import NamedTuple

import optax
from jaxtyping import Array

from fedjax_ssl.checks import check_numbers
from fedjax_ssl.federated.fednova import fednova
from fedjax_ssl.federated.optimizers import FederatedOptimizer, fedavg, fedopt, fedprox
from fedjax_ssl.federated.scaffold import scaffold
from fedjax_ssl.registry import Registry

# FedOpt's settings (Reddi et al., ICLR 2021): beta1, beta2, tau.
_MOMENTS = {"b1": 0.9, "b2": 0.99, "eps": 1e-3}


class LocalTraining(NamedTuple):
    """The clients' optimizer, as far as a federated one has to know it; numbers may be traced."""

    name: str
    learning_rate: float | Array
    momentum: float | Array
    nesterov: bool
    clip_norm: float | Array | None


def _fedavg(local: LocalTraining) -> FederatedOptimizer:
    """FedAvg: the mean of the clients' models."""
    return fedavg()


def _fedprox(local: LocalTraining, mu: float = 0.01) -> FederatedOptimizer:
    """FedProx: local training is drawn to the global model with strength mu."""
    return fedprox(mu)


def _scaffold(local: LocalTraining, server_learning_rate: float | Array = 1.0) -> FederatedOptimizer:
    """SCAFFOLD: control variates against the drift of clients; plain SGD only."""
    plain = isinstance(local.momentum, (int, float)) and local.momentum == 0 and local.clip_norm is None
    if local.name != "sgd" or not plain:
        raise ValueError(
            "scaffold's control variates are mean gradients of plain SGD, but config.optimizer has "
            f"name={local.name!r}, momentum={local.momentum}, clip_norm={local.clip_norm}; use name='sgd', "
            "momentum=0.0 and clip_norm=None, or another federated optimizer"
        )
    return scaffold(server_learning_rate)


def _fednova(local: LocalTraining, mu: float | Array = 0.0) -> FederatedOptimizer:
    """FedNova: clients' changes are normalized by their numbers of local steps."""
    shrinkage = mu * local.learning_rate
    if isinstance(shrinkage, float) and shrinkage >= 1:
        raise ValueError(
            f"mu is {mu} and config.optimizer.learning_rate {local.learning_rate}; with fednova their product must be "
            "below 1"
        )
    return fednova(local.momentum, mu, nesterov=local.nesterov, adaptive=local.name != "sgd")


def _fedavgm(
    local: LocalTraining, server_learning_rate: float | Array = 1.0, server_momentum: float | Array = 0.5
) -> FederatedOptimizer:
    """FedAvgM: momentum at the server."""
    check_numbers("[0, 1)", server_momentum=server_momentum)
    return fedopt(optax.sgd(server_learning_rate, server_momentum))


def _fedadam(local: LocalTraining, server_learning_rate: float | Array = 0.01) -> FederatedOptimizer:
    """FedAdam: the clients' mean change is a gradient for Adam at the server."""
    return fedopt(optax.adam(server_learning_rate, **_MOMENTS))


def _fedyogi(local: LocalTraining, server_learning_rate: float | Array = 0.01) -> FederatedOptimizer:
    """FedYogi: likewise for Yogi."""
    return fedopt(optax.yogi(server_learning_rate, **_MOMENTS))


FEDERATED_OPTIMIZERS: Registry[FederatedOptimizer] = Registry(
    "federated optimizer",
    {
        "fedavg": _fedavg,
        "fedprox": _fedprox,
        "scaffold": _scaffold,
        "fednova": _fednova,
        "fedavgm": _fedavgm,
        "fedadam": _fedadam,
        "fedyogi": _fedyogi,
    },
    leading=1,
)
