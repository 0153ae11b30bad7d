"""From the name of a config and settings, as a user types them, to the config.

The name stands for a file, its `get_config` returns a config, and every setting replaces a field of
it.
"""

import ast
import contextlib
import inspect
import re
import runpy
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_ssl.checks import required
from fedjax_ssl.config.change_choice import choose
from fedjax_ssl.config.fields import (
    REGISTRIES,
    default,
    method_section,
    options_of,
    words_of,
)
from fedjax_ssl.errors import ConfigError, did_you_mean, naming
from fedjax_ssl.gone import sentence
from fedjax_ssl.own_code import blame, make_importable, place, said
from fedjax_ssl.registry import Option
from fedjax_ssl.shipped import shipped_configs

Settings = Mapping[str, Any] | Iterable[tuple[str, Any]]

_PARTS = "method.parts"  # parts of a composition, each with its own settings
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# Parameters of a `get_config` besides its argument, and the settings that they receive.
_TOLD = {"method": ("method.name", Option(str, "")), "rounds": ("rounds", Option(int, 0))}


class Source(NamedTuple):
    """File and argument of a config."""

    path: Path
    argument: str | None  # argument of its `get_config`

    @property
    def run_name(self) -> str:
        """Name for a run of it: "digits-xclp" for `digits:xclp`, which is another experiment than
        `digits_xclp`.
        """
        rest = re.sub(r"[^\w.-]+", "_", self.argument or "").strip("_")
        return f"{self.path.stem}-{rest}" if rest else self.path.stem


@required
def load(name: str, settings: Settings = (), place: str | None = None) -> ml_collections.ConfigDict:
    """Return the config of a name, changed by settings.

    Args:
        name: name of a shipped config ("digits_xclp"), with its argument ("digits:semifl"), or a
            file ("my_study/config.py", "my_study/config.py:10"). Modules in the folder of a file
            can be named in a config.
        settings: values, or their texts, by dotted field, "config." in front or not; or pairs, in
            any order, but of two for one field the last one counts. Names are set first, so that
            options of their choices can be set too. A config that takes any method gets
            `method.name`, and returns what that method needs; in other configs it replaces the
            method. If a choice changes, the config's values in that section are carried over, with
            a note; everything else has the new choice's defaults. A config that fits the lengths of
            its stages gets `rounds`.
        place: place of the labels in a comparison of methods, a name of a supervision; a config
            that takes any method gets it.

    Returns:
        A config, not resolved yet.

    Raises:
        ConfigError: there is no such config or field, a value is not of its type, or the file has
            an error.

    Example:
        >>> config = fs.load_config("digits_xclp", {"rounds": 10, "method.alpha": "0.9"})
        >>> config.rounds, config.method.name, config.method.alpha
        (10, 'xclp', 0.9)
    """
    source = find(name)
    given = _given(settings)
    get_config = _read(source.path, "get_config")
    parameters = inspect.signature(get_config).parameters
    told = {
        parameter: _value(field, given[field], kind)
        for parameter, (field, kind) in _TOLD.items()
        if parameter in parameters and field in given
    }
    if place is not None and "place" in parameters:
        told["place"] = place
    return with_settings(_call(get_config, source, told), given.items())


def load_several(path: str | Path, function: str) -> list[ml_collections.ConfigDict]:
    """Return the configs that a function of a Python file yields.

    Args:
        path: the file. Modules in its folder can be named in a config.
        function: function without arguments.

    Raises:
        ConfigError: the file has an error or no such function, or it yields something else than
            configs.
    """
    yields = _read(Path(path), function)
    with _blaming(f"{function} of {path} failed", Path(path)):
        given = list(yields())
    if not all(isinstance(config, ml_collections.ConfigDict) for config in given):
        raise ConfigError(
            f"{function} of {path} yields something that is no config; yield what get_config "
            "returns"
        )
    return given


def find(name: str) -> Source:
    """Return the file and the argument that a name stands for.

    Raises:
        ConfigError: there is no such config.
    """
    known = shipped_configs()
    if file := re.fullmatch(r"(.*\.py)(?::(.*))?", name, re.DOTALL):
        path = Path(file[1])
        if path.is_file():
            return Source(path, file[2])
        there = (
            f" A config of this name is in the package: {path.stem}" if path.stem in known else ""
        )
        hint = there or did_you_mean(str(path), [str(one) for one in path.parent.glob("*.py")])
        raise ConfigError(f"there is no config file {file[1]}.{hint}")
    stem, colon, argument = name.partition(":")
    if stem in known:
        return Source(known[stem], argument if colon else None)
    raise ConfigError(
        f"there is no config {stem!r}.{did_you_mean(stem, known)} `fedjax-ssl list configs` names "
        "all; a file of your own ends in .py"
    )


def with_settings(
    config: ml_collections.ConfigDict, settings: Settings
) -> ml_collections.ConfigDict:
    """Return a copy of a config with other values in some fields; arguments and errors as for
    `load`.
    """
    copy = deepcopy(config).lock()
    given = _given(settings)
    if "data.validation_fraction" in given:
        # If the user asks for validation examples, any number is held out.
        given = {"data.fewest_validation": 0, **given}
    for field in sorted(given, key=_place):
        known = options_of(copy)
        if words := sentence(field, given[field], copy.method.name):
            raise ConfigError(words)
        if field not in known:
            raise ConfigError(_no_field(copy, field, known))
        value = _value(field, given[field], known[field])
        section = field.removesuffix(".name")
        with copy.unlocked(), naming(field if section == "method" else section):
            if section in REGISTRIES and value != copy[section].name:
                choose(copy, section, value, given=given)
            elif field == _PARTS and copy.method.name == "compose":
                settings_there = flatten_dict(copy.method.to_dict(), sep=".")
                copy.method = method_section("compose", {**settings_there, "parts": value})
            else:
                copy.update_from_flattened_dict({field: value})
    return copy


