"""Declarations of allowed values of settings, besides type and default, with the checks and words
made from them.

    @checked
    def spread(labels, alpha: Annotated[float | Array, In("[0, 1)")] = 0.99): ...

The registry reads the same annotations to resolve a config and for help. In a tuple, a declaration
is for every number in it. A `Literal` declares names.
"""

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

from fedjax_ssl.errors import UserError, did_you_mean

LARGEST_WHOLE = 2**31 - 1  # counts are 32 bits wide on the device
# Runs compute in single precision: a larger number becomes infinite, and a smaller positive one 0.
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).tiny)
Checked = TypeVar("Checked", bound=Callable[..., Any])


class Declaration:
    """Base of the declarations of allowed values."""

    def check(self, name: str, value: Any) -> None:
        """Raise ValueError for a value that is not allowed; the message names it `name`."""
        raise NotImplementedError

    def words(self) -> str:
        """Return the allowed values, in words for help."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class In(Declaration):
    """Numbers in an interval, as in mathematics: "[0, 1)" includes 0 and excludes 1.

    Infinity is never allowed, nor a value that float32 rounds to infinity or to an excluded 0. A
    traced number passes.
    """

    interval: str = "[0, inf)"

    def check(self, name: str, value: Any) -> None:
        # A traced number has no value to check.
        if isinstance(value, np.ndarray) or hasattr(value, "aval"):
            return
        lowest, highest = map(float, self.interval[1:-1].split(","))
        real = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        above = real and (value > lowest or (value == lowest and self.interval[0] == "["))
        if not (above and (value < highest or (value == highest and self.interval[-1] == "]"))):
            if lowest == -np.inf:
                words = "that is finite"
            elif highest == np.inf:
                words = (
                    f"of at least {lowest:g}" if self.interval[0] == "[" else f"above {lowest:g}"
                )
            else:
                words = f"in {self.interval}"
            raise ValueError(f"{name} is {value!r}; it must be a number {words}")
        vanishes = self.interval.startswith("(0,") and value < SMALLEST
        if vanishes or abs(value) > LARGEST:
            limit = f"at least {SMALLEST:.3g}" if vanishes else f"at most {LARGEST:.3g}"
            raise ValueError(
                f"{name} is {value!r}; single precision, in which a run computes, takes {limit}"
            )

    def words(self) -> str:
        return f"a number in {self.interval}"


@dataclasses.dataclass(frozen=True)
class Whole(Declaration):
    """Whole numbers from `lowest` to `highest`."""

    lowest: int = 1
    highest: int = LARGEST_WHOLE

    def check(self, name: str, value: Any) -> None:
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if whole and value > self.highest:
            raise ValueError(
                f"{name} is {value!r}; it must be a whole number from {self.lowest} to "
                f"{self.highest}"
            )
        if not whole or value < self.lowest:
            raise ValueError(
                f"{name} is {value!r}; it must be a whole number of at least {self.lowest}"
            )

    def words(self) -> str:
        if self.highest == LARGEST_WHOLE:
            return f"a whole number of at least {self.lowest}"
        return f"a whole number from {self.lowest} to {self.highest}"


@dataclasses.dataclass(frozen=True)
class OneOf(Declaration):
    """One of several names; in an annotation, `Literal` declares it. With `own`, "module:function"
    is allowed too.
    """

    names: Collection[Any]
    own: bool = False

    def check(self, name: str, value: Any) -> None:
        if value not in self.names and not (self.own and ":" in str(value)):
            raise ValueError(
                f"{name} is {value!r}.{did_you_mean(value, self.names)} Allowed: {self.words()}"
            )

    def words(self) -> str:
        return ", ".join(map(str, self.names)) + ", or module:function" * self.own


@dataclasses.dataclass(frozen=True)
class Several(Declaration):
    """A tuple of different names. With `own`, "module:function" is allowed too.

    "none" stands for the empty tuple.
    """

    names: Iterable[str]
    own: bool = False

    @property
    def known(self) -> list[str]:
        """The names, including those registered later."""
        return [one for one in self.names if one != "none"]

    @property
    def allowed(self) -> str:
        """The names that a value may have, for messages."""
        return ", or ".join(filter(None, [", ".join(self.known), "module:function" * self.own]))

    def check(self, name: str, value: Any) -> None:
        if not isinstance(value, (tuple, list)):
            raise ValueError(f"{name} is {value!r}; it must be a tuple of names, of {self.allowed}")
        for one in value:
            if one not in self.known and not (self.own and ":" in str(one)):
                raise ValueError(
                    f"{name} names {one!r}.{did_you_mean(one, self.known)} Allowed: {self.allowed}"
                )
        if len(set(value)) < len(value):
            raise ValueError(f"{name} is {tuple(value)!r}, which names one of them twice")

    def words(self) -> str:
        return f"names with commas between, of {self.allowed}"


@dataclasses.dataclass(frozen=True)
class Each(Declaration):
    """A tuple of allowed values, or `word` alone; in an annotation, `tuple[...]` declares it."""

    entry: Declaration
    word: str = dataclasses.field(default="", repr=False)

    def check(self, name: str, value: Any) -> None:
        if self.word and isinstance(value, (tuple, list)) and [*value] == [self.word]:
            return
        if not isinstance(value, (tuple, list, np.ndarray)):
            kind = "tuples" if isinstance(self.entry, Each) else "numbers"
            raise ValueError(f"{name} is {value!r}; it must be a tuple of {kind}")
        for place, one in enumerate(value):
            self.entry.check(f"{name}[{place}]", one)

    def words(self) -> str:
        entry = self.entry.entry if isinstance(self.entry, Each) else self.entry
        several = (
            entry.words()
            .replace("a whole number", "whole numbers with commas between, each")
            .replace("a number", "numbers with commas between, each")
        )
        return f"{self.word}, or {several}" if self.word else several


def declared(annotation: Any) -> Declaration | None:
    """Read the allowed values of an annotation; None if it has none.

    Example:
        >>> declared(Annotated[float | None, In("(0, 1]")])
        In(interval='(0, 1]')
        >>> declared(tuple[Annotated[int, Whole(0)], ...])
        Each(entry=Whole(lowest=0, highest=2147483647))
    """
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
    if origin is Annotated:
        found: Declaration | None = next(
            (one for one in parts[1:] if isinstance(one, Declaration)), None
        )
        if isinstance(found, (In, Whole)):
            for _ in range(_depth(parts[0])):
                found = Each(found)
        return found
    if origin is Literal:
        return OneOf(parts)
    if origin in (types.UnionType, typing.Union):
        return next((found for part in parts if (found := declared(part))), None)
    entry = declared(parts[0]) if parts else None
    return Each(entry) if entry else None


def _depth(annotation: Any) -> int:
    """Count the tuples around a number."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return max(map(_depth, parts))
    return 1 + _depth(parts[0]) if parts else 0


