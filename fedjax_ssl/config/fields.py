"""The declared fields of a config: those of `sections.py`, and those of the names it uses.

A section with a choice (dataset, partition, supervision, model, augmentation, cohort, federated
optimizer) also has the options of all its choices, which their builders declare; None stands for
the choice's own default. `config.method` has the settings of its own method only.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections
from flax.traverse_util import unflatten_dict
from ml_collections import config_dict

from fedjax_ssl import methods
from fedjax_ssl.config.sections import COUNT_OR_NONE, SECTIONS
from fedjax_ssl.data import AUGMENTATIONS, PARTITIONS, SOURCES, SUPERVISIONS
from fedjax_ssl.errors import ConfigError, check_known, naming
from fedjax_ssl.federated import COHORTS, FEDERATED_OPTIMIZERS, OPTIMIZERS
from fedjax_ssl.federated.uploads import PRIVACY, SUMS, UPLOADS
from fedjax_ssl.methods.around import WRAPPERS
from fedjax_ssl.models import MODELS
from fedjax_ssl.registry import CHANGES, Consequence, Option, Registry

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    object: "a whole number or a name",
    tuple: "names with commas between, for example age,sex",
}


class Section(NamedTuple):
    """A section whose name is a choice, with the options of that choice."""

    registry: Registry[Any]
    changes: str = "code"  # see `registry.CHANGES`; for options that do not declare their own
    filled_in: bool = False  # whether it has its choice's defaults once resolved
    traced: bool = False  # whether options of its choices may be arguments of programs
    refuses: bool = False  # whether options of another choice are an error, and not left out


NAMED = {
    "method": Section(methods.METHODS, filled_in=True, traced=True),
    "data": Section(SOURCES, refuses=True),
    "partition": Section(PARTITIONS, "result"),
    "supervision": Section(SUPERVISIONS, "result"),
    "augment": Section(AUGMENTATIONS),
    "strong_augment": Section(AUGMENTATIONS),
    "model": Section(MODELS, refuses=True),
    "optimizer": Section(OPTIMIZERS, filled_in=True, traced=True),
    "cohort": Section(COHORTS),
    "federated": Section(FEDERATED_OPTIMIZERS, filled_in=True, traced=True),
    "personalize": Section(WRAPPERS, filled_in=True, traced=True),
    "privacy": Section(PRIVACY, filled_in=True, traced=True),
    "sum": Section(SUMS, filled_in=True),
}
REGISTRIES: dict[str, Registry[Any]] = {name: one.registry for name, one in NAMED.items()}
# registries whose options are fields of every config
CHOICES = {name: one for name, one in REGISTRIES.items() if name != "method"}
FIELDS = {
    f"{section}.{name}".lstrip("."): field
    for section, fields in SECTIONS.items()
    for name, field in fields.items()
}


def register(kind: str, name: str | None = None, builder: Callable[..., Any] | None = None) -> Any:
    """Register a method, network, dataset ... of your own under a name for configs.

    A config can also name it as "module:function", without this.

    Args:
        kind: a section of a config ("method", "model", "data", "partition", "supervision",
            "augment", "cohort", "federated", "personalize"), "around", "upload" or "term";
            "dataset" and "network" are "data" and "model".
        name: name in configs; by default the builder's own name.
        builder: function as described in docs/extending.md; its keyword arguments become options.
            Without it, `register` is a decorator.

    Returns:
        The builder.

    Raises:
        ValueError: there is no such kind, or the name has a colon.

    Example:
        >>> @fs.register("method")
        ... def short_sighted(setup, *, weight: float = 1.0):
        ...     "FedAvg under another name."
        ...     return fs.methods.build("fedavg", setup)
        >>> fs.load_config("digits", {"method.name": "short_sighted"}).method.weight
        1.0
    """
    words = {"dataset": REGISTRIES["data"], "network": REGISTRIES["model"]}
    others: dict[str, Registry[Any]] = {
        "around": WRAPPERS,
        "upload": UPLOADS,
        "term": methods.TERMS,
    }
    registries: dict[str, Registry[Any]] = {**REGISTRIES, **words, **others}
    check_known("kind", kind, registries)
    if builder is None:
        return functools.partial(register, kind, name)
    registries[kind].register(name or builder.__name__, builder)
    return builder


def options_of(config: Any) -> dict[str, Option]:
    """Return every field of a config by dotted name: fields of all configs, and options of its
    choices.

    Args:
        config: not resolved.

    Raises:
        ConfigError: the config has an unknown name.
    """
    found = {"method.name": Option(str, "fedavg", changes="code"), **_options_of_choices()}
    for section, named in NAMED.items():
        with naming("method.name" if section == "method" else section):
            own = named.registry.options_in(config[section])
        for option, one in own.items():
            name = f"{section}.{option}"
            beside = name.rpartition(".")[0]
            needs = [f"{beside}.{part}" for part in one.needs.split(" or ") if part]
            found[name] = one._replace(
                optional=section != "method" or one.optional,
                traceable=named.traced and one.traceable,
                changes=one.changes or named.changes,
                needs=" or ".join(needs),
            )
    return found | FIELDS


def fields_that(holds: Callable[[Consequence], object]) -> tuple[str, ...]:
    """List the fields of all configs, by dotted name, whose change has a given consequence.

    If all fields of a section have it, the section's name is listed.
    """
    of_sections: dict[str, list[str]] = {}
    has: set[str] = set()
    for name, option in (_options_of_choices() | FIELDS).items():
        of_sections.setdefault(name.rpartition(".")[0], []).append(name)
        if holds(CHANGES[option.changes]):
            has.add(name)
    whole = {section for section, own in of_sections.items() if section and has.issuperset(own)}
    return (*whole, *(name for name in has if name.rpartition(".")[0] not in whole))


def _options_of_choices() -> dict[str, Option]:
    """List the options of all choices as fields, where None stands for the choice's own default."""
    return {
        f"{section}.{option}": one._replace(changes=one.changes or NAMED[section].changes)
        for section, registry in CHOICES.items()
        for option, one in registry.fields().items()
    }


