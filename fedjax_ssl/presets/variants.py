"""The argument of a config, such as `cifar10_xclp:5000,100,iid`, declared once, by the parameters
of a function.
"""

import inspect
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import ml_collections

from fedjax_ssl.checks import In, Whole, declared
from fedjax_ssl.config import ConfigError

Count = Annotated[int, Whole(1)]
Concentration = Annotated[float, In("(0, inf)")]  # concentration of a Dirichlet split
Split = Concentration | Literal["iid"]
Iid = Literal["iid", "noniid"]
Several = Annotated[int, Whole(2)]
Share = Annotated[float, In("(0, 1]")]


def variants(
    make: Callable[..., ml_collections.ConfigDict], *leading: Any
) -> Callable[..., ml_collections.ConfigDict]:
    """Make the `get_config` of a file, whose argument has comma-separated values.

    Args:
        make: returns the config. Its parameters are the values of the argument, in their order; a
            `Literal` lists allowed values, and a declaration the allowed numbers.
        *leading: leading arguments of `make`.

    Example:
        >>> @variants
        ... def get_config(labels: Literal[1000, 5000] = 1000, split: Split = "iid"):
        ...     return fs.config.default()
        >>> get_config("500,iid")
        Traceback (most recent call last):
        fedjax_ssl.errors.ConfigError: labels is '500' in the argument '500,iid' of this config; \
give LABELS,SPLIT. labels: 1000 or 5000; split: a number in (0, inf) or iid. For example 1000,iid
    """
    parameters = list(inspect.signature(make, eval_str=True).parameters.values())[len(leading) :]
    defaults = [one.default for one in parameters if one.default not in (None, one.empty)]
    how = (
        f"give {','.join(one.name.upper() for one in parameters)}. "
        + "; ".join(f"{one.name}: {_words(one.annotation)}" for one in parameters)
        + f". For example {','.join(map(str, defaults))}" * bool(defaults)
    )

    def get_config(argument: str = "") -> ml_collections.ConfigDict:
        given = argument.split(",")
        where = f"the argument {argument!r} of this config; {how}"
        if len(given) > len(parameters):
            raise ConfigError(f"there are {len(given)} values in {where}")
        found = {}
        for one, text in zip(parameters, given, strict=False):
            if text:
                try:
                    found[one.name] = _value(one.annotation, text)
                except ValueError:
                    raise ConfigError(f"{one.name} is {text!r} in {where}") from None
        return make(*leading, **found)

    return get_config


def _choices(annotation: Any) -> list[Any]:
    """Return the values that an annotation allows: names and numbers of a `Literal`, and kinds of
    numbers.
    """
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return [one for part in typing.get_args(annotation) for one in _choices(part)]
    if origin is Literal:
        return list(typing.get_args(annotation))
    return [] if annotation is type(None) else [annotation]


def _words(annotation: Any) -> str:
    said = []
    for one in _choices(annotation):
        allowed = declared(one)
        word = "text" if one is str else str(one)
        said.append(allowed.words() if allowed else word)
    return " or ".join(said)


def _value(annotation: Any, text: str) -> Any:
    """Read a value of the argument.

    Raises:
        ValueError: the annotation does not allow it.
    """
    choices = _choices(annotation)
    for one in choices:
        if one is str or text == str(one):
            return text if one is str else one
    for one in choices:
        if (allowed := declared(one)) is not None:
            value = typing.get_args(one)[0](text)
            allowed.check("value", value)
            return value
    raise ValueError(text)
