import jax
import pytest

from fedjax_ssl.data import FederatedData
from tests.methods.whole_step import harness


@pytest.fixture(autouse=True)
def _float64():
    """The reference is NumPy in float64, and so are these steps."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def data() -> FederatedData:
    """Clients with many, few and no labels."""
    return harness.federation()
