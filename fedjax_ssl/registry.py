"""What a config names and how it is built: a table per kind, with the nearest name for one that nobody knows."""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from fedjax_ssl.own_code import import_named

Built = TypeVar("Built")


class Option(NamedTuple):
    """What a choice can be told beside its name."""

    type: type  # as a config stores it
    default: Any  # `inspect.Parameter.empty`: it has to be given
    optional: bool = False  # whether None is a value of it
    choices: tuple[Any, ...] = ()  # of a Literal; empty: any value of the type


class Registry(Generic[Built]):
    """Builders of one kind by name. The parameters of a builder are the options of its choice.

    A name of the form "module:function" stands for a builder of the user's own, and "NAME:VALUE" for the choice NAME
    with its first option, where that is a positional one without a default.
    """

    def __init__(
        self,
        kind: str,
        builders: Mapping[str, Callable[..., Built] | tuple[Callable[..., Built], str]],
        *,
        leading: int = 0,
        given: Collection[str] = (),
        common: Mapping[str, type] = types.MappingProxyType({}),
    ):
        """Makes the table.

        Args:
            kind: in words, for messages.
            builders: by name; with a line about the choice, where the beginning of its docstring is none.
            leading: number of parameters at the front that come from the package and are no options.
            given: names of further parameters that come from the package, by those builders that have them.
            common: options of every choice that are not its builder's, and their types.
        """
        self.kind, self.common = kind, common
        pairs = {name: one if isinstance(one, tuple) else (one, _first_words(one)) for name, one in builders.items()}
        self._builders = {name: builder for name, (builder, _) in pairs.items()}
        self._lines = {name: line for name, (_, line) in pairs.items()}
        self._leading, self._given = leading, given
        self._options: dict[str, dict[str, Option]] = {}  # that were asked for before

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def available(self) -> dict[str, str]:
        """Names, with a line about each."""
        return dict(self._lines)

    def builder(self, name: str) -> Callable[..., Built]:
        """The builder of a name.

        Raises:
            ValueError: nobody knows the name, or the user's own cannot be imported.
        """
        stem, colon, argument = str(name).partition(":")
        if colon and self._takes_argument(stem):
            return partial(self._builders[stem], argument)
        if colon:
            return import_named(self.kind, name)
        check_known(self.kind, name, self._builders)
        return self._builders[name]

    def _takes_argument(self, name: str) -> bool:
        """Whether "NAME:VALUE" is the choice NAME with its first option, as "tfds:mnist", and no code of one's own."""
        if self._leading or name not in self._builders:
            return False
        first = next(iter(inspect.signature(self._builders[name]).parameters.values()), None)
        return first is not None and first.kind is first.POSITIONAL_OR_KEYWORD and first.default is first.empty

    def options(self, name: str) -> dict[str, Option]:
        """The options of a choice, without those common to all.

        Raises:
            ValueError: as `builder`.
        """
        if name not in self._builders:  # the user's own may be another one tomorrow, in a notebook
            return self._read_options(name)
        if name not in self._options:
            self._options[name] = self._read_options(name)
        return dict(self._options[name])

    def _read_options(self, name: str) -> dict[str, Option]:
        parameters = list(inspect.signature(self.builder(name), eval_str=True).parameters.values())[self._leading :]
        return {
            p.name: Option(_stored(p), p.default, _optional(p), _choices(p.annotation))
            for p in parameters
            if p.name not in self._given
        }

    def meanings(self, name: str) -> dict[str, str]:
        """What the options of a choice mean, from "Args:" or "Attributes:" in the docstring of its builder.

        Raises:
            ValueError: as `builder`.
        """
        import docstring_parser  # only where help is asked for

        builder: Any = self.builder(name)
        builder = builder.func if isinstance(builder, partial) else builder
        found: dict[str, str] = {}
        for one in reversed(inspect.getmro(builder)) if inspect.isclass(builder) else (builder,):
            text = docstring_parser.parse(inspect.cleandoc(one.__doc__ or ""))
            found |= {what.arg_name: " ".join((what.description or "").split()) for what in text.params}
        return {option: found.get(option, "") for option in self.options(name)}

    def fields(self) -> dict[str, type]:
        """The options of all choices and their types, as a section of a config has them."""
        fields = dict(self.common)
        for name in self:
            fields.update({option: what.type for option, what in self.options(name).items()})
        return fields

    def takes(self, name: str, parameter: str) -> bool:
        """Whether a choice's builder has a parameter, which may be one that the package gives."""
        return parameter in inspect.signature(self.builder(name)).parameters

    def check(self, name: str, options: Collection[str]) -> None:
        """Raises ValueError for an unknown name, an option that the choice does not take, or a missing one."""
        known = self.options(name)
        for option in options:
            if option not in known and option not in self.common:
                hint = did_you_mean(option, known)
                has = ", ".join((*known, *self.common)) or "none"
                raise ValueError(f"{self.kind} {name!r} has no option {option!r}.{hint} Its options: {has}")
        for option, what in known.items():
            if what.default is inspect.Parameter.empty and option not in options:
                raise ValueError(f"{self.kind} {name!r} needs the option {option!r}")

    def build(self, name: str, /, *leading: Any, **options: Any) -> Built:
        """Builds a choice.

        Args:
            name: one of `available()`, or "module:function".
            *leading: what the package puts in front.
            **options: of the choice, and what the package gives by name.

        Raises:
            ValueError: as `check`, or what the builder raises for a value.
        """
        self.check(name, [option for option in options if option not in self._given])
        try:
            return self.builder(name)(*leading, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            # The call itself: something named that takes no such arguments.
            raise ValueError(f"{self.kind} {name!r} builds none: {error}") from error


def check_known(kind: str, name: object, known: Collection[str]) -> None:
    """Raises ValueError for a name that is not among the known ones."""
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}.{did_you_mean(name, known)} Available: {', '.join(known)}")


def did_you_mean(name: object, known: Collection[str]) -> str:
    """A sentence that names the nearest known name, with a space before it; nothing where none is near.

    Args:
        name: as given.
        known: the names that there are.
    """
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def takes_array(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is annotated as one that takes an array too, as `float | Array` is."""
    from jaxtyping import Array  # not at the top: it brings jax, which `fedjax-ssl --help` does not need

    return Array in typing.get_args(parameter.annotation)


def _first_words(builder: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(builder) or "").split("\n\n")[0].split())


def _optional(parameter: inspect.Parameter) -> bool:
    return parameter.default is None or type(None) in typing.get_args(parameter.annotation)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """What a Literal allows, which may stand beside None."""
    if typing.get_origin(annotation) is Literal:
        return typing.get_args(annotation)
    return next((found for part in typing.get_args(annotation) if (found := _choices(part))), ())


def _stored(parameter: inspect.Parameter) -> type:
    """The type of a config's field for a parameter: `float | Array | None` is stored as float."""
    annotation = parameter.annotation
    if annotation is parameter.empty and parameter.default is not parameter.empty:
        return type(parameter.default)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return type(parts[0])
    for part in parts if origin in (types.UnionType, typing.Union) else (annotation,):
        if part in (bool, int, float, str):
            return part
        if typing.get_origin(part) is not None:
            return tuple
    return str
