"""The embedded digits, with labels at the writers or at the server, or with coarse labels.

The settings of a method are next to its recipe, see `fedjax_ssl.methods.recommended`.
"""

from typing import Literal

import ml_collections

from fedjax_ssl.config import ConfigError, default
from fedjax_ssl.methods import recommended
from fedjax_ssl.methods.parts.recommended import PLACES
from fedjax_ssl.presets.variants import Count

Space = Literal["shape", "parity", "halves"]  # space of the coarse labels


def recommend(config: ml_collections.ConfigDict, place: str) -> ml_collections.ConfigDict:
    """Set the recommended fields for the config's method on small images, and return the config.

    Args:
        config: the experiment. Settings that its method lacks are left out.
        place: place of the labels, a name of a supervision. Fields that the method's file does not
            recommend are as for other methods.
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


def digits_by_writer(method: str, labels: Count | Literal["all"] = 5) -> ml_collections.ConfigDict:
    """Return the embedded digits: 11 writers train with few labels, and 3 writers are held out for
    testing.

    The random seed decides which writers are held out and which digits keep their label.

    Args:
        method: name of a method.
        labels: labels per writer; "all" keeps every label.
    """
    config = default(method)
    config.data.test_clients = 3
    config.supervision.name = "all"
    if labels != "all":
        config.supervision.update(name="per_client", labels=labels)
        config.optimizer.batch_size = min(50, labels)
    return recommend(config, "per_client")


def digits_with_server(method: str, labels: Count = 20) -> ml_collections.ConfigDict:
    """Return the embedded digits with labels at the server: 11 writers train without labels, and 3
    writers are held out for testing.

    Args:
        method: name of a method whose server trains.
        labels: class-balanced labels at the server.
    """
    config = default(method)
    config.data.test_clients = 3
    config.supervision.update(name="server", labels=labels)
    return recommend(config, "server")


def digits_with_coarse_labels(
    method: str, labels: Count, space: Space
) -> ml_collections.ConfigDict:
    """`digits_with_server` whose writers have coarse labels.

    Args:
        method: name of a method.
        labels: class labels at the server, as there.
        space: space of the coarse labels, see `fedjax_ssl.data.correspondence`.
    """
    config = default(method)
    config.data.test_clients = 3
    config.supervision.update(name="coarse", server_labels=labels, correspondence=space)
    return recommend(config, "coarse")


def digits_consistency(
    method: str, labels: Count | Literal["all", "server"] = 5, at_server: Count | None = None
) -> ml_collections.ConfigDict:
    """Return the embedded digits with labels at the writers or at the server.

    Args:
        method: name of a method of this family.
        labels: labels of each writer, as in `digits_by_writer`, or "server": labels at the server,
            as in `digits_with_server`, and none at the writers.
        at_server: labels at the server; 20 by default.

    Raises:
        ConfigError: labels are at both.
    """
    if labels == "server":
        return digits_with_server(method, at_server or 20)
    if at_server is not None:
        raise ConfigError(
            f"{labels},{at_server} are labels of writers and of the server; give server,{at_server}"
        )
    return digits_by_writer(method, labels)
