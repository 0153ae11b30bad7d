"""What programs are traced for: the backend that JAX computes on here, or a device that is not here.

Code that takes one way on a CPU and another one on accelerators asks `backend`. JAX's own answer is this machine's,
which is wrong for a program that is compiled here to run elsewhere.
"""

import contextlib
import importlib.util
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import jax
from jax.sharding import AbstractDevice, AbstractMesh

_AMPERE = 8.0  # its compute capability


class Elsewhere(NamedTuple):
    """A device that is not here."""

    device: AbstractDevice  # as JAX would describe it
    memory: int  # bytes that a program may fill

    @property
    def backend(self) -> str:
        """As `jax.default_backend` would name it: "gpu" or "tpu"."""
        return str(self.device.platform)


_ELSEWHERE: ContextVar[Elsewhere | None] = ContextVar("elsewhere", default=None)


def backend() -> str:
    """What a program that is traced now will run on: "cpu", "gpu" or "tpu"."""
    there = _ELSEWHERE.get()
    return jax.default_backend() if there is None else there.backend


def compiles_kernels() -> bool:
    """Whether it is a GPU whose compiler takes kernels written with Pallas (Triton): NVIDIA's from Ampere on.

    JAX 0.12 announces that a later version will do without Triton; then the answer is no, and XLA's convolutions are
    taken.
    """
    if backend() != "gpu" or importlib.util.find_spec("jax.experimental.pallas.triton") is None:
        return False
    if elsewhere() is not None:
        return True
    try:
        return float(jax.devices()[0].compute_capability) >= _AMPERE
    except (AttributeError, ValueError):  # other makers' have none, or one that is no number
        return False


def elsewhere() -> Elsewhere | None:
    """The device that is not here; None where programs run on this machine."""
    return _ELSEWHERE.get()


@contextlib.contextmanager
def tracing_for(there: Elsewhere) -> Iterator[None]:
    """Everything that is traced within is traced for a device that is not here."""
    jax.clear_caches()  # of functions that were traced for this machine
    token = _ELSEWHERE.set(there)
    try:
        # Pallas asks JAX's context for what it compiles. A mesh without axes shares nothing, and names the device.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=there.device)):
            yield
    finally:
        _ELSEWHERE.reset(token)
        jax.clear_caches()
