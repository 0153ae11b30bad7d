"""Settings that several methods recommend for small images.

A method's file has a table `RECOMMENDED`: recipe -> place of the labels, a name of
`config.supervision.name`, the usual place first -> fields of a config.
`fedjax_ssl.methods.recommended` finds it; the configs `digits_METHOD` and `fedjax_ssl.presets` use
it. It has no settings that depend on the data.
"""

from typing import Any

Fields = dict[str, Any]
Recommended = dict[str, dict[str, Fields]]

AT_CLIENTS: Fields = {
    "rounds": 80,
    "optimizer.learning_rate": 0.3,
    "optimizer.local_epochs": 5,
}
# SemiFL's code, for clients and for the server's average; learning rate and epochs are apart.
SEMIFL_OPTIMIZERS: Fields = {
    "optimizer.schedule": "cosine",
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": True,
    "optimizer.weight_decay": 5e-4,
    "optimizer.clip_norm": 1.0,
    "federated.name": "fedavgm",
}
# Learning rate and server epochs are larger than in SemiFL's code, because there are fewer
# examples.
AT_SERVER: Fields = {
    **SEMIFL_OPTIMIZERS,
    "rounds": 30,
    "method.server_epochs": 10,
    "optimizer.learning_rate": 0.1,
    "optimizer.local_epochs": 2,
}
IN_SETS: Fields = {
    "rounds": 60,
    "optimizer.name": "adam",
    "optimizer.learning_rate": 0.003,
    "optimizer.batch_size": 32,
    "optimizer.local_epochs": 2,
}
MIXED: Fields = {
    "rounds": 80,
    "optimizer.learning_rate": 0.3,
    "optimizer.local_epochs": 5,
    "optimizer.batch_size": 32,
}
# Kinds of labels by place, see `FederatedData.kinds`; other places have class labels at clients.
_KINDS = {
    "none": frozenset[str](),
    "server": frozenset({"server"}),
    "coarse": frozenset({"coarse", "server"}),
    "sets": frozenset({"sets"}),
    "mixed": frozenset({"labels", "coarse", "sets"}),
}
# Places where labels can be, for methods that name none, with the fields recommended there.
PLACES: dict[str, Fields] = {
    "per_client": AT_CLIENTS,
    "server": AT_SERVER,
    "coarse": AT_SERVER,
    "sets": IN_SETS,
    "mixed": MIXED,
}


def kinds_at(place: str) -> frozenset[str]:
    """Return the kinds of labels in a federation, by the place of its labels."""
    return _KINDS.get(place, frozenset({"labels"}))
