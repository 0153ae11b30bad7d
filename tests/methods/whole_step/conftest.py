import jax
import pytest


@pytest.fixture(autouse=True)
def _float64():
    """The reference is NumPy in float64, and so are these steps."""
    with jax.enable_x64(True):
        yield
