"""Registries, which map names in a config to builders, and read the options of a choice from its
builder's parameters.
"""

import dataclasses
import importlib
import importlib.util
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from fedjax_ssl.checks import Declaration, In, Whole, declared, takes_none
from fedjax_ssl.errors import check_known, did_you_mean

Built = TypeVar("Built")
Builder = Callable[..., Any] | str  # a string is "module:function", imported on use
_CONTRIBUTED = "fedjax_ssl.contrib"  # the only place of the core that names this folder
_SECURE = "fedjax_ssl.secure"  # and this one
_REQUIRED = inspect.Parameter.empty
_ANY = inspect.Parameter.VAR_KEYWORD  # a builder with `**options` checks them itself
_ANY_NUMBER = {int: Whole(-(2**31) + 1), float: In("(-inf, inf)")}


class Consequence(NamedTuple):
    """Consequence of changing a setting."""

    program: bool  # the run needs another compiled program
    goes_on: Literal["always", "never", "longer", "moved"]
    # ^ whether a stored run can go on with the new value
    alike: bool  # the run is still the same experiment, and a report pools its numbers


# By the word in every setting's declaration.
CHANGES = {
    "code": Consequence(program=True, goes_on="never", alike=False),
    # only arrays, or decisions between compiled blocks
    "result": Consequence(program=False, goes_on="never", alike=False),
    "length": Consequence(program=True, goes_on="longer", alike=False),
    "place": Consequence(program=True, goes_on="moved", alike=False),  # place of the data
    "prediction": Consequence(program=False, goes_on="always", alike=False),
    "program": Consequence(program=True, goes_on="always", alike=True),
    "watching": Consequence(program=False, goes_on="always", alike=True),
}


class Changes(NamedTuple):
    """In the annotation of a parameter: its consequence, if its section has another one."""

    word: str


class UsedWith(NamedTuple):
    """In the annotation of a parameter: settings without which it has no effect, as in
    `Option.needs`, by names of other parameters.
    """

    condition: str


class Option(NamedTuple):
    """A setting of a choice besides its name."""

    type: type  # type in a config
    default: Any  # `inspect.Parameter.empty`: required
    optional: bool = False  # whether None is allowed
    allowed: Declaration | None = None  # allowed values; None: any value of the type
    traceable: bool = False
    # ^ whether it may be a traced array, so that another value needs no other program
    meaning: str = ""  # text for help; `Registry.meanings` reads it for a builder's options
    changes: str = ""  # word of `CHANGES`; "": that of the section
    fitted: bool = False  # whether its value only suits one choice of its section
    needs: str = ""
    # ^ settings without which it has no effect: "FIELD", "FIELD=A|B", "FIELD!=A", with " or "
    # between


