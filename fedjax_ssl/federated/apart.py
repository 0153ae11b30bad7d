"""Where a kernel of a compiled program ends, so that programs for a CPU have fewer kernels to compile.

XLA computes what is cheap wherever it is used, in one kernel with what uses it, and compiles equal kernels once. Where
every layer of a network uses such a value, no two layers are equal.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jaxtyping import Array

from fedjax_ssl.backend import backend

PyTree = Any
MANY = 8  # pieces of a vector


def apart(values: PyTree) -> PyTree:
    """The same values; on a CPU they are computed once, and not again by everything that uses them."""
    return lax.optimization_barrier(values) if backend() == "cpu" else values


def cut(unravel: Callable[[Array], PyTree], vector: Array) -> PyTree:
    """`unravel(vector)`, whose arrays are cut out before they are used.

    Equal layers lie at different places of the vector: together with the cut, none of their kernels would be equal.

    Args:
        unravel: cuts a vector into arrays.
        vector: of all of them.
    """
    number = len(jax.tree.leaves(jax.eval_shape(unravel, vector)))
    return unravel(vector) if number < MANY else apart(unravel(apart(vector)))
