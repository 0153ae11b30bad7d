"""What is said about a setting that cannot be used, or that does nothing."""

import contextlib
from collections.abc import Iterator


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the field, its value and what is allowed."""


class ConfigNote(UserWarning):
    """A setting that has no effect beside the others."""


@contextlib.contextmanager
def naming(section: str = "") -> Iterator[None]:
    """Turns a ValueError of a room into a `ConfigError` that names the section of the config it came from.

    Args:
        section: for example "model"; empty where the message names the field itself.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"config.{section}: {error}" if section else str(error)) from error
