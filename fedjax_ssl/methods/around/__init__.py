"""Wrappers: functions that take the recipe of any method and return another one.

`config.around` names them, `fs.register("around", name, wrapper)` adds one, and "module:function"
is one of your own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedjax_ssl.errors import naming
from fedjax_ssl.own_code import blame, said
from fedjax_ssl.registry import Registry, contributed

if TYPE_CHECKING:
    from fedjax_ssl.federated import Facts, Recipe

AROUND: "Registry[Recipe]" = Registry(
    "wrapper",
    {"slow_clients": "fedjax_ssl.methods.around.slow_clients:slow_clients"},
    leading=1,
    given=("facts",),
    makes="fedjax_ssl.federated.recipe:Recipe",
)

# Wrappers with settings of their own, one of which `config.personalize` names.
PERSONALIZATIONS: "Registry[Recipe]" = Registry(
    "personalization",
    {
        "none": (f"{__name__}:as_it_is", "clients have the global model"),
        **contributed("personalization"),
    },
    leading=1,
    makes="fedjax_ssl.federated.recipe:Recipe",
)


def as_it_is(recipe: Any) -> Any:
    """Change nothing: clients predict as the method has it."""
    # registries read annotations, so that a type imported for checkers alone cannot be one
    return recipe


def personalized(recipe: "Recipe", name: str = "none", **options: Any) -> "Recipe":
    """Let every client have a model of its own.

    Args:
        recipe: of any method.
        name: of `PERSONALIZATIONS`, or "module:function".
        **options: its own.

    Raises:
        ConfigError: nobody knows the name, or the method is one that it is not for.
    """
    with naming("personalize"):
        return PERSONALIZATIONS.build(name, recipe, **options)


def partly_trained(recipe: "Recipe", train: str) -> "Recipe":
    """Train what `config.model.train` says of the network; raises ConfigError where it cannot."""
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
        ConfigError: nobody knows a name, or a wrapper raised an error or returned no recipe.
    """
    for name in names:
        with naming("around"):
            try:
                recipe = AROUND.build(name, recipe, facts=facts)
            except ValueError:  # its message says what to do
                raise
            except Exception as error:
                what = blame(error) or f"{type(error).__name__}: {said(error)}"
                raise ValueError(f"{name} raised {what}") from error
    return recipe
