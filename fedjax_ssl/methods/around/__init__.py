"""Wrappers: functions that take the recipe of any method and return another one.

`config.personalize` names one with its options, `config.around` several as they are, and
"module:function" is one of your own. `fs.register("around", name, wrapper)` adds one.
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
    # registries read annotations, so that a type imported for checkers alone cannot be one
    return recipe


def personalized(recipe: "Recipe", name: str = "none", **options: Any) -> "Recipe":
    """Put a wrapper with its options around a recipe.

    Args:
        recipe: of any method.
        name: of `WRAPPERS`, or "module:function".
        **options: its own, and `facts`, sizes of the run, for one that has such a parameter.

    Raises:
        ConfigError: nobody knows the name, the method is one that it is not for, or the wrapper
            raised an error or returned no recipe.
    """
    with naming("personalize"):
        return _around(recipe, name, **options)


def partly_trained(recipe: "Recipe", train: str) -> "Recipe":
    """Train the part of the network that `config.model.train` names; raises ConfigError if it
    cannot.
    """
    from fedjax_ssl.methods.around.trained_part import with_trained_part

    with naming("model"):
        return with_trained_part(recipe, train)


def wrapped(recipe: "Recipe", names: Sequence[str], facts: "Facts | None" = None) -> "Recipe":
    """Put wrappers around a recipe, the first one inside.

    Args:
        recipe: of any method.
        names: of wrappers.
        facts: sizes of the run, for those that have a parameter of this name.

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
    except ValueError:  # its message says what to do
        raise
    except Exception as error:
        what = blame(error) or f"{type(error).__name__}: {said(error)}"
        raise ValueError(f"{name} raised {what}") from error
