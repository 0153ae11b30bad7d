"""What tests of convolutions share: inputs, a run with its gradients, and what is traced for a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, jaxprs_in_params

from fedjax_ssl import backend
from fedjax_ssl.benchmarks import TARGETS


def arrays(*shapes):
    """Standard normal numbers, the same every time."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def run(function, *arguments):
    """Outputs and gradients of a convolution, with cosines of the outputs as the loss."""
    outputs, pull = jax.vjp(function, *arguments)
    return outputs, *pull(jnp.cos(outputs))


def operations(jaxpr: Jaxpr):
    """The operations of a function and of those that it calls, without those inside of kernels."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive.name != "pallas_call":
            for inner in jaxprs_in_params(equation.params):
                yield from operations(getattr(inner, "jaxpr", inner))


def traced_for_a_gpu(function, *arguments):
    """The operations of a function as it is traced for a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "clear_caches", lambda: None)  # what other tests compiled
        with backend.tracing_for(TARGETS["h100"].elsewhere):
            return list(operations(jax.make_jaxpr(lambda *given: function(*given))(*arguments).jaxpr))


def primitives(function, *arguments):
    """The names of these operations."""
    return [equation.primitive.name for equation in traced_for_a_gpu(function, *arguments)]
