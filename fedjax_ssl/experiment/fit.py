"""Whether a method and a federation fit: labels to learn from, weights of clients."""

import warnings

import numpy as np

from fedjax_ssl import methods
from fedjax_ssl.config import ConfigError, ConfigNote, naming
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Method

KINDS = {
    "labels": "class labels at clients",
    "server": "class labels at the server",
    "coarse": "coarse labels",
    "sets": "sets with known class shares",
}


def check_labels(supervision: str, name: str, method: Method, federation: FederatedData) -> None:
    """Refuses a federation without what the method learns from; warns of what its labels leave open.

    Args:
        supervision: `config.supervision.name`, for the message.
        name: `config.method.name`, likewise.
        method: of the run.
        federation: its labels; not traced.

    Raises:
        ConfigError: there is none of the kinds of labels that the method needs, or not all where it needs all.
    """
    there, needs = federation.kinds(), method.needs
    if not (set(needs) <= set(there) if method.needs_all else set(there) & set(needs)):
        words = (" and " if method.needs_all else " or ").join(KINDS[kind] for kind in needs)
        raise ConfigError(
            f"method {name!r} learns from {words}; with config.supervision.name={supervision!r} this federation has "
            f"{' and '.join(KINDS[kind] for kind in there) or 'no label of any kind'}. The configs digits, glyphs, "
            f"mnist, cifar10 and npz put labels where a method wants them, for example digits:{name}"
        )
    with naming("supervision"):
        notes = methods.check_channels(federation) if {"coarse", "sets"} & set(needs) else []
        notes += [] if method.check is None else method.check(federation)
    for note in notes:
        warnings.warn(note, ConfigNote, stacklevel=2)


def note_missing_labels(supervision: str, labels: int | None, federation: FederatedData) -> None:
    """Warns where clients have fewer labelled examples of a class than were asked for.

    Args:
        supervision: `config.supervision.name`; anything but "per_class" asks for no number of each class.
        labels: `config.supervision.labels`.
        federation: its labels; not traced.
    """
    if supervision != "per_class" or labels is None:
        return
    observed = np.asarray(federation.observed_by_clients)
    counts = np.stack([(observed == k).sum(axis=1) for k in range(federation.num_classes)])
    asked = counts[:, np.asarray(federation.num_labelled) > 0]
    if (asked < labels).any():
        warnings.warn(
            f"config.supervision.labels asks for {labels} labelled examples of every class, but clients with labels "
            f"have fewer of {(asked < labels).sum()} of {asked.size} classes, {(asked == 0).sum()} of them without any",
            ConfigNote,
            stacklevel=2,
        )


def check_weighting(weighting: str, method: Method, federation: FederatedData) -> None:
    """Refuses weights of 0 for clients that train.

    Args:
        weighting: `config.federated.weighting`.
        method: of the run.
        federation: its clients; not traced.

    Raises:
        ConfigError: clients are weighted by their class labels, and some that the method trains have none.
    """
    if weighting != "labelled" or not method.trains_unlabelled:
        return
    without = (np.asarray(federation.num_examples) > 0) & (np.asarray(federation.num_labelled) == 0)
    if without.any():
        raise ConfigError(
            f"config.federated.weighting is 'labelled', but {without.sum()} of {federation.num_clients} clients have "
            "no class labels: this method trains them, and with weight 0 nothing of it would count. Use 'uniform' or "
            "'examples'"
        )
