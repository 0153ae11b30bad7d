"""What tests of convolutions share: inputs, and a run with its gradients."""

import jax
import jax.numpy as jnp
import numpy as np


def arrays(*shapes):
    """Standard normal numbers, the same every time."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def run(function, *arguments):
    """Outputs and gradients of a convolution, with cosines of the outputs as the loss."""
    outputs, pull = jax.vjp(function, *arguments)
    return outputs, *pull(jnp.cos(outputs))
