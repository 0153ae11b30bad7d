"""A pytree of JAX state as plain named arrays, and back to the last bit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Leaf(NamedTuple):
    """What a stored leaf is, beside its numbers."""

    name: str  # its path in the pytree, as jax.tree_util.keystr writes it
    dtype: str  # of the stored array
    shape: list[int]  # of the stored array
    key_impl: str | None  # the generator's name if the leaf is a typed PRNG key, stored as its key data


def to_arrays(state: Any) -> tuple[list[Leaf], list[np.ndarray]]:
    """Takes a pytree apart into host arrays.

    Args:
        state: pytree of arrays, typed PRNG keys and Python scalars; arrays that lie on devices of other processes too
            are whole on each of them.

    Returns:
        The leaves' descriptions, and their arrays, both in the pytree's order.
    """
    names = _names(state)
    leaves = [_local(leaf) for leaf in jax.tree.leaves(state)]
    impls = [str(jax.random.key_impl(leaf)) if _is_key(leaf) else None for leaf in leaves]
    raw = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in leaves]
    arrays = [np.asarray(array) for array in jax.device_get(raw)]
    described = [
        Leaf(name, str(array.dtype), list(array.shape), impl)
        for name, array, impl in zip(names, arrays, impls, strict=True)
    ]
    return described, arrays


def differences(template: Any, stored: list[Leaf]) -> list[str]:
    """Compares a template with what is stored.

    Args:
        template: pytree of arrays or jax.ShapeDtypeStruct with the structure, shapes and types asked for.
        stored: descriptions from `to_arrays`.

    Returns:
        One line per leaf that is missing, superfluous, or of another shape or type; empty when it fits.
    """
    wanted = {name: _describe(leaf) for name, leaf in zip(_names(template), jax.tree.leaves(template), strict=True)}
    found = {leaf.name: _text(leaf.dtype, leaf.shape, leaf.key_impl) for leaf in stored}
    return [
        f"state{name}: stored {found.get(name, 'nothing')}, expected {wanted.get(name, 'nothing')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def from_arrays(template: Any, stored: list[Leaf], arrays: list[np.ndarray]) -> Any:
    """Puts a pytree together again.

    Args:
        template: as in `differences`, which must have found none. A leaf that lives on chosen devices tells
            where its successor goes; the others go to the default device.
        stored: descriptions from `to_arrays`.
        arrays: in the order of `stored`.

    Returns:
        A pytree like the template: JAX arrays, typed keys, and NumPy arrays and Python scalars where the
        template has them.
    """
    by_name = {leaf.name: (leaf, array) for leaf, array in zip(stored, arrays, strict=True)}
    pairs = zip(_names(template), jax.tree.leaves(template), strict=True)
    leaves = [_rebuild(leaf, *by_name[name]) for name, leaf in pairs]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _names(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _local(leaf: Any) -> Any:
    """The copy on a device of this process: what is computed with it takes no other process."""
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable else leaf


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _describe(leaf: Any) -> str:
    if _is_key(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf)
        return _text(str(data.dtype), list(data.shape), str(jax.random.key_impl(leaf)))
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return _text(str(array.dtype), list(array.shape), None)


def _text(dtype: str, shape: list[int], key_impl: str | None) -> str:
    return f"{'' if key_impl is None else f'{key_impl} key as '}{dtype}{shape}"


def _rebuild(template: Any, stored: Leaf, array: np.ndarray) -> Any:
    if isinstance(template, np.ndarray):
        return array
    if isinstance(template, bool | int | float | complex):
        return array.item()
    value = jnp.asarray(array)
    if stored.key_impl is not None:
        value = jax.random.wrap_key_data(value, impl=stored.key_impl)
    # An uncommitted leaf stays one: pinned to a device it could not meet arrays that live on a mesh.
    sharding = getattr(template, "sharding", None)
    committed = getattr(template, "committed", sharding is not None)
    return jax.device_put(value, sharding) if sharding is not None and committed else value
