"""The embedded digits for the methods that compare views of unlabelled examples."""

import ml_collections

from fedjax_ssl.presets.digits import digits_by_writer, digits_with_server


def digits_consistency(method: str, labels: str | None = None) -> ml_collections.ConfigDict:
    """The embedded digits with labels at the writers or at the server; a weak view is moved, a strong one turned.

    Args:
        method: name of a method of this family.
        labels: as a config file's argument gives them. "5": labels of each writer, as in `digits_by_writer`.
            "server" or "server,20": labels at the server, as in `digits_with_server`; the writers have none.

    Raises:
        ConfigError: it is none of these.
    """
    place, _, number = (labels or "").partition(",")
    if place == "server":
        config = digits_with_server(method, number or None)
        config.method.server_batch_size = 10
    else:
        config = digits_by_writer(method, labels)
    config.augment.name = "shift"
    config.augment.pixels = 1
    config.augment.fill = "constant"
    config.strong_augment.name = "rotate"
    return config
