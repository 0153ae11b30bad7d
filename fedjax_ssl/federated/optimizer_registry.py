"""Federated optimizers by name, from the settings that a config has for them."""

import ast
from functools import partial
from typing import Annotated, NamedTuple

import optax
from jaxtyping import Array

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.federated.grouped import check_sizes, default_sizes, equal_sizes, grouped
from fedjax_ssl.federated.local_optimizer import BY_LAYER, at_rate, local_optimizer
from fedjax_ssl.federated.optimizers import (
    FederatedOptimizer,
    adaptive,
    fedavg,
    fednova,
    fedopt,
    fedprox,
    local,
    scaffold,
)
from fedjax_ssl.registry import Registry


class LocalSettings(NamedTuple):
    """The clients' optimizer, as far as a federated one has to know it; numbers may be traced."""

    name: str
    learning_rate: float | Array
    momentum: float | Array
    nesterov: bool
    clip_norm: float | Array | None


def _fedprox(
    settings: LocalSettings, mu: Annotated[float | Array, In("[0, inf)")] = 0.01
) -> FederatedOptimizer:
    """FedProx.

    Args:
        settings: settings of the clients.
        mu: pull towards the global model.
    """
    return fedprox(mu)


def _scaffold(
    settings: LocalSettings,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 1.0,
    weighted_variates: bool = False,
) -> FederatedOptimizer:
    """SCAFFOLD.

    Args:
        settings: settings of the clients.
        server_learning_rate: length of the server's step along the mean change.
        weighted_variates: the mean of the variates has the weights of the models', as in FLamby;
            otherwise, as in the paper, all clients count alike.
    """
    plain = (
        isinstance(settings.momentum, (int, float))
        and settings.momentum == 0
        and settings.clip_norm is None
    )
    if settings.name != "sgd" or not plain:
        raise ValueError(
            "scaffold's control variates are mean gradients of plain SGD, but config.optimizer "
            f"has name={settings.name!r}, momentum={settings.momentum}, "
            f"clip_norm={settings.clip_norm}; use name='sgd', momentum=0.0 and clip_norm=None, or "
            "another federated optimizer"
        )
    return scaffold(server_learning_rate, weighted_variates)


def _fednova(
    settings: LocalSettings, mu: Annotated[float | Array, In("[0, inf)")] = 0.0
) -> FederatedOptimizer:
    """FedNova.

    Args:
        settings: settings of the clients.
        mu: pull towards the global model.
    """
    shrinkage = mu * settings.learning_rate
    if isinstance(shrinkage, float) and shrinkage >= 1:
        raise ValueError(
            f"mu is {mu} and config.optimizer.learning_rate {settings.learning_rate}; with "
            "fednova their product must be below 1"
        )
    return fednova(
        settings.momentum, mu, nesterov=settings.nesterov, adaptive=settings.name != "sgd"
    )


def _fedavgm(
    settings: LocalSettings,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 1.0,
    server_momentum: Annotated[float | Array, In("[0, 1)")] = 0.5,
) -> FederatedOptimizer:
    """Momentum at the server.

    Args:
        settings: settings of the clients.
        server_learning_rate: length of the server's step along the mean change.
        server_momentum: momentum of these steps.
    """
    return fedopt(optax.sgd(server_learning_rate, server_momentum))


def _moments(
    rule: str,
    settings: LocalSettings,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 0.01,
    beta1: Annotated[float | Array, In("[0, 1)")] = 0.9,
    beta2: Annotated[float | Array, In("[0, 1)")] = 0.99,
    tau: Annotated[float | Array, In("(0, inf)")] = 1e-3,
    bias_correction: bool = True,
) -> FederatedOptimizer:
    """Adam or Yogi at the server; defaults are the settings of Reddi et al., ICLR 2021.

    Args:
        rule: "adam" or "yogi".
        settings: settings of the clients.
        server_learning_rate: length of the server's steps.
        beta1: share of the mean change that is kept from round to round.
        beta2: share of the mean square that is kept.
        tau: added to the root of the mean square; the smaller, the more adaptive.
        bias_correction: divide both means by what of their start has faded; False: as in the
            paper's algorithm 2 and in FLamby, where both start at 0.
    """
    if not bias_correction:
        return fedopt(adaptive(rule, server_learning_rate, beta1, beta2, tau))
    server = {"adam": optax.adam, "yogi": optax.yogi}[rule]
    return fedopt(server(server_learning_rate, b1=beta1, b2=beta2, eps=tau))


