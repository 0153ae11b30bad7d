"""The backend that JAX computes on: code that takes one way on a CPU and another one on
accelerators asks it.
"""

import jax


def backend() -> str:
    """Name the backend that JAX computes on: "cpu", "gpu" or "tpu"."""
    return jax.default_backend()
