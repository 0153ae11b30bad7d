"""Help for a config: value, allowed values and meaning of every field."""

import inspect
from typing import Any, NamedTuple

import ml_collections

from fedjax_ssl.config.fields import FIELDS, REGISTRIES, get, options_of, words_of
from fedjax_ssl.errors import naming


class Described(NamedTuple):
    """A field of a config, for help."""

    field: str  # dotted name
    value: Any  # value in this config; None is replaced by the default of the choice
    allowed: str  # allowed values, in words
    meaning: str
    changed: bool  # whether the config differs from the default


def describe(config: ml_collections.ConfigDict) -> list[Described]:
    """Describe all fields that have an effect in a config, section by section, without options of
    other choices.

    Args:
        config: config from `load`.

    Raises:
        ConfigError: the config has an unknown name.
    """
    options = options_of(config)
    found = []
    for section in dict.fromkeys(
        name.rpartition(".")[0] for name in ("seed", "method.name", *FIELDS)
    ):
        registry = REGISTRIES.get(section)
        meanings = dict[str, str]()
        others = set[str]()
        if registry is not None:
            name = config[section].name
            with naming(section):
                meanings = registry.meanings_in(config[section])
            others = {*registry.fields(), "name"} - {*meanings, *registry.common}
            declared = FIELDS.get(f"{section}.name")
            what = declared.meaning if declared else "the method"
            changed = declared is None or name != declared.default
            line = registry.available().get(name, "your own").rstrip(".")
            allowed = f"{', '.join(registry)}, or module:function"
            found.append(Described(f"{section}.name", name, allowed, f"{what}: {line}", changed))
        fields = [field for field in FIELDS if field.rpartition(".")[0] == section]
        for field in dict.fromkeys([*fields, *(f"{section}.{one}" for one in meanings)]):
            last = field.removeprefix(f"{section}.")
            if last in others:
                continue
            option = options[field]
            if field not in FIELDS and registry is not None:
                option = option._replace(
                    optional=registry.options_in(config[section])[last].optional,
                    meaning=meanings[last].rstrip("."),
                )
            value = get(config, field, None)
            # The default of the choice.
            if value is None and option.default is not inspect.Parameter.empty:
                value = option.default
            allowed = words_of(option, full=True) + " or None" * option.optional
            changed = value != option.default
            found.append(Described(field, value, allowed, option.meaning, changed))
    return found


def as_text(value: Any) -> str:
    """Write a value as on the command line."""
    if not isinstance(value, tuple | list):
        return str(value)
    plain = all("," not in str(one) and str(one).lower() != "none" for one in value)
    return ",".join(map(str, value)) if plain else repr(value)
