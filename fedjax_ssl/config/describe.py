"""What every field of a config is: its value, what is allowed, what it means."""

import inspect
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl import methods
from fedjax_ssl.checks import check_choices, check_numbers, check_whole_numbers
from fedjax_ssl.config.errors import naming
from fedjax_ssl.config.fields import CHOICES, FIELDS, WORDS, Field, get
from fedjax_ssl.config.ranges import range_of
from fedjax_ssl.registry import Option, Registry

_REGISTRIES: dict[str, Registry[Any]] = {"method": methods.METHODS, **CHOICES}


class Described(NamedTuple):
    """One field."""

    field: str  # dotted
    value: Any  # of this config; where it is None and its choice has a default of its own, that one
    allowed: str  # in words
    meaning: str


def describe(config: ml_collections.ConfigDict) -> list[Described]:
    """All fields that have an effect in a config, section by section; options of other choices are left out.

    Args:
        config: as `load` returns it.

    Raises:
        ConfigError: the config names something that nobody knows.
    """
    found = []
    for section in dict.fromkeys(_section(name) for name in ("seed", "method.name", *FIELDS)):
        registry = _REGISTRIES.get(section)
        fields = [_described(config, name, field) for name, field in FIELDS.items() if _section(name) == section]
        if registry is None:
            found += fields
            continue
        name = config[section].name
        with naming(section):
            options, meanings = registry.options(name), registry.meanings(name)
        others = {f"{section}.{option}" for option in registry.fields() if option not in {*options, *registry.common}}
        found.append(_choice(section, registry, name))
        found += [one for one in fields if one.field not in others and one.field != f"{section}.name"]
        told = {one.field for one in fields}
        found += [
            _option(section, name, option, config[section].get(option), what, meanings[option])
            for option, what in options.items()
            if f"{section}.{option}" not in told
        ]
    return found


def _section(field: str) -> str:
    return field.rpartition(".")[0]


def _choice(section: str, registry: Registry[Any], name: str) -> Described:
    line = registry.available().get(name, "of your own").rstrip(".")
    meaning = FIELDS[f"{section}.name"].meaning if f"{section}.name" in FIELDS else "the method"
    return Described(f"{section}.name", name, f"{', '.join(registry)}, or module:function", f"{meaning}: {line}")


def _described(config: ml_collections.ConfigDict, name: str, field: Field) -> Described:
    kind = field.default if isinstance(field.default, type) else type(field.default)
    words = WORDS[kind]
    if field.check is check_whole_numbers:
        words = f"a whole number of at least {field.allowed}"
    elif field.check is check_numbers:
        words = f"a number in {field.allowed}"
    elif field.check is check_choices:
        words = ", ".join(field.allowed)
    return Described(name, get(config, name), words + " or None" * isinstance(field.default, type), field.meaning)


def _option(section: str, choice: str, name: str, value: Any, option: Option, meaning: str) -> Described:
    """An option of a choice; None in a config stands for the choice's own default."""
    allowed = range_of(section, choice, name, option.type)
    words = ", ".join(map(str, option.choices)) or (WORDS[option.type] if allowed is None else allowed.words())
    given = option.default is not inspect.Parameter.empty
    shown = option.default if value is None and given else value
    return Described(f"{section}.{name}", shown, words + " or None" * option.optional, meaning.rstrip("."))
