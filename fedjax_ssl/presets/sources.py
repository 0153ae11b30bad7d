"""Bases of the configs `digits`, `glyphs`, `mnist`, ...: one dataset, and any method that fits it.

All methods get the same clients, labels, network and cohort. A method's own settings, optimizers
and second head are recommended next to its recipe, see `fedjax_ssl.methods.recommended`.
"""

from typing import NamedTuple

import ml_collections

from fedjax_ssl.config import ConfigError, default, naming
from fedjax_ssl.data import OWN
from fedjax_ssl.errors import check_known
from fedjax_ssl.methods import fits, recommended
from fedjax_ssl.presets.digits_configs import digits_by_writer, recommend

# Rounds of a first stage, which keeps its share of a run.
_STAGES = ("warmup_rounds", "coarse_rounds")
# Places of labels, by names of supervisions.
PLACES = ("per_client", "per_class", "server", "coarse", "sets", "mixed", "all", "given")


class _Source(NamedTuple):
    """Sizes of a dataset."""

    rounds: int
    labels: int  # labels of one client
    server: int | None  # labels at the server; None: all that exist
    model: str = "mlp"
    correspondence: str | None = None  # space of the coarse labels
    clients: int | None = 100  # clients of equal size; None: the natural clients


SOURCES = {
    "digits": _Source(80, 5, 50, correspondence="shape", clients=None),
    "glyphs": _Source(60, 20, 620, "cnn", "kind", None),
    "femnist": _Source(1000, 20, 620, "cnn", "kind", None),
    "mnist": _Source(100, 10, 1000, correspondence="shape"),
    "cifar10": _Source(200, 10, 1000, "cnn"),
    "npz": _Source(60, 10, None, correspondence="own", clients=None),
    "folder": _Source(60, 10, None, "cnn", correspondence="own", clients=None),
    "table": _Source(60, 10, None, correspondence="own", clients=None),
    "features": _Source(60, 10, None, "linear", correspondence="own", clients=None),
}


