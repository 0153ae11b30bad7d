import jax
import pytest


@pytest.fixture
def exact():
    """Runs a test in float64, as the makers of fixtures do, so that what differs is no rounding."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield
