"""Floating-point operations: how many a training example takes, and how many this machine does per second."""

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from fedjax_ssl.models import Model

_LARGE, _SMALL = 8192, 2048  # side of the measured product on accelerators and on CPU


def training_operations_per_example(model: Model, input_shape: tuple[int, ...]) -> int:
    """Operations in the matrix products and convolutions of one training example, forward and backward.

    Every product of the forward pass comes back twice in the backward pass, for the gradients of its two factors; the
    first layer's inputs need none.

    Args:
        model: a network whose forward pass starts with a layer that has weights.
        input_shape: shape of one example.

    Returns:
        Twice the number of multiplications.
    """
    params, state = jax.eval_shape(model.init, jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((1, *input_shape), jnp.result_type(float))
    forward = jax.make_jaxpr(lambda p, s, x: model.apply(p, s, x, train=False)[0])(params, state, inputs)
    products = _products(forward.jaxpr)
    return 3 * sum(products) - products[0]


def _products(jaxpr: core.Jaxpr) -> list[int]:
    """Operations of every product in a traced function, in order; loops count as often as they run."""
    found: list[int] = []
    for equation in jaxpr.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = _shape(equation.invars[0])
            depth = math.prod(left[axis] for axis in contracted)
            found.append(2 * depth * math.prod(_shape(equation.outvars[0])))
        elif equation.primitive.name == "conv_general_dilated":
            kernel = _shape(equation.invars[1])
            filters = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
            found.append(2 * math.prod(_shape(equation.outvars[0])) * math.prod(kernel) // filters)
        for inner in core.jaxprs_in_params(equation.params):
            found += [times * count for count in _products(inner)]
    return found


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def product_operations_per_second(seconds: float = 0.5) -> float:
    """The best rate of a large square matrix product in the default precision of float32, on one device.

    Args:
        seconds: how long to try.
    """
    side = _SMALL if jax.default_backend() == "cpu" else _LARGE
    matrix = jnp.full((side, side), 1 / side, jnp.float32)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best