def source(
    name: str,
    argument: str = "fedavg",
    method: str | None = None,
    rounds: int | None = None,
    place: str | None = None,
) -> ml_collections.ConfigDict:
    """Return a dataset and a method.

    Args:
        name: a name in `SOURCES`.
        argument: METHOD or METHOD,LABELS. By default, labels are at the method's usual place;
            "per_client", "per_class", "server", "coarse", "sets", "mixed", "all" or "given" puts
            them elsewhere.
        method: in place of the argument's, for example from `--method.name`.
        rounds: rounds in place of the dataset's. A first stage keeps its share of them.
        place: place of the labels in a comparison of several methods. Methods that fit this place
            use it; the others use their default.

    Raises:
        ConfigError: there is no such method, or no such place for labels.
    """
    named, _, labels = argument.partition(",")
    # The name of the dataset in earlier versions.
    method = method or named
    labels = {"clients": "per_client"}.get(labels, labels)
    with naming():
        if labels:
            check_known("place of labels", labels, PLACES)
        if not labels and place not in (None, "given") and fits(method, place):
            labels = place
    own = _own_config(method, labels)
    if not labels:
        labels = own.supervision.name
        if name in OWN and labels != "server":
            labels = "given"
        elif labels == "all":  # some clients have all labels: CBAFed
            labels = "per_client"
    shared = federation(name, labels)
    facts = SOURCES[name]
    config = of_method(method, shared)
    if name != "digits":  # learning rates for 64 small numbers are too high for images
        _at_rate(config, min(config.optimizer.learning_rate, shared.optimizer.learning_rate))
    config.rounds = facts.rounds if rounds is None else rounds
    config.eval_every = every = max(config.rounds // 20, 1)
    share = config.rounds / own.rounds
    for stage in _STAGES:
        if own.method.get(stage):  # the stage ends with an evaluation
            config.method[stage] = max(round(own.method[stage] * share / every), 1) * every
    if own.optimizer.schedule_rounds is not None:
        config.optimizer.schedule_rounds = max(round(own.optimizer.schedule_rounds * share), 1)
    if name == "digits":  # the method's views for digits
        for section in ("augment", "strong_augment"):
            config[section].update(own[section].to_dict())
    return config


def federation(
    name: str, labels: str, path: str | None = None, count: int | None = None
) -> ml_collections.ConfigDict:
    """Make the part that all methods share: data, clients, labels, network, and an optimizer.

    Args:
        name: a name in `SOURCES`.
        labels: "per_client": labels at every client. "per_class": labels of every class at every
            client. "server": labels at the server. "coarse": coarse labels at the clients, and some
            class labels at the server. "sets": class shares of unlabelled sets. "mixed": clients of
            all kinds. "all". "given": the dataset's labels.
        path: an `.npz` file in place of the download.
        count: labels of a client, of a class at a client, or of the server.

    Raises:
        ConfigError: the dataset has no coarse labels.
    """
    facts = SOURCES[name]
    config = default("fedavg")
    # Some methods use validation examples, but a handful would choose a model by chance.
    config.data.update(
        name="npz" if path else name, path=path, validation_fraction=0.05, fewest_validation=50
    )
    config.federated.cohort_size = config.optimizer.batch_size = 10
    config.model.name = facts.model
    if name == "digits":
        config.data.test_clients = 3
    elif facts.clients is not None:
        config.partition.name = "iid"
        config.partition.num_clients = facts.clients
        if name == "mnist":
            config.model.hidden = (200, 200)  # the network called 2NN in FedAvg's paper
    if name in OWN:
        config.federated.cohort_size = None  # the number of clients is unknown
        # The inputs are unknown too; this rate is low enough for standardized images.
        config.optimizer.learning_rate = 0.03
    if facts.model == "cnn" or name == "mnist":  # images
        config.augment.name = "crop_flip" if name == "cifar10" else "shift"
        config.strong_augment.update(name="fixmatch", flip=name == "cifar10")
    _hide_labels(config.supervision, name, labels, count)
    return config


def personal_glyphs(name: str) -> ml_collections.ConfigDict:
    """Return drawn characters of 40 writers who each need their own model, with batch
    normalization.

    Args:
        name: name of the personalization.
    """
    config = source("glyphs", "fedavg")
    config.eval_every = 20
    config.data.writers = 40
    config.data.validation_fraction = 0.0
    config.model.update(name="mlp", hidden=(128,), norm="bn")
    config.personalize.name = name
    return config


def _hide_labels(
    section: ml_collections.ConfigDict, name: str, labels: str, count: int | None
) -> None:
    facts = SOURCES[name]
    section.name = labels
    counts = {
        "per_client": facts.labels,
        "mixed": facts.labels,
        "per_class": 5,
        "server": facts.server,
    }
    section.labels = counts.get(labels) if count is None else count
    if labels in ("all", "given"):
        section.labels = None
    if labels in ("coarse", "mixed"):
        if facts.correspondence is None:
            raise ConfigError(
                f"{name} has no coarse labels here; take another method, or the labels of another "
                "place"
            )
        section.correspondence = facts.correspondence
    if labels == "coarse":
        section.labels = None
        section.server_labels = (facts.server or 20) if count is None else count
    if labels in ("sets", "mixed"):
        section.sets = 10
    if labels == "mixed":
        clients = facts.clients or 11
        section.update(
            labelled_clients=max(clients // 5, 1),
            coarse_clients=clients // 3,
            set_clients=clients // 3,
        )
        section.which = "random"


def of_method(
    method: str, shared: ml_collections.ConfigDict, shared_optimizer: bool = False
) -> ml_collections.ConfigDict:
    """Return the shared config with a method's own settings: its section, its network's second
    head, its optimizers.

    Args:
        method: a registered method, or "module:function", which gets the optimizer of
            `fedavg`.
        shared: config from `federation`.
        shared_optimizer: the clients' optimizer is the shared one, unless the config's is another
            than SGD.

    Raises:
        ConfigError: there is no such method.
    """
    config = _own_config(method, "server" if shared.supervision.name == "server" else "per_client")
    own = config.model.to_dict()
    alike = shared_optimizer and config.optimizer.name == shared.optimizer.name
    if alike:
        _at_rate(config, shared.optimizer.learning_rate)
    with config.unlocked():
        for section in (
            "data",
            "partition",
            "supervision",
            "augment",
            "strong_augment",
            *["optimizer"] * alike,
        ):
            config[section] = ml_collections.ConfigDict(shared[section].to_dict())
        config.model = ml_collections.ConfigDict(
            {**shared.model.to_dict(), "aux_head": own.get("aux_head")}
        )
    config.federated.cohort_size = shared.federated.cohort_size
    config.federated.weighting = shared.federated.weighting
    return config


def _at_rate(config: ml_collections.ConfigDict, rate: float) -> None:
    """Set the learning rate, and FedMatch's l2_weight so that the product is the paper's."""
    if "l2_weight" in config.method:
        config.method.l2_weight *= config.optimizer.learning_rate / rate
    config.optimizer.learning_rate = rate


def _own_config(method: str, labels: str) -> ml_collections.ConfigDict:
    """Return a method with its recommended fields, with labels at this place if the method fits it,
    otherwise at its usual place.
    """
    with naming("method.name"):
        places = recommended(method)
    place = labels if labels in places else next(iter(places))
    if place == "per_client":
        return digits_by_writer(method)
    config = default(method)
    config.supervision.name = place
    return recommend(config, place)
