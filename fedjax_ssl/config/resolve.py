"""From a config, as the file and the command line leave it, to a checked and complete one."""

from typing import Any

import jax
import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl import methods
from fedjax_ssl.config import rules
from fedjax_ssl.config.change_choice import choose
from fedjax_ssl.config.configured_optimizers import federated_optimizer
from fedjax_ssl.config.fields import (
    CHOICES,
    NAMED,
    check_field,
    get,
    method_section,
    options_of,
)
from fedjax_ssl.data import is_own
from fedjax_ssl.errors import ConfigError, did_you_mean, naming, note
from fedjax_ssl.federated import FEDERATED_OPTIMIZERS, OPTIMIZERS, Facts, schedule_name
from fedjax_ssl.gone import sentence


def resolve(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Return a checked copy in which every None with a common default is filled in.

    If `config.method.name` was replaced, `config.method` gets the settings of that method. Values
    of the other method are carried over, with a note.

    Args:
        config: config after the file and the command line.

    Returns:
        A locked config.

    Raises:
        ConfigError: naming the field, its value and what is allowed.
    """
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"a config is needed, not {config!r}; fedjax_ssl.load_config(NAME) reads one by its "
            "name"
        )
    resolved = ml_collections.ConfigDict(config.to_dict())
    # Every field is known, and the method has its own settings.
    _refuse_gone(resolved)
    _refuse_unknown(resolved)
    _take_over_method(resolved)
    resolved.optimizer.schedule = schedule_name(resolved.optimizer.schedule)
    # Every value is allowed, and every choice has only its own options.
    for field, declared in options_of(resolved).items():
        check_field(field, get(resolved, field, None), declared)
    for section in CHOICES:
        _check_options(resolved, section)
    # Before defaults are filled in, because the user did not set these.
    rules.note_without_effect(resolved)
    _fill_in(resolved)
    # Fields fit each other; this needs values that are allowed and filled in.
    rules.note_lengths(resolved)
    rules.check_metrics(resolved)
    rules.check_validation(resolved)
    rules.check_client_standardization(resolved)
    rules.check_privacy(resolved)
    rules.check_prediction(resolved)
    rules.saved_round(resolved)
    # Build the optimizers as a check, unless they need sizes of the data.
    facts = _facts(resolved)
    if facts or not FEDERATED_OPTIMIZERS.takes(resolved.federated.name, "facts"):
        federated_optimizer(resolved, facts)
    if facts or not OPTIMIZERS.takes(resolved.optimizer.name, "facts"):
        rules.note_own_rate(resolved, facts)
    return resolved.lock()


def options(section: Any) -> dict[str, Any]:
    """Return the options of a section that were set: all except `name` that are not None."""
    return {key: value for key, value in section.items() if key != "name" and value is not None}


def network_options(section: Any) -> dict[str, Any]:
    """Return the options of section `model` for the network's builder."""
    return {name: value for name, value in options(section).items() if name != "train"}


def _facts(config: ml_collections.ConfigDict) -> Facts | None:
    """Return the sizes of the run, if the config has them."""
    clients = 1 if config.partition.pooled else config.partition.num_clients
    cohort_size = config.federated.cohort_size or clients
    return Facts(clients, cohort_size, config.rounds) if clients else None


def _refuse_gone(config: ml_collections.ConfigDict) -> None:
    """Refuse a field of an earlier version, which a file may set in an unlocked section."""
    for field, value in flatten_dict(config.to_dict(), sep=".").items():
        if words := sentence(field, value, config.method.name):
            raise ConfigError(words)


def _refuse_unknown(config: ml_collections.ConfigDict) -> None:
    """Refuse an unknown field: a file may unlock the config to set options of its choices, and
    misspell one.
    """
    known = options_of(config)
    unknown = [field for field in flatten_dict(config.to_dict(), sep=".") if field not in known]
    # A field of another method, if a file replaced only the name.
    if any(field.startswith("method.") for field in unknown):
        for method in methods.available():
            for setting, option in methods.METHODS.options(method).items():
                known[f"method.{setting}"] = option
    for field in unknown:
        if field not in known:
            hint = did_you_mean(f"config.{field}", [f"config.{name}" for name in known])
            raise ConfigError(f"unknown field config.{field}.{hint}")


def _take_over_method(config: ml_collections.ConfigDict) -> None:
    """Give `config.method` the settings of its method, if a file replaced only the name."""
    name = config.method.name
    given = flatten_dict(config.method.to_dict(), sep=".")
    there = given.keys() - {"name"}
    if "parts" in there and name == "compose":
        config.method = method_section(name, given)  # with parts of which a file has only the name
    elif there != methods.METHODS.options(name).keys():
        alike = (one for one in methods.METHODS if there == {*methods.METHODS.options(one)})
        choose(config, "method", name, before=next(alike, name))


def _check_options(config: ml_collections.ConfigDict, section: str) -> None:
    """Refuse options that a choice does not have; options left from another choice are removed,
    with a note.
    """
    registry = CHOICES[section]
    choice = config[section]
    with naming(section):
        known = registry.options(choice.name)
        if not NAMED[section].refuses:
            for option in registry.fields():
                foreign = option not in known and option not in registry.common
                if foreign and choice[option] is not None:
                    note(
                        f"config.{section}.{option}={choice[option]} has no effect: "
                        f"{registry.kind} {choice.name!r} does not take it"
                    )
                    choice[option] = None
        taken = {*registry.fields(), *known}
        registry.check(choice.name, [option for option in options(choice) if option in taken])


def _fill_in(config: ml_collections.ConfigDict) -> None:
    """Fill in the defaults that follow from other fields."""
    if config.optimizer.schedule_rounds is None:
        config.optimizer.schedule_rounds = max(config.rounds, 1)
    federated = config.federated
    if config.method.name == methods.POOLED:
        config.partition.pooled = True
    if config.partition.pooled:
        federated.cohort_size = None
    if federated.weighting is None:
        by_examples = is_own(config.data.name) and config.privacy.name == "none"
        federated.weighting = "examples" if by_examples else "uniform"
    if federated.devices is None and jax.distributed.is_initialized():
        federated.devices = jax.device_count()
    elif federated.devices is None and federated.reduce == "fast":
        federated.devices = 1  # the number of devices decides the bits
    # A sweep replaces existing values here.
    for section in CHOICES:
        filled_in = NAMED[section].filled_in
        taken = CHOICES[section].options(config[section].name) if filled_in else {}
        for option, declared in taken.items():
            if config[section].get(option) is None:
                config[section][option] = declared.default