def words_of(option: Option, full: bool = False) -> str:
    """Describe the allowed values of a field, with their range if `full` or for several numbers."""
    return (
        option.allowed.words()
        if option.allowed and (full or option.type is tuple)
        else _WORDS[option.type]
    )


def _stored(option: Option) -> Any:
    return config_dict.placeholder(option.type) if option.default is None else option.default


def method_section(name: str, given: Mapping[str, Any]) -> ml_collections.ConfigDict:
    """Make `config.method`: a method's name and settings, with defaults for those that `given`
    lacks.

    Args:
        name: name of a method.
        given: settings, those of a part as "PART.SETTING"; settings that the method lacks are left
            out.

    Raises:
        ValueError: the method is unknown.
    """
    named = {"name": name, **given}
    flat: dict[str, Any] = {"name": name}
    for setting, option in methods.METHODS.options_in(named).items():
        flat[setting] = given.get(setting, _stored(option))
    return ml_collections.ConfigDict(unflatten_dict(flat, sep="."))


def default(method: str = "fedavg") -> ml_collections.ConfigDict:
    """Return the base config of every experiment: federated averaging on the labels of the embedded
    digits.

    Args:
        method: name of a method, whose settings become `config.method`.
    """
    fields: dict[str, Any] = {"method": method_section(method, {})}
    for name, option in (_options_of_choices() | FIELDS).items():
        section, _, own = name.rpartition(".")
        place = fields.setdefault(section, {}) if section else fields
        place[own] = _stored(option)
    return ml_collections.ConfigDict(fields).lock()


def check_field(name: str, value: Any, option: Option | None = None) -> None:
    """Raise ConfigError for a value that is not allowed; the message names the field and the
    allowed values.

    Args:
        name: its dotted name.
        value: its value.
        option: its declaration, by default that in `FIELDS`.
    """
    option = option or FIELDS[name]
    if value is None and not option.optional:
        raise ConfigError(f"config.{name} is None; give {words_of(option)}")
    allowed = option.allowed
    if option.type is object and not isinstance(value, str):
        allowed = COUNT_OR_NONE
    if value is not None and allowed:
        with naming():
            allowed.check(f"config.{name}", value)


def get(config: Any, field: str, *missing: Any) -> Any:
    """Return the value of a dotted field, for example "optimizer.learning_rate".

    Args:
        config: a config, or such a dictionary.
        field: its dotted name.
        *missing: value if there is no such field; without it, a KeyError is raised.
    """
    for part in field.split("."):
        if missing and part not in config:
            return missing[0]
        config = config[part]
    return config
