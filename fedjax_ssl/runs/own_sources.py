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
    """Find the function of a name, without the arguments that are bound to it."""
    found: Any = registry.builder(name)
    return found.func if isinstance(found, partial) else found


def _names(config: ml_collections.ConfigDict) -> Iterator[str]:
    """Find what a config names, as "module:attribute", also what is registered under a name."""
    for value in flatten_dict(config.to_dict(), sep=".").values():
        yield from (map(str, value) if isinstance(value, tuple | list) else [str(value)])
    for section, registry in configs.REGISTRIES.items():
        builder = _builder(registry, config[section].name)
        yield f"{builder.__module__}:"


def registered_in_words(config: ml_collections.ConfigDict) -> Iterator[str]:
    """Say which names of a config this session has registered, so that another one does not know
    them.
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
    """Give digests of the modules of a user's own that a config names, and of those beside them."""
    return digests(_names(config))


def copies(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Give the text of these modules, by their path from a folder of modules on."""
    found = {}
    for name, (file, text) in sources(_names(config)).items():
        path = name.replace(".", "/")
        found[path + ("/__init__.py" if file.name == "__init__.py" else ".py")] = text
    return found


def draws() -> dict[str, Any]:
    """Give the settings of JAX by which a seed decides what is drawn."""
    return {name: getattr(jax.config, name, None) for name in _DRAWS}
