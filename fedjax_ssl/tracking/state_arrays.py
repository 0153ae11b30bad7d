"""A pytree of JAX state as plain named arrays, and back to the last bit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class StoredArray(NamedTuple):
    """What a stored array is, beside its numbers."""

    name: str  # its path in the pytree, as jax.tree_util.keystr writes it
    dtype: str
    shape: list[int]
    key_impl: str | None  # the generator's name if this is the data of a typed PRNG key

    def __str__(self) -> str:
        return f"{'' if self.key_impl is None else f'{self.key_impl} key as '}{self.dtype}{self.shape}"


def to_arrays(state: Any) -> tuple[list[StoredArray], list[np.ndarray]]:
    """Takes a pytree apart into host arrays.

    Args:
        state: pytree of arrays, typed PRNG keys and Python scalars; arrays that lie on devices of other processes too
            are whole on each of them.

    Returns:
        The arrays' descriptions, and the arrays, both in the pytree's order.
    """
    leaves = [_local(leaf) for leaf in jax.tree.leaves(state)]
    data = jax.device_get([jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves])
    return _describe(state), [np.asarray(array) for array in data]


def tree_bytes(state: Any) -> int:
    """Bytes that the arrays of a pytree take in a checkpoint."""
    return sum(int(np.prod(one.shape, dtype=np.int64)) * np.dtype(one.dtype).itemsize for one in _describe(state))


def differences(template: Any, stored: list[StoredArray]) -> list[str]:
    """Compares a template with what is stored.

    Args:
        template: pytree of arrays or jax.ShapeDtypeStruct with the structure, shapes and types asked for.
        stored: descriptions from `to_arrays`.

    Returns:
        One line per array that is missing, superfluous, or of another shape or type; empty when it fits.
    """
    wanted = {array.name: str(array) for array in _describe(template)}
    found = {array.name: str(array) for array in stored}
    return [
        f"state{name}: stored {found.get(name, 'nothing')}, expected {wanted.get(name, 'nothing')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def from_arrays(template: Any, stored: list[StoredArray], arrays: list[np.ndarray]) -> Any:
    """Puts a pytree together again.

    Args:
        template: as in `differences`, which must have found none. A leaf that lives on chosen devices tells
            where its successor goes; the others go to the default device.
        stored: descriptions from `to_arrays`.
        arrays: in the order of `stored`; they are copied.

    Returns:
        A pytree like the template: JAX arrays, typed keys, and NumPy arrays and Python scalars where the
        template has them.
    """
    by_name = {one.name: (one.key_impl, array) for one, array in zip(stored, arrays, strict=True)}
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _rebuild(leaf, *by_name[jax.tree_util.keystr(path)]), template
    )


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _local(leaf: Any) -> Any:
    """The copy on a device of this process: what is computed with it takes no other process."""
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable else leaf


def _describe(tree: Any) -> list[StoredArray]:
    described = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        impl = str(jax.random.key_impl(leaf)) if is_key(leaf) else None
        array = jax.eval_shape(jax.random.key_data, leaf) if impl else leaf
        array = array if hasattr(array, "dtype") else np.asarray(array)
        described.append(StoredArray(jax.tree_util.keystr(path), str(array.dtype), list(array.shape), impl))
    return described


def _rebuild(template: Any, key_impl: str | None, array: np.ndarray) -> Any:
    if isinstance(template, np.ndarray):
        return array.copy()
    if isinstance(template, bool | int | float | complex):
        return array.item()
    value = jnp.array(array)
    if key_impl is not None:
        value = jax.random.wrap_key_data(value, impl=key_impl)
    # An uncommitted leaf stays one: pinned to a device it could not meet arrays that live on a mesh.
    sharding = getattr(template, "sharding", None)
    committed = getattr(template, "committed", sharding is not None)
    return jax.device_put(value, sharding) if sharding is not None and committed else value
