"""Wrappers: functions that take the recipe of any method and return another one.

`config.personalize` names one wrapper with its options, `config.around` several without options,
and "module:function" is one of your own. `fs.register("around", name, wrapper)` adds one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedjax_ssl.errors import naming
from fedjax_ssl.own_code import blame, said
from fedjax_ssl.registry import Registry, contributed

if TYPE_CHECKING:
    from fedjax_ssl.federated import Facts, Recipe

WRAPPERS: "Registry[Recipe]" = Registry(
    "wrapper",
    {
        "none": (f"{__name__}:as_it_is", "clients have the global model"),
        "slow_clients": "fedjax_ssl.methods.around.slow_clients:slow_clients",
        **contributed("wrapper"),
    },
    leading=1,
    given=("facts",),
    makes="fedjax_ssl.federated.recipe:Recipe",
)


def as_it_is(recipe: Any) -> Any:
    """Change nothing."""
    # Not imported for type checkers alone: registries read annotations.
    return recipe


def personalized(recipe: "Recipe", name: str = "none", **options: Any) -> "Recipe":
    """Apply a wrapper with its options to a recipe.

    Args:
        recipe: recipe of any method.
        name: name of `WRAPPERS`, or "module:function".
        **options: the wrapper's options, and `facts`, sizes of the run, if it has such a parameter.

    Raises:
        ConfigError: the name is unknown, the wrapper does not fit the method, or it raised an error
            or returned no recipe.
    """
    with naming("personalize"):
        return _around(recipe, name, **options)


def partly_trained(recipe: "Recipe", train: str) -> "Recipe":
    """Train the part of the network that `config.model.train` names; raise ConfigError if that is
    impossible.
    """
    from fedjax_ssl.methods.around.trained_part import with_trained_part

    with naming("model"):
        return with_trained_part(recipe, train)


def wrapped(recipe: "Recipe", names: Sequence[str], facts: "Facts | None" = None) -> "Recipe":
    """Apply wrappers to a recipe, the first one innermost.

    Args:
        recipe: recipe of any method.
        names: names of wrappers.
        facts: sizes of the run, for wrappers with a parameter of this name.

    Raises:
        ConfigError: as `personalized`.
    """
    for name in names:
        with naming("around"):
            recipe = _around(recipe, name, facts=facts)
    return recipe


def _around(recipe: "Recipe", name: str, **options: Any) -> "Recipe":
    try:
        return WRAPPERS.build(name, recipe, **options)
    except ValueError:  # its message already says what to do
        raise
    except Exception as error:
        what = blame(error) or f"{type(error).__name__}: {said(error)}"
        raise ValueError(f"{name} raised {what}") from error
