"""Fingerprints of the user's own code that a config names, and of JAX's settings for random draws:
besides config and data, they determine a run.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl import config as configs
from fedjax_ssl.own_code import digests, sources
from fedjax_ssl.registry import Registry

_PACKAGE = __name__.partition(".")[0]
_DRAWS = (
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
)


def _builder(registry: Registry[Any], name: str) -> Any:
    """Return the function of a name, without its bound arguments."""
    found: Any = registry.builder(name)
    return found.func if isinstance(found, partial) else found


def _names(config: ml_collections.ConfigDict) -> Iterator[str]:
    """Return the names of user code in a config, as "module:attribute", including registered
    ones.
    """
    for value in flatten_dict(config.to_dict(), sep=".").values():
        yield from (map(str, value) if isinstance(value, tuple | list) else [str(value)])
    for section, registry in configs.REGISTRIES.items():
        builder = _builder(registry, config[section].name)
        yield f"{builder.__module__}:"


def registered_in_words(config: ml_collections.ConfigDict) -> Iterator[str]:
    """Return the names of a config that were registered in this session, in words, because another
    session does not know them.
    """
    for section, registry in configs.REGISTRIES.items():
        name = config[section].name
        builder = _builder(registry, name)
        if ":" not in name and not (builder.__module__ or "").startswith(f"{_PACKAGE}."):
            yield (
                f"{registry.kind} {name!r} is registered in this session: another one has to "
                "register it too (fs.register) before it loads this run or goes on with it"
            )


def code(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Return digests of the user's modules that a config names, and of the modules next to them."""
    return digests(_names(config))


def copies(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Return the text of these modules, by their relative path."""
    found = {}
    for name, (file, text) in sources(_names(config)).items():
        path = name.replace(".", "/")
        found[path + ("/__init__.py" if file.name == "__init__.py" else ".py")] = text
    return found


def draws() -> dict[str, Any]:
    """Return the settings of JAX that decide the random draws of a seed."""
    return {name: getattr(jax.config, name, None) for name in _DRAWS}
