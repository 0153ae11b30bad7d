"""The backend of JAX, for code that differs between CPUs and accelerators."""

import jax


def backend() -> str:
    """Return the backend of JAX: "cpu", "gpu" or "tpu"."""
    return jax.default_backend()