class Registry(Generic[Built]):
    """Builders of one kind by name. The parameters of a builder are the options of its choice.

    A parameter that is a frozen dataclass stands for its fields. A name of the form
    "module:function" stands for a builder of the user's own, and "NAME:VALUE" for the choice NAME
    with its first option, where that is a positional one without a default.

    Example:
        >>> def square(size: Annotated[int, Whole(1)], filled: bool = False) -> str:
        ...     "A square with equal sides."
        ...     return "#" * size
        >>> forms = Registry("form", {"square": square})
        >>> forms.build("square", size=3)
        '###'
        >>> forms.build("square", size=0)
        Traceback (most recent call last):
        ValueError: size is 0; it must be a whole number of at least 1
    """

    def __init__(
        self,
        kind: str,
        builders: Mapping[str, Builder | tuple[Builder, str]],
        *,
        leading: int = 0,
        given: Collection[str] = (),
        common: Mapping[str, type] = types.MappingProxyType({}),
        makes: Any = object,
        called_with: Sequence[str] = (),
        left_out: Mapping[str, str] | None = None,
    ):
        """Make the table.

        Args:
            kind: kind of the choices in words, for messages.
            builders: builders by name; with a line about the choice if its docstring has none.
            leading: number of parameters at the front that come from the package and are no
                options.
            given: names of further parameters that come from the package, by those builders that
                have them.
            common: options of every choice that are not its builder's, and their types.
            makes: type of what a builder returns, or "module:type", imported when one is built.
            called_with: arguments with which the package calls a function that a builder returns.
            left_out: names that users may look for, and why they are missing.
        """
        self._left_out = left_out or {}
        self.kind = kind
        self.common = common
        self._makes = makes
        self._called_with = called_with
        self._leading = leading
        self._given = given
        self._builders: dict[str, Builder] = {}
        self._lines: dict[str, str] = {}  # lines that are not from a docstring
        self._options: dict[str, dict[str, Option]] = {}  # options read so far
        for name, one in builders.items():
            self.register(name, *(one if isinstance(one, tuple) else (one,)))

    def register(self, name: str, builder: Builder, line: str = "") -> None:
        """Add a builder, or replace the one with this name.

        Args:
            name: as in a config.
            builder: a function or class, or "module:function".
            line: about the choice; by default the beginning of the builder's docstring.

        Raises:
            ValueError: the name has a colon, which is for names of the user's own modules.
        """
        if ":" in name:
            raise ValueError(f"{self.kind} {name!r} cannot have this name; leave out the colon")
        self._builders[name] = builder
        self._lines[name] = line
        self._options.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def available(self) -> dict[str, str]:
        """Return the names, with one line about each."""
        return {name: self._lines[name] or _first_words(self._known(name)) for name in self}

    def builder(self, name: str) -> Callable[..., Built]:
        """Find the builder of a name.

        Raises:
            ValueError: the name is unknown, or the user's own cannot be imported.
        """
        stem, colon, argument = str(name).partition(":")
        if colon and self._takes_argument(stem):
            return partial(self._known(stem), argument)
        if colon:
            # imported here, because only user code needs it
            from fedjax_ssl.own_code import import_named

            return import_named(self.kind, name)
        if name in self._left_out:
            raise ValueError(f"{self.kind} {name!r} is not here: {self._left_out[name]}")
        check_known(self.kind, name, (*self._builders, "module:function of your own"))
        return self._known(name)

    def _known(self, name: str) -> Callable[..., Built]:
        builder = self._builders[name] = _found(self._builders[name])
        return typing.cast(Callable[..., Built], builder)

    def _takes_argument(self, name: str) -> bool:
        """Return whether "NAME:VALUE" is the choice NAME with its first option, such as
        "tfds:mnist", and not user code.
        """
        if self._leading or name not in self._builders:
            return False
        first = next(iter(inspect.signature(self._known(name)).parameters.values()), None)
        return (
            first is not None
            and first.kind is first.POSITIONAL_OR_KEYWORD
            and first.default is first.empty
        )

    def options(self, name: str) -> dict[str, Option]:
        """Return the options of a choice, without those common to all.

        Raises:
            ValueError: as `builder`.
        """
        if name not in self._builders:  # user code may change, in a notebook
            return self._read_options(name)
        if name not in self._options:
            self._options[name] = self._read_options(name)
        return dict(self._options[name])

    def options_in(self, section: Mapping[str, Any]) -> dict[str, Option]:
        """Return the options of the choice in a section of a config; options of a part are
        "PART.OPTION".

        Raises:
            ValueError: as `builder`.
        """
        return self.options(section["name"])

    def _read_options(self, name: str) -> dict[str, Option]:
        found: dict[str, Option] = {}
        for parameter in self._parameters(self.builder(name)):
            if dataclasses.is_dataclass(parameter.annotation) and isinstance(
                parameter.annotation, type
            ):
                fields = inspect.signature(parameter.annotation, eval_str=True).parameters.values()
                found |= {field.name: option_of(field) for field in fields}
            elif parameter.name not in self._given and parameter.kind is not _ANY:
                found[parameter.name] = option_of(parameter)
        return found

    def _parameters(self, builder: Callable[..., Any]) -> list[inspect.Parameter]:
        # The method of the class itself, because a metaclass may change how a class is called.
        bound = builder.__init__ if inspect.isclass(builder) else builder
        return list(inspect.signature(bound, eval_str=True).parameters.values())[
            self._leading + (bound is not builder) :
        ]

    def meanings(self, name: str) -> dict[str, str]:
        """Explain the options of a choice, from "Args:" or "Attributes:" in the docstring of its
        builder.

        Raises:
            ValueError: as `builder`.
        """
        import docstring_parser  # only needed for help

        builder: Any = self.builder(name)
        builder = builder.func if isinstance(builder, partial) else builder
        documented = (
            list(reversed(inspect.getmro(builder))) if inspect.isclass(builder) else [builder]
        )
        for parameter in self._parameters(builder):
            if dataclasses.is_dataclass(parameter.annotation):
                documented += reversed(inspect.getmro(typing.cast(type, parameter.annotation)))
        found: dict[str, str] = {}
        for one in documented:
            text = docstring_parser.parse(inspect.cleandoc(one.__doc__ or ""))
            found |= {
                what.arg_name: " ".join((what.description or "").split()) for what in text.params
            }
        return {option: found.get(option, "") for option in self.options(name)}

    def meanings_in(self, section: Mapping[str, Any]) -> dict[str, str]:
        """Explain the options of the choice in a section of a config, as `options_in` lists
        them.
        """
        return self.meanings(section["name"])

    def fields(self) -> dict[str, Option]:
        """Return the options of all choices as fields of a config section, where None stands for
        the choice's own default.
        """
        fields = {option: Option(kind, None, True) for option, kind in self.common.items()}
        for name in self:
            for option, one in self.options(name).items():
                fields[option] = Option(one.type, None, True, changes=one.changes)
        return fields

    def takes(self, name: str, parameter: str) -> bool:
        """Return whether a choice's builder has a parameter, which the package may provide."""
        return parameter in {one.name for one in self._parameters(self.builder(name))}

    def check(self, name: str, options: Collection[str]) -> None:
        """Raise ValueError for an unknown name, an option that the choice lacks, or a missing
        one.
        """
        known = self.options(name)
        checks_itself = any(one.kind is _ANY for one in self._parameters(self.builder(name)))
        for option in options:
            if option not in known and option not in self.common and not checks_itself:
                hint = did_you_mean(option, known)
                has = ", ".join((*known, *self.common)) or "none"
                raise ValueError(
                    f"{self.kind} {name!r} has no option {option!r}.{hint} Its options: {has}"
                )
        for option, what in known.items():
            if what.default is _REQUIRED and option not in options:
                raise ValueError(f"{self.kind} {name!r} needs the option {option!r}")

    def build(self, name: str, /, *leading: Any, **options: Any) -> Built:
        """Build a choice.

        Args:
            name: one of `available()`, or "module:function".
            *leading: leading arguments from the package.
            **options: options of the choice, and arguments that the package gives by name to
                builders that have them.

        Raises:
            ValueError: as `check`, a value that its declaration does not allow, or what the builder
                raises for a value.
        """
        own = {option: value for option, value in options.items() if option not in self._given}
        self.check(name, own)
        known = self.options(name)
        for option, value in own.items():
            if option in known and value is not None and (allowed := known[option].allowed):
                allowed.check(option, value)
        builder = self.builder(name)
        parameters = self._parameters(builder)
        if not any(one.kind is _ANY for one in parameters):
            taken = {*options} - {*self._given} | {one.name for one in parameters}
            options = {option: value for option, value in options.items() if option in taken}
        for one in parameters:
            if dataclasses.is_dataclass(one.annotation) and isinstance(one.annotation, type):
                fields = {field.name for field in dataclasses.fields(one.annotation)} & set(options)
                options[one.name] = one.annotation(
                    **{field: options.pop(field) for field in fields}
                )
        try:
            built = builder(*leading, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            # The call itself failed: the function does not take such arguments.
            raise ValueError(f"could not build {self.kind} {name!r}: {error}") from error
        makes = _found(self._makes)
        wanted = makes.__name__.replace("Callable", "function")
        if isinstance(self._makes, str):
            wanted = self._makes.replace(":", ".")
        wrong = ""
        if not isinstance(built, makes):
            wrong = type(built).__name__
        elif self._called_with:
            wanted += f" of {', '.join(self._called_with)}"
            try:
                inspect.signature(typing.cast(Callable[..., Any], built)).bind(*self._called_with)
            except TypeError as error:
                wrong = f"a function with other arguments ({error})"
        if wrong:
            from fedjax_ssl.own_code import where

            raise ValueError(
                f"{self.kind} {name!r} returned {wrong}; it has to return a {wanted} "
                f"({where(builder)})"
            )
        return built


def contributed(kind: str) -> dict[str, str]:
    """Return the contributed choices of one kind: name -> "module:function".

    It is empty without the folder `contrib`, and lacks choices of missing files.
    """
    spec = importlib.util.find_spec(_CONTRIBUTED)
    if spec is None or spec.origin is None:
        return {}
    folder = Path(spec.origin).parent
    files = importlib.import_module(_CONTRIBUTED).FILES.get(kind, {})
    return {
        name: f"{_CONTRIBUTED}.{file.replace('/', '.')}:{name}"
        for file, names in files.items()
        if (folder / f"{file}.py").is_file()
        for name in names
    }


def secure_protocols(level: str, num_bits: int, hamming: str, **settings: Any) -> Any:
    """Return XCLP's protocols, whose `exchange` a `fedjax_ssl.graph.Exchange` is.

    Args:
        level: "ideal", "accounted" or "real", see `fedjax_ssl.secure.levels`.
        num_bits: L.
        hamming: protocol of the distances.
        **settings: settings of `fedjax_ssl.secure.Protocols`.

    Raises:
        ValueError: the folder `secure` is missing.
    """
    if importlib.util.find_spec(_SECURE) is None:
        raise ValueError(f"protocol is {level!r}, which needs the folder {_SECURE}; use none")
    return _found(f"{_SECURE}:protocols")(level, num_bits, hamming=hamming, **settings)


def _found(one: Any) -> Any:
    """Import "module:name"; return anything else unchanged."""
    if not isinstance(one, str):
        return one
    module, _, attribute = one.partition(":")
    return getattr(importlib.import_module(module), attribute)


def takes_array(parameter: inspect.Parameter) -> bool:
    """Return whether the annotation of a parameter allows an array too, such as `float | Array`."""
    # imported here: it needs jax, which `fedjax-ssl --help` does not
    from jaxtyping import Array

    parts = typing.get_args(_plain(parameter.annotation))
    return Array in parts and bool not in parts  # `ArrayLike` may also decide code


def _plain(annotation: Any) -> Any:
    return (
        typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation
    )


def _first_words(builder: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(builder) or "").split("\n\n")[0].split())