def checked(function: Checked) -> Checked:
    """Make a function, or a dataclass, refuse arguments that its annotations do not allow.

    Example:
        >>> @checked
        ... def keep(share: Annotated[float, In("[0, 1]")] = 0.5):
        ...     return share
        >>> keep(2)
        Traceback (most recent call last):
        ValueError: share is 2; it must be a number in [0, 1]

    Raises:
        ValueError: by the function, for an argument that is not allowed; None passes if it is the
            default or in the annotation.
    """
    if inspect.isclass(function):
        function.__init__ = checked(function.__init__)  # type: ignore[method-assign, misc]
        return function

    @functools.cache  # read at the first call, when all names in annotations are defined
    def read() -> tuple[inspect.Signature, dict[str, tuple[Declaration, bool]]]:
        signature = inspect.signature(function, eval_str=True)
        found = {}
        for name, parameter in signature.parameters.items():
            if declaration := declared(parameter.annotation):
                found[name] = declaration, takes_none(parameter)
        return signature, found

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        signature, declarations = read()
        given = signature.bind_partial(*arguments, **named).arguments
        for name, (declaration, optional) in declarations.items():
            if name in given and not (optional and given[name] is None):
                declaration.check(name, given[name])
        return function(*arguments, **named)

    return typing.cast(Checked, call)


def required(function: Checked) -> Checked:
    """Make a function raise a UserError if a required argument is None."""
    signature = inspect.signature(function)
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        given = signature.bind_partial(*arguments, **named).arguments
        for name in needed:
            if given.get(name, name) is None:
                raise UserError(
                    f"{name} is None; {function.__name__} needs it: "
                    f"help({function.__module__}.{function.__name__}) says what it is"
                )
        return function(*arguments, **named)

    return typing.cast(Checked, call)


def takes_none(parameter: inspect.Parameter) -> bool:
    """Return whether None is a value of a parameter."""
    annotation = parameter.annotation
    if typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    return parameter.default is None or type(None) in typing.get_args(annotation)


def check_whole_numbers(lowest: int = 1, highest: int = LARGEST_WHOLE, /, **numbers: Any) -> None:
    """Raise ValueError for anything but a whole number of at least `lowest` and at most
    `highest`.
    """
    for name, value in numbers.items():
        Whole(lowest, highest).check(name, value)


def check_numbers(interval: str = "[0, inf)", /, **numbers: Any) -> None:
    """Raise ValueError for anything but a number in an interval, also for nan; a traced number
    passes.
    """
    for name, value in numbers.items():
        In(interval).check(name, value)


def check_choices(allowed: Collection[str], /, **given: Any) -> None:
    """Raise ValueError for anything but the allowed names."""
    for name, choice in given.items():
        OneOf(allowed).check(name, choice)


def is_zero(weight: Any) -> bool:
    """Return whether a weight is known to be 0; for a traced one, False."""
    return isinstance(weight, (int, float)) and weight == 0
