"""Published methods by their name in `config.method.name`, imported on first use.

A recipe of your own is named "module:function", for example
`--config.method.name=my_methods:entropy`.

Example:
    >>> fs.methods.available()["fedavg"]
    'FedAvg (or whatever federated optimizer the run names) on labelled examples of clients...'
    >>> fs.methods.settings("fedsem")
    {'warmup_rounds': 0}
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedjax_ssl.checks import In, Whole
from fedjax_ssl.errors import check_known
from fedjax_ssl.registry import Option, Registry, contributed

if TYPE_CHECKING:
    from fedjax_ssl.federated import Facts, Method, Recipe, Setup

# File -> the recipes in it.
_RECIPES = {
    "fedavg": ("fedavg", "alone", "pooled"),
    "xclp": ("xclp", "per_client_lp"),
    "network_pseudo_label": ("network_pseudo_label", "fedsem"),
    "fedsiam": ("fedsiam",),
    "fedul": ("fedul",),
    "fedpl": ("fedpl",),
    "fedllp": ("fedllp", "fedllp_vat"),
    "semifl": ("single", "semifl"),
    "fedmt": ("fedmt",),
    "fedtrans": ("fedtrans",),
    "protofssl": ("protofssl",),
    "fedmatch": ("fedmatch",),
    "mixed": ("mixed",),
    "consistency": (
        "fixmatch",
        "uda",
        "mixmatch",
        "mean_teacher",
        "vat",
        "pi_model",
        "pseudo_label",
    ),
    "fedrgd": ("fedrgd",),
    "fedrep": ("fedrep",),
    "compose": ("compose",),
}


class Methods(Registry["Recipe | Method"]):
    """Methods by name; a composition has the options of its parts too."""

    def options_in(self, section: Mapping[str, Any]) -> dict[str, Option]:
        found = super().options_in(section)
        for part in _parts_of(section):
            own = {**OF_PARTS, **TERMS.options(part)}
            found |= {f"{short(part)}.{name}": one for name, one in own.items()}
        return found

    def meanings_in(self, section: Mapping[str, Any]) -> dict[str, str]:
        found = super().meanings_in(section)
        for part in _parts_of(section):
            common = {name: option.meaning for name, option in OF_PARTS.items()}
            own = {**common, **TERMS.meanings(part)}
            found |= {f"{short(part)}.{name}": one for name, one in own.items()}
        return found


def _parts_of(section: Mapping[str, Any]) -> Sequence[str]:
    """Return the parts of a composition."""
    if section["name"] != "compose":
        return ()
    parts = section.get("parts") or ()
    if not isinstance(parts, tuple | list):
        raise ValueError(f"parts is {parts!r}; it must be a tuple of names")
    for part in parts:
        check_is_term(part)
    return parts


def check_is_term(part: str) -> None:
    """Raise ValueError for a part of a composition that is unknown, or that is a whole method."""
    if ":" in str(part):
        return
    if part in METHODS and part not in TERMS:
        raise ValueError(
            f"the part {part!r} is a method with batches or stages of its own; run it by itself "
            f"with --method.name={part}, or take terms: {', '.join(TERMS)}"
        )
    check_known("part", part, [*TERMS])


def short(part: str) -> str:
    """Return the name of the section for a part of a composition."""
    return part.rpartition(":")[2]


# Settings that every part of a composition has besides its own.
OF_PARTS = {
    "weight": Option(float, 1.0, False, In("[0, inf)"), True, "factor of its losses"),
    "after": Option(int, 0, False, Whole(0), False, "rounds of the run before it joins the others"),
    "rise": Option(
        int, 0, False, Whole(0), False, "rounds in which its weight then rises to the whole"
    ),
}
_BUILDERS = {
    **{
        name: f"fedjax_ssl.methods.{file}:{name}"
        for file, names in _RECIPES.items()
        for name in names
    },
    **contributed("method"),
}
METHODS = Methods("method", _BUILDERS, leading=1)
POOLED = "pooled"  # the method whose federation is a single client, see `config.partition.pooled`
# Terms of compositions: losses without batches of their own.
TERMS: Registry[Any] = Registry(
    "term",
    {
        "supervised": "fedjax_ssl.methods.fedavg:supervised",
        "channels": "fedjax_ssl.methods.fedul:channels",
        "fedul": "fedjax_ssl.methods.fedul:channels",
        "sets": "fedjax_ssl.methods.fedul:sets",
        "coarse": "fedjax_ssl.methods.fedmt:coarse",
        "graph": "fedjax_ssl.methods.mixed:graph",
        "prototypes": "fedjax_ssl.methods.protofssl:prototypes",
        "fixmatch": "fedjax_ssl.methods.consistency:confident_term",
        **contributed("term"),
    },
    leading=1,
)
available = METHODS.available  # () -> names of all methods with one line about each


def __getattr__(name: str) -> Any:
    if name in METHODS:
        raise AttributeError(
            f"methods.build({name!r}, setup) builds this method; methods.settings({name!r}) has "
            "its settings"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def recipe(name: str, setup: "Setup", /, **settings: Any) -> "Recipe":
    """Return a method as data, which can be changed and wrapped.

    Raises:
        ValueError: as `build`, or for a method whose builder returns a `Method` and no `Recipe`.
    """
    from fedjax_ssl.federated import Recipe

    made = METHODS.build(name, setup, **settings)
    if not isinstance(made, Recipe):
        raise ValueError(
            f"{name} returned a {type(made).__name__}, to which nothing can be added; what "
            "has something around it returns a fedjax_ssl.Recipe"
        )
    return made._replace(name=short(name))


def build(
    name: str,
    setup: "Setup",
    /,
    around: Sequence[str] = (),
    facts: "Facts | None" = None,
    personalize: Mapping[str, Any] = MappingProxyType({"name": "none"}),
    train: str = "all",
    protect: "Callable[[Recipe], Recipe] | None" = None,
    **settings: Any,
) -> "Method":
    """Build a method.

    Args:
        name: one of `available()`, or "module:function".
        setup: the run.
        around: names of wrappers, the first one inside.
        facts: sizes of the run, for wrappers.
        personalize: name and options of a wrapper inside `around`, which may give clients their own
            models.
        train: trained part of the network, see `around.trained_part`.
        protect: privacy mechanism around all of it, see `fedjax_ssl.runs.privacy.Mechanism`.
        **settings: the method's own.

    Raises:
        ValueError: for an unknown method, a setting that it does not have or that is outside its
            range, a setup that it cannot be used with, or a builder of your own that returns
            neither a `Recipe` nor a `Method`.
    """
    from fedjax_ssl import federated
    from fedjax_ssl.methods.around import partly_trained, personalized, wrapped

    if around or personalize["name"] != "none" or train != "all" or protect is not None:
        inner = partly_trained(recipe(name, setup, **settings), train)
        whole = wrapped(personalized(inner, facts=facts, **personalize), around, facts)
        return federated.build(whole if protect is None else protect(whole))
    made = METHODS.build(name, setup, **settings)
    if isinstance(made, federated.Method):
        return made
    if not isinstance(made, federated.Recipe):
        raise ValueError(
            f"{name} returned {type(made).__name__}; it has to return a fedjax_ssl.Recipe"
        )
    return federated.build(made)


def settings(name: str) -> dict[str, Any]:
    """Return the method's own settings with their defaults, the fields of `config.method` besides
    `name`.

    Raises:
        ValueError: for an unknown method, naming the nearest one.
    """
    return {setting: option.default for setting, option in METHODS.options(name).items()}


def recommended(name: str) -> dict[str, Mapping[str, Any]]:
    """Return the config fields that a method recommends for small images, by the place of the
    labels, the usual place first.

    A file of your own can have a table `RECOMMENDED` too: recipe -> place -> fields.

    Raises:
        ValueError: for an unknown method, naming the nearest one.

    Example:
        >>> fs.methods.recommended("fedsem")["per_client"]["method.warmup_rounds"]
        40
    """
    from fedjax_ssl.methods.parts.recommended import AT_CLIENTS

    return _said_by_file(METHODS, name, "RECOMMENDED", {"per_client": AT_CLIENTS})


def fits(name: str, place: str) -> bool:
    """Return whether a method is made for labels at a place, that is, whether its file recommends
    settings for a place with no other kinds of labels.

    Args:
        name: name of the method.
        place: place of the labels, a name of `config.supervision.name`.

    Raises:
        ValueError: for an unknown method, naming the nearest one.

    Example:
        >>> fs.methods.fits("fedmatch", "per_client"), fs.methods.fits("semifl", "per_client")
        (True, False)
    """
    from fedjax_ssl.methods.parts.recommended import kinds_at

    there = kinds_at(place)
    if name == POOLED:  # its single client also has the server's labels
        return bool(there & {"labels", "server"})
    return any(kinds_at(own) <= there for own in recommended(name))


def _said_by_file(registry: Registry[Any], name: str, table: str, default: Any) -> Any:
    builder = registry.builder(name)
    # not an import: a function defined outside of a file has no module
    found = getattr(sys.modules.get(builder.__module__), table, {})
    return found.get(getattr(builder, "__name__", name), default)
