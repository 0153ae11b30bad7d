"""The embedded digits, with labels at the writers or at the server, or coarse ones."""

import ml_collections

from fedjax_ssl.config import ConfigError, default


def digits_by_writer(method: str, labels: str | None = None) -> ml_collections.ConfigDict:
    """Return the embedded digits: 11 writers train with few labels, 3 writers that were never seen
    are the test.

    Which writers are held out and which digits keep their label follow from the seed.

    Args:
        method: name of a method.
        labels: labels per writer, as a config file's argument gives them ("5"); "all" keeps every
            label.

    Raises:
        ConfigError: `labels` is not a number.
    """
    config = default(method)
    config.rounds = 80
    config.data.test_clients = 3
    config.optimizer.update(learning_rate=0.3, local_epochs=5)
    count = labels or "5"
    if count == "all":
        config.supervision.name = "all"
        return config
    config.supervision.update(
        name="per_client", labels=_count("labels per writer", count, ', or "all"')
    )
    config.optimizer.batch_size = min(50, config.supervision.labels)
    return config


def digits_with_server(method: str, labels: str | None = None) -> ml_collections.ConfigDict:
    """Return the embedded digits with labels at the server: 11 writers train without any, 3 that
    were never seen are the test.

    Clients and server train in turns, with SemiFL's optimizers; the learning rate and the epochs at
    the server are larger, as there are fewer examples.

    Args:
        method: name of a method whose server trains.
        labels: class-balanced labels at the server, as a config file's argument gives them ("20").

    Raises:
        ConfigError: `labels` is not a number.
    """
    config = default(method)
    config.rounds = 30
    config.data.test_clients = 3
    config.supervision.update(name="server", labels=_count("labels at the server", labels or "20"))
    if "server_epochs" in config.method:
        config.method.server_epochs = 10
    semifl_optimizers(config)
    config.optimizer.update(learning_rate=0.1, local_epochs=2)
    return config


def semifl_optimizers(config: ml_collections.ConfigDict) -> None:
    """Set the optimizers of SemiFL's code, of clients and of the server's average, but for rate
    and epochs.
    """
    config.optimizer.update(
        schedule="cosine", momentum=0.9, nesterov=True, weight_decay=5e-4, clip_norm=1.0
    )
    config.federated.name = "fedavgm"


def digits_with_coarse_labels(
    method: str, labels: str | None, space: str
) -> ml_collections.ConfigDict:
    """`digits_with_server` whose writers have coarse labels.

    Args:
        method: name of a method.
        labels: class labels at the server, as there.
        space: space of the coarse labels, see `fedjax_ssl.data.correspondence`.
    """
    config = digits_with_server(method, labels)
    at_server = config.supervision.labels
    config.supervision.update(
        name="coarse", labels=None, server_labels=at_server, correspondence=space
    )
    return config


def digits_consistency(method: str, labels: str | None = None) -> ml_collections.ConfigDict:
    """Return the embedded digits with labels at the writers or at the server; a weak view is moved,
    a strong one turned.

    Args:
        method: name of a method of this family.
        labels: as a config file's argument gives them. "5": labels of each writer, as in
            `digits_by_writer`. "server" or "server,20": labels at the server, as in
            `digits_with_server`; the writers have none.

    Raises:
        ConfigError: it is none of these.
    """
    place, _, number = (labels or "").partition(",")
    if place == "server":
        config = digits_with_server(method, number or None)
        config.method.server_batch_size = 10
    else:
        config = digits_by_writer(method, labels)
    config.augment.update(name="shift", pixels=1, fill="constant")
    config.strong_augment.name = "rotate"
    return config


def _count(what: str, text: str, otherwise: str = "") -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{what} are {text!r}; give a number of at least 1{otherwise}")
    return int(text)