def _fedadagrad(
    settings: LocalSettings,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 0.1,
    beta1: Annotated[float | Array, In("[0, 1)")] = 0.0,
    tau: Annotated[float | Array, In("(0, inf)")] = 1e-3,
) -> FederatedOptimizer:
    """Adagrad at the server.

    Args:
        settings: settings of the clients.
        server_learning_rate: length of the server's steps.
        beta1: share of the mean change that is kept from round to round; 0 in the paper, 0.9 in
            FLamby.
        tau: added to the root of the sum of squares; the smaller, the more adaptive.
    """
    return fedopt(adaptive("adagrad", server_learning_rate, beta1, 0.0, tau))


def _fedopt(
    settings: LocalSettings,
    optimizer: str,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 0.01,
    arguments: str = "",
) -> FederatedOptimizer:
    """Any optimizer at the server.

    Args:
        settings: settings of the clients.
        optimizer: one of `config.optimizer.name`, a function of your own too; not one that looks at
            layers.
        server_learning_rate: its learning rate.
        arguments: its own ones, for example "b1=0.8,weight_decay=0.01".
    """
    given = {}
    for one in filter(None, arguments.split(",")):
        name, _, text = one.partition("=")
        try:
            given[name.strip()] = ast.literal_eval(text.strip())
        except (SyntaxError, ValueError) as error:
            raise ValueError(
                f"arguments is {arguments!r}; give NAME=NUMBER with commas between"
            ) from error
    if optimizer in BY_LAYER:
        raise ValueError(
            f"optimizer {optimizer!r} looks at layers, which lie in few arrays at the server; use "
            "another"
        )
    return fedopt(at_rate(local_optimizer(optimizer, **given), server_learning_rate))


def _grouped(
    settings: LocalSettings,
    groups: Annotated[int | None, Whole(1)] = None,
    group_sizes: Annotated[tuple[int, ...] | None, Whole(1)] = None,
    broadcast_global: bool = False,
    replica_same_batches: bool = False,
    cohort_size: int | None = None,
) -> FederatedOptimizer:
    """FedRGD's, see `fedjax_ssl.federated.grouped`.

    Args:
        settings: settings of the clients.
        groups: how many, of about equal size; by default of about ten clients each, at least two.
        group_sizes: clients of each group, in place of `groups`.
        broadcast_global: everybody starts from the global model.
        replica_same_batches: the groups' replicas of the server see the same batches.
        cohort_size: clients per round, once it is known.
    """
    if groups is not None and group_sizes is not None:
        raise ValueError(
            f"groups={groups} and group_sizes={tuple(group_sizes)} are both given; give one of them"
        )
    if group_sizes is not None:
        sizes = tuple(group_sizes)
        if cohort_size is not None:
            check_sizes(sizes, cohort_size)
    elif cohort_size is None:  # only checked so far
        sizes = (1,) * (2 if groups is None else groups)
    else:
        sizes = default_sizes(cohort_size) if groups is None else equal_sizes(cohort_size, groups)
    return grouped(sizes, broadcast_global, replica_same_batches)


FEDERATED_OPTIMIZERS: Registry[FederatedOptimizer] = Registry(
    "federated optimizer",
    {
        "fedavg": (lambda settings: fedavg(), "the mean of the clients' models"),
        "local": (
            lambda settings: local(),
            "no federation: every client trains alone, scores are means over clients",
        ),
        "fedprox": (_fedprox, "local training is drawn to the global model, by mu"),
        "scaffold": (
            _scaffold,
            "control variates against the drift of clients; SGD without momentum or clipping",
        ),
        "fednova": (_fednova, "clients' changes are normalized by their numbers of local steps"),
        "fedavgm": (_fedavgm, "the clients' mean change goes through momentum at the server"),
        "fedadam": (partial(_moments, "adam"), "... through Adam"),
        "fedyogi": (partial(_moments, "yogi"), "... through Yogi"),
        "fedadagrad": (_fedadagrad, "... through Adagrad"),
        "fedopt": (_fedopt, "... through any optimizer, by optimizer=NAME"),
        "grouped": (
            _grouped,
            "groups of clients, each with a model of its own and a replica of the server (FedRGD)",
        ),
    },
    leading=1,
    given=("cohort_size",),
    makes=FederatedOptimizer,
)
