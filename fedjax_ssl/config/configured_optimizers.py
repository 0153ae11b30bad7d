"""The optimizers of a resolved config, and the numbers that compiled programs take as arguments."""

from collections.abc import Mapping
from typing import Any

import ml_collections

from fedjax_ssl.config.fields import NAMED, get, options_of
from fedjax_ssl.errors import ConfigError, naming
from fedjax_ssl.federated import (
    FEDERATED_OPTIMIZERS,
    OPTIMIZERS,
    Facts,
    LearningRate,
    LocalOptimizer,
    LocalSettings,
    learning_rate_schedule,
    local_optimizer,
)


def federated_optimizer(config: Any, facts: Facts | None = None) -> Any:
    """Return the federated optimizer that a config names.

    Args:
        config: resolved config, or such a dictionary, with numbers that may be traced.
        facts: sizes of the run, for an optimizer with such a parameter.

    Raises:
        ConfigError: a value that is not allowed, also in local training.
    """
    server = config["federated"]
    local = config["optimizer"]
    settings = {name: local.get(name) for name in LocalSettings._fields}
    for name in ("momentum", "nesterov"):
        # other optimizers have a momentum with another meaning
        if local["name"] != "sgd" or settings[name] is None:
            settings[name] = OPTIMIZERS.options("sgd")[name].default
    with naming("federated"):
        taken = FEDERATED_OPTIMIZERS.options(server["name"])
        return FEDERATED_OPTIMIZERS.build(
            server["name"],
            local=LocalSettings(**settings),
            facts=facts,
            **{option: server[option] for option in taken},
        )


def local_training(config: Any, facts: Facts | None = None) -> tuple[LocalOptimizer, LearningRate]:
    """Return the local optimizer and the schedule of its learning rate; as
    `federated_optimizer`.
    """
    local = config["optimizer"]
    with naming("optimizer"):
        taken = (*OPTIMIZERS.options(local["name"]), "clip_norm")
        optimizer = local_optimizer(
            local["name"],
            facts=facts,
            **{name: local[name] for name in taken if local[name] is not None},
        )
        schedule = {name: local[name] for name in local if name.startswith("schedule_")}
        rate = learning_rate_schedule(
            local["schedule"], local["learning_rate"], rounds=config["rounds"], **schedule
        )
    return optimizer, rate


def replace_numbers(
    config: ml_collections.ConfigDict, numbers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the config as a dictionary, with new values, which may be traced, for real-valued
    settings.

    Args:
        config: resolved.
        numbers: by dotted names of fields.

    Raises:
        ConfigError: there is no such field, or it is not a real number and so decides shapes or
            code.
    """
    replaced = config.to_dict()
    known = sorted(_real_numbers(config, annotated=False)) if numbers else []
    for field, value in numbers.items():
        if field not in known:
            raise ConfigError(
                f"hyperparameter {field!r} is no real-valued setting of this config; these are: "
                f"{known}"
            )
        section, _, name = field.rpartition(".")
        get(replaced, section)[name] = value
    return replaced


def traced_numbers(config: ml_collections.ConfigDict) -> dict[str, float]:
    """Return the numbers of a run that are arguments of its compiled programs; all other settings
    are part of the code.

    A number is an argument if its parameter is annotated as `float | Array` and it is not 0,
    because 0 often leaves something out. Another value then needs no other program. Recipes,
    federated optimizers and local optimizers have such parameters.

    Args:
        config: resolved.

    Returns:
        Values by dotted names of fields, for `replace_numbers`.
    """
    values = _real_numbers(config, annotated=True)
    return {field: value for field, value in values.items() if value != 0}


def _real_numbers(config: ml_collections.ConfigDict, annotated: bool) -> dict[str, float]:
    """Return the settings that a program may take as arguments and that are real numbers here; with
    `annotated`, only those whose parameter is annotated as taking an array.
    """
    values = dict[str, Any]()
    for field, option in options_of(config).items():
        section = NAMED.get(field.partition(".")[0])
        if option.traceable or (section and section.traced and not annotated):
            values[field] = get(config, field, None)
    return {field: value for field, value in values.items() if isinstance(value, float)}
