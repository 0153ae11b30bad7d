"""The embedded digits, with labels at the writers or at the server, or coarse ones.

What suits a method there stands beside its recipe, see `fedjax_ssl.methods.recommended`.
"""

import ml_collections

from fedjax_ssl.config import ConfigError, default
from fedjax_ssl.methods import recommended
from fedjax_ssl.methods.parts.recommended import PLACES


def recommend(config: ml_collections.ConfigDict, place: str) -> ml_collections.ConfigDict:
    """Set what is recommended for the config's method and small images, and return the config.

    Args:
        config: the experiment. Settings that its method does not have are left out.
        place: where labels are, as supervisions are named. What the method's file does not say is
            as for other methods.
    """
    method = config.method
    fields = recommended(method.name).get(place, PLACES.get(place, {}))
    config.update_from_flattened_dict(
        {
            field: value
            for field, value in fields.items()
            if not field.startswith("method.") or field.removeprefix("method.") in method
        }
    )
    return config


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
    config.data.test_clients = 3
    config.supervision.name = "all"
    count = labels or "5"
    if count != "all":
        number = _count("labels per writer", count, ', or "all"')
        config.supervision.update(name="per_client", labels=number)
        config.optimizer.batch_size = min(50, number)
    return recommend(config, "per_client")


def digits_with_server(method: str, labels: str | None = None) -> ml_collections.ConfigDict:
    """Return the embedded digits with labels at the server: 11 writers train without any, 3 that
    were never seen are the test.

    Args:
        method: name of a method whose server trains.
        labels: class-balanced labels at the server, as a config file's argument gives them ("20").

    Raises:
        ConfigError: `labels` is not a number.
    """
    config = default(method)
    config.data.test_clients = 3
    config.supervision.update(name="server", labels=_count("labels at the server", labels or "20"))
    return recommend(config, "server")


def digits_with_coarse_labels(
    method: str, labels: str | None, space: str
) -> ml_collections.ConfigDict:
    """`digits_with_server` whose writers have coarse labels.

    Args:
        method: name of a method.
        labels: class labels at the server, as there.
        space: space of the coarse labels, see `fedjax_ssl.data.correspondence`.
    """
    config = default(method)
    config.data.test_clients = 3
    at_server = _count("labels at the server", labels or "20")
    config.supervision.update(name="coarse", server_labels=at_server, correspondence=space)
    return recommend(config, "coarse")


def digits_consistency(method: str, labels: str | None = None) -> ml_collections.ConfigDict:
    """Return the embedded digits with labels at the writers or at the server.

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
        return digits_with_server(method, number or None)
    return digits_by_writer(method, labels)


def _count(what: str, text: str, otherwise: str = "") -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{what} are {text!r}; give a number of at least 1{otherwise}")
    return int(text)
