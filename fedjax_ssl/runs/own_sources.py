"""Code of a user's own that a config names, known by content, and JAX's settings that
decide draws: what decides a run beside its config and its data.
"""

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl import config as configs
from fedjax_ssl.own_code import definitions, fingerprint, source

# Fields whose code decides no network: data are known by their content.
HARMLESS = ("metrics", "data.name")
_PACKAGE = __name__.partition(".")[0]
_DRAWS = (
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_threefry_partitionable",
    "jax_random_seed_offset",
)


def names(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Find what a config names of a user's own.

    Args:
        config: resolved, and built: its modules are imported.

    Returns:
        By "module:attribute", one field that names it; one that decides the network goes first.
    """
    found = [(name, field) for field, name in _named(config)]
    return dict(found) | {name: field for name, field in found if field not in HARMLESS}


def _named(config: ml_collections.ConfigDict) -> Iterator[tuple[str, str]]:
    for field, value in flatten_dict(config.to_dict(), sep=".").items():
        for text in value if isinstance(value, tuple | list) else (value,):
            module, _, attribute = str(text).partition(":")
            if attribute and hasattr(sys.modules.get(module), attribute):
                yield field, str(text)
    for section, registry in configs.REGISTRIES.items():
        builder: Any = registry.builder(config[section].name)
        builder = builder.func if isinstance(builder, partial) else builder
        name = f"{builder.__module__}:{getattr(builder, '__name__', '')}"
        if definitions(name):  # registered under a name of the user's own
            yield f"{section}.name", name


def registered_in_words(config: ml_collections.ConfigDict) -> Iterator[str]:
    """Say which names of a config this session has registered, so that another one does not know
    them.
    """
    for section, registry in configs.REGISTRIES.items():
        name = config[section].name
        builder: Any = registry.builder(name)
        builder = builder.func if isinstance(builder, partial) else builder
        if ":" not in name and not (builder.__module__ or "").startswith(f"{_PACKAGE}."):
            yield (
                f"{registry.kind} {name!r} is registered in this session: another one has to "
                "register it too (fs.register) before it loads this run or goes on with it"
            )


def code(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Give the fingerprints of `names`."""
    return {name: fingerprint(name) for name in names(config)}


def copies(config: ml_collections.ConfigDict) -> dict[str, str]:
    """Give the files that `names` are defined in, by their path from a folder of modules on."""
    found = {}
    for name in names(config):
        for one, (file, _) in definitions(name).items():
            module = one.partition(":")[0]
            path = module.replace(".", "/")
            path += "/__init__.py" if file.name == "__init__.py" else ".py"
            found[path] = source(module)
    return found


def draws() -> dict[str, Any]:
    """Give the settings of JAX by which a seed decides what is drawn."""
    return {name: getattr(jax.config, name, None) for name in _DRAWS}
