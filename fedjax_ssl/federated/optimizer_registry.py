"""Federated optimizers by name, built from the settings of a config."""

import ast
from functools import partial
from typing import Annotated

import optax
from jaxtyping import Array

from fedjax_ssl.checks import In
from fedjax_ssl.federated.grouped import grouped
from fedjax_ssl.federated.local_optimizer import BY_LAYER, at_rate, local_optimizer
from fedjax_ssl.federated.optimizers import (
    FederatedOptimizer,
    adaptive,
    fedavg,
    fedopt,
    fedprox,
    local,
    scaffold,
)
from fedjax_ssl.registry import Registry, contributed


def _fedavgm(
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 1.0,
    server_momentum: Annotated[float | Array, In("[0, 1)")] = 0.5,
) -> FederatedOptimizer:
    """Momentum at the server.

    Args:
        server_learning_rate: length of the server's step along the mean change.
        server_momentum: momentum of these steps.
    """
    return fedopt(optax.sgd(server_learning_rate, server_momentum))


def _moments(
    rule: str,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 0.01,
    beta1: Annotated[float | Array, In("[0, 1)")] = 0.9,
    beta2: Annotated[float | Array, In("[0, 1)")] = 0.99,
    tau: Annotated[float | Array, In("(0, inf)")] = 1e-3,
    bias_correction: bool = True,
) -> FederatedOptimizer:
    """Adam or Yogi at the server; defaults are the settings of Reddi et al., ICLR 2021.

    Args:
        rule: "adam" or "yogi".
        server_learning_rate: length of the server's steps.
        beta1: share of the mean change that is kept from round to round.
        beta2: share of the mean square that is kept.
        tau: added to the root of the mean square; the smaller, the more adaptive.
        bias_correction: divide both means by 1 - beta^t; False: as in the paper's algorithm 2 and
            in FLamby, where both start at 0.
    """
    if not bias_correction:
        return fedopt(adaptive(rule, server_learning_rate, beta1, beta2, tau))
    server = {"adam": optax.adam, "yogi": optax.yogi}[rule]
    return fedopt(server(server_learning_rate, b1=beta1, b2=beta2, eps=tau))


def _fedadagrad(
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 0.1,
    beta1: Annotated[float | Array, In("[0, 1)")] = 0.0,
    tau: Annotated[float | Array, In("(0, inf)")] = 1e-3,
) -> FederatedOptimizer:
    """Adagrad at the server.

    Args:
        server_learning_rate: length of the server's steps.
        beta1: share of the mean change that is kept from round to round; 0 in the paper, 0.9 in
            FLamby.
        tau: added to the root of the sum of squares; the smaller, the more adaptive.
    """
    return fedopt(adaptive("adagrad", server_learning_rate, beta1, 0.0, tau))


def _fedopt(
    optimizer: str,
    server_learning_rate: Annotated[float | Array, In("[0, inf)")] = 0.01,
    arguments: str = "",
) -> FederatedOptimizer:
    """Any optimizer at the server.

    Args:
        optimizer: a name of `config.optimizer.name`, or a function of your own; not one that needs
            whole layers.
        server_learning_rate: its learning rate.
        arguments: its own options, for example "b1=0.8,weight_decay=0.01".
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
    if optimizer.rpartition(":")[2] in BY_LAYER:
        raise ValueError(
            f"optimizer {optimizer!r} looks at layers, which lie in few arrays at the server; use "
            "another"
        )
    return fedopt(at_rate(local_optimizer(optimizer, **given), server_learning_rate))


FEDERATED_OPTIMIZERS: Registry[FederatedOptimizer] = Registry(
    "federated optimizer",
    {
        "fedavg": (fedavg, "the mean of the clients' models"),
        "local": (
            local,
            "no federation: every client trains alone, scores are means over clients",
        ),
        "fedprox": (fedprox, "local training is drawn to the global model, by mu"),
        "scaffold": (
            scaffold,
            "control variates against the drift of clients; SGD without momentum or clipping",
        ),
        "fedavgm": (_fedavgm, "the clients' mean change goes through momentum at the server"),
        "fedadam": (partial(_moments, "adam"), "... through Adam"),
        "fedyogi": (partial(_moments, "yogi"), "... through Yogi"),
        "fedadagrad": (_fedadagrad, "... through Adagrad"),
        "fedopt": (_fedopt, "... through any optimizer, by optimizer=NAME"),
        "grouped": (
            grouped,
            "groups of clients, each with a model of its own and a replica of the server (FedRGD)",
        ),
        **contributed("federated optimizer"),
    },
    given=("local", "facts"),
    makes=FederatedOptimizer,
)