def _place(field: str) -> tuple[bool, bool, bool]:
    """Return the order of settings: names first, then parts, because other fields depend on
    them.
    """
    return field != "method.name", not field.endswith(".name"), field != _PARTS


def _given(settings: Settings) -> dict[str, Any]:
    pairs = settings.items() if isinstance(settings, Mapping) else settings
    return {field.removeprefix("config."): value for field, value in pairs}


def _no_field(config: ml_collections.ConfigDict, field: str, known: Iterable[str]) -> str:
    section, _, last = field.rpartition(".")
    part = section.removeprefix("method.")
    if part != section and config.method.name == "compose" and part not in config.method:
        parts = ", ".join(config.method.get("parts", ())) or "none"
        return f"the config has no field {field!r}: {part!r} is not among method.parts: {parts}"
    namesakes = [one for one in known if one.endswith(f".{last}")]
    hint = f" Did you mean {namesakes[0]!r}?" if namesakes else did_you_mean(field, list(known))
    if field == "seeds":
        hint = " A run has one seed; `fedjax-ssl sweep CONFIG --seeds N` makes N runs."
    if field.partition(".")[0] in ("uploads", "around"):
        hint = (
            " Upload transforms and wrappers have no options in a config; write a function of your "
            "own that sets them, and name it as module:function."
        )
    has = (
        f" config.method of {config.method.name!r} has: {', '.join(config.method)}"
        if section == "method"
        else ""
    )
    return f"the config has no field {field!r}.{hint}{has}"


def _value(field: str, given: Any, kind: Option) -> Any:
    """Return a value of the field's type, from a value or its text."""
    text = given.strip() if isinstance(given, str) else None
    none = given is None or text == "None" or (text == "none" and kind.type not in (str, object))
    if none:
        if kind.optional:
            return None
        raise ConfigError(f"config.{field}=None: give {words_of(kind)}")
    value = given.item() if isinstance(given, np.generic) else given
    if text is not None:
        with contextlib.suppress(ValueError):  # a text of another type is refused below
            value = _PARSERS.get(kind.type, kind.type)(text)
    if kind.type is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind.type is tuple and isinstance(value, list):
        value = tuple(value)
    if not isinstance(value, kind.type) or (kind.type is int and isinstance(value, bool)):
        shown = repr(given) if isinstance(given, str) and not given.isprintable() else given
        raise ConfigError(
            f"config.{field}={shown}: give {words_of(kind)}" + " or None" * kind.optional
        )
    return value


def _tuple(text: str) -> tuple[Any, ...]:
    try:
        found = ast.literal_eval(text)
    # TypeError: "{[]: 1}"
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        found = tuple(part.strip() for part in text.split(",") if part.strip())
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


_PARSERS: dict[type, Callable[[str], Any]] = {
    bool: lambda text: _TRUTH.get(text.lower(), text),
    object: lambda text: int(text) if str(int(text)) == text else text,  # "02" is a name
    tuple: _tuple,
}


def _read(path: Path, function: str) -> Callable[..., Any]:
    """Return a function of a Python file, and make its neighbours importable."""
    if path.resolve() not in shipped_configs().values():
        make_importable(path.parent)
    try:
        with _blaming(f"{path} cannot be read", path):
            names = runpy.run_path(str(path))
    except SystemExit as error:
        raise ConfigError(
            f"{path} is no config file: it ends Python when it is read (exit {error.code})"
        ) from error
    if not callable(names.get(function)):
        raise ConfigError(f"{path} is no config file: it has no function {function}")
    return names[function]


def _call(
    get_config: Callable[..., Any], source: Source, told: dict[str, Any]
) -> ml_collections.ConfigDict:
    given = () if source.argument is None else (source.argument,)
    try:
        inspect.signature(get_config).bind(*given, **told)
    except TypeError as error:
        needs = "takes no argument" if given else "needs an argument"
        shown = f"; got {source.argument!r}" if given else f": {source.path.stem}:ARGUMENT"
        raise ConfigError(f"{source.path.name} {needs}{shown}") from error
    with _blaming(f"get_config of {source.path} failed", source.path):
        config = get_config(*given, **told)
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"get_config of {source.path} returned {type(config).__name__}; a config is a "
            "ConfigDict"
        )
    if missing := [name for name in default() if name not in config]:
        raise ConfigError(
            f"get_config of {source.path} returned a config without {', '.join(missing[:3])}"
            f"{', ...' if missing[3:] else ''}; start from fedjax_ssl.config.default()"
        )
    return config


@contextlib.contextmanager
def _blaming(what: str, path: Path) -> Iterator[None]:
    """Turn an error into a ConfigError, with its place where one is known; what has failed in the
    config file is said unless the place is in another file.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        at = place(error)
        prefix = f"{what}: " if at is None or f"/{path.name}, line" in f"/{at}" else ""
        raise ConfigError(
            f"{prefix}{blame(error) or f'{type(error).__name__}: {said(error)}'}"
        ) from error
