"""Published methods, one recipe per file, by the name used in `config.method.name`.

A recipe of your own is named "module:function", for example `--config.method.name=my_methods:entropy`.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from fedjax_ssl.federated import Method, Setup
from fedjax_ssl.methods.fedavg import fedavg
from fedjax_ssl.methods.fedllp import fedllp, fedllp_vat
from fedjax_ssl.methods.fedmt import fedmt
from fedjax_ssl.methods.fedpl import fedpl
from fedjax_ssl.methods.fedsem import fedsem
from fedjax_ssl.methods.fedsiam import fedsiam
from fedjax_ssl.methods.fedtrans import fedtrans
from fedjax_ssl.methods.fedul import fedul
from fedjax_ssl.methods.mixed import mixed
from fedjax_ssl.methods.network_pseudo_label import network_pseudo_label
from fedjax_ssl.methods.parts.channel_terms import check_channels
from fedjax_ssl.methods.per_client_lp import per_client_lp
from fedjax_ssl.methods.protofssl import protofssl
from fedjax_ssl.methods.semifl import semifl
from fedjax_ssl.methods.single import single
from fedjax_ssl.methods.xclp import xclp
from fedjax_ssl.registry import did_you_mean

_RECIPES: dict[str, Callable[..., Method]] = {
    recipe.__name__: recipe
    for recipe in (
        fedavg,
        xclp,
        per_client_lp,
        network_pseudo_label,
        fedsem,
        fedsiam,
        fedul,
        fedpl,
        fedllp,
        fedllp_vat,
        single,
        semifl,
        fedmt,
        fedtrans,
        protofssl,
        mixed,
    )
}


def available() -> dict[str, str]:
    """Names of all methods with one line about each."""
    return {name: (recipe.__doc__ or "").splitlines()[0] for name, recipe in _RECIPES.items()}


def settings(name: str) -> dict[str, Any]:
    """The method's own settings with their defaults, as `config.method` holds them beside `name`.

    Raises:
        ValueError: for an unknown method, naming the nearest one.
    """
    parameters = inspect.signature(_recipe(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def build(name: str, setup: Setup, **options: Any) -> Method:
    """Builds a method by name.

    Args:
        name: one of `available()`.
        setup: what the run decides.
        **options: the method's own settings; see `settings(name)`.

    Raises:
        ValueError: for an unknown method or setting.
    """
    recipe, known = _recipe(name), settings(name)
    for option in options:
        if option not in known:
            raise ValueError(f"method {name} has no setting {option!r}; it has: {', '.join(known) or 'none'}")
    return recipe(setup, **options)


def _recipe(name: str) -> Callable[..., Method]:
    module, _, function = name.partition(":")
    if function:
        try:
            return getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"method {name!r} is not there: {error}") from error
    if name not in _RECIPES:
        raise ValueError(f"unknown method {name!r}.{did_you_mean(name, _RECIPES)} Available: {', '.join(_RECIPES)}")
    return _RECIPES[name]


__all__ = ["available", "build", "check_channels", "settings"]