def option_of(parameter: inspect.Parameter) -> Option:
    """Read the option declared by a parameter."""
    kind = _stored(parameter)
    allowed = declared(parameter.annotation) or _ANY_NUMBER.get(kind)
    marks = getattr(parameter.annotation, "__metadata__", ())
    changes = next((one.word for one in marks if isinstance(one, Changes)), "")
    needs = next((one.condition for one in marks if isinstance(one, UsedWith)), "")
    return Option(
        kind,
        parameter.default,
        takes_none(parameter),
        allowed,
        takes_array(parameter),
        changes=changes,
        needs=needs,
    )


def _stored(parameter: inspect.Parameter) -> type:
    """Return the type in a config for a parameter: `float | Array | None` is stored as float; among
    several types of numbers, as in `jax.typing.ArrayLike`, the default's type counts.
    """
    annotation = _plain(parameter.annotation)
    if annotation is parameter.empty and parameter.default is not parameter.empty:
        return type(parameter.default)
    origin = typing.get_origin(annotation)
    parts = typing.get_args(annotation)
    if origin is Literal:
        return type(parts[0])
    if {bool, int, float} <= {*parts}:
        return type(parameter.default) if isinstance(parameter.default, bool | int) else float
    for part in map(_plain, parts if origin in (types.UnionType, typing.Union) else (annotation,)):
        if part in (bool, int, float, str):
            return part
        if typing.get_origin(part) is Literal:
            return type(typing.get_args(part)[0])
        if typing.get_origin(part) is not None:
            return tuple
    return str
