"""What a run is told: fields with their defaults, their checks, and their resolution."""

from fedjax_ssl.config.resolve import (
    ConfigError,
    ConfigNote,
    check_federated_optimizer,
    default,
    get,
    naming,
    options,
    predictors,
    replace_number,
    resolve,
)

__all__ = [
    "ConfigError",
    "ConfigNote",
    "check_federated_optimizer",
    "default",
    "get",
    "naming",
    "options",
    "predictors",
    "replace_number",
    "resolve",
]
