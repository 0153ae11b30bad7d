"""Parameters in few arrays, for loops of local steps.

Loops on a CPU are slow with dozens of small arrays (jax issue 26145). One vector of everything is
slow too: it must be cut into weights before every step and joined again after it, and for a large
layer this takes as long as its matrix product. So large arrays stay as they are, and all small ones
share a vector.

XLA repeats a cheap computation in every kernel that uses its value, and compiles equal kernels
once. If every layer of a network uses such a value, no two layers have equal kernels. `apart` ends
a kernel at the value, so that programs for a CPU have fewer kernels to compile.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from fedjax_ssl.backend import backend
from fedjax_ssl.federated.contract import Packed, Packing

PyTree = Any
LARGE = 4096  # elements; smaller arrays share a vector
MANY = 8  # pieces of a vector; from here on they are cut out before use


def packing(tree: PyTree) -> Packing:
    """Return the packing of trees with the structure and shapes of `tree`."""
    leaves, structure = jax.tree.flatten(tree)
    large = [leaf.size >= LARGE for leaf in leaves]

    def small(leaves: list[Array]) -> list[Array]:
        return [leaf for leaf, is_large in zip(leaves, large, strict=True) if not is_large]

    _, unravel = ravel_pytree(small(leaves))

    def pack(tree: PyTree) -> Packed:
        leaves = jax.tree.leaves(tree)
        alone = tuple(leaf for leaf, is_large in zip(leaves, large, strict=True) if is_large)
        return alone if all(large) else (*alone, ravel_pytree(small(leaves))[0])

    def unpack(packed: Packed) -> PyTree:
        alone = iter(packed[: sum(large)])
        together = iter([] if all(large) else cut(unravel, packed[-1]))
        return jax.tree.unflatten(
            structure, [next(alone) if is_large else next(together) for is_large in large]
        )

    return Packing(pack, unpack)


def apart(values: PyTree) -> PyTree:
    """Return the same values, which a CPU then computes once, and not again in every kernel that
    uses them.
    """
    return lax.optimization_barrier(values) if backend() == "cpu" else values


def cut(unravel: Callable[[Array], PyTree], vector: Array) -> PyTree:
    """Return `unravel(vector)`, with its arrays cut out before they are used.

    Equal layers lie at different places of the vector, so kernels that contain the cut would all
    differ.

    Args:
        unravel: cuts a vector into arrays.
        vector: all of them in one vector.
    """
    number = len(jax.tree.leaves(jax.eval_shape(unravel, vector)))
    return unravel(vector) if number < MANY else apart(unravel(apart(vector)))
