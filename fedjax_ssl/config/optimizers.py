"""The optimizers of a resolved config, and its numbers that compiled programs take as arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl.config.fields import FIELDS, REGISTRIES, get
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
from fedjax_ssl.registry import takes_array

_TRACEABLE = (
    "optimizer.",
    "federated.",
    "method.",
    "personalize.",
    "participation.",
    "privacy.",
)


def federated_optimizer(config: Any, facts: Facts | None = None) -> Any:
    """Return the federated optimizer that a config names.

    Args:
        config: resolved, or a dictionary like one, in which numbers may be traced.
        facts: sizes of the run, for an optimizer that asks for them.

    Raises:
        ConfigError: a value that it does not take, also one of local training.
    """
    server = config["federated"]
    local = config["optimizer"]
    settings = {name: local.get(name) for name in LocalSettings._fields}
    for name in ("momentum", "nesterov"):
        # those of others are no momentum of plain SGD
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
    """Return the local optimizer and the schedule of its rate that a config names; as
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
    """Return the config as a dictionary, with values, which may be traced, in place of real-valued
    settings.

    Args:
        config: resolved.
        numbers: by dotted names of fields.

    Raises:
        ConfigError: there is no such field, or it is not a real number, so that it decides shapes
            or code.
    """
    replaced = config.to_dict()
    real = {
        name for name, value in flatten_dict(replaced, sep=".").items() if isinstance(value, float)
    }
    known = sorted(name for name in real if name.startswith(_TRACEABLE))
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
    are part of their code.

    A number is one where its parameter is annotated as `float | Array` and it is not 0: 0 often
    leaves something out. Of these, another value needs no other program. Recipes, federated and
    local optimizers have such parameters.

    Args:
        config: resolved.

    Returns:
        Values by dotted names of fields, for `replace_numbers`.
    """
    local: list[Callable[..., Any]] = [local_optimizer, learning_rate_schedule]
    parameters = [
        one
        for builder in local
        for one in inspect.signature(builder, eval_str=True).parameters.values()
    ]
    sections = {
        "optimizer": {one.name for one in parameters if takes_array(one)},
        "federated": set(),
        "method": set(),
        "personalize": set(),
        "participation": {
            field.removeprefix("participation.")
            for field, option in FIELDS.items()
            if field.startswith("participation.") and option.traceable
        },
        "privacy": set(),
    }
    for section, names in sections.items():
        if section not in REGISTRIES:
            continue
        options = REGISTRIES[section].options_in(config[section])
        names |= {name for name, option in options.items() if option.traceable}
    values = {
        f"{section}.{name}": get(config[section], name, None)
        for section, names in sections.items()
        for name in sorted(names)
    }
    return {
        field: value for field, value in values.items() if isinstance(value, float) and value != 0
    }
