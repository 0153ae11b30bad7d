"""What programs are traced for: the backend that JAX computes on here, or a device that is not here.

Code that takes one way on a CPU and another one on accelerators asks `backend`. JAX's own answer is this machine's,
which is wrong for a program that is compiled here to run elsewhere.
"""

import contextlib
import functools
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    """Whether programs are traced for a GPU for which this JAX compiles kernels written with Pallas and Triton.

    These are NVIDIA's from Ampere on. JAX 0.11 knows only some of them by name, and JAX 0.12 announces that a later
    version will do without Triton. Where the answer is no, the ways of XLA are taken. A GPU that is not here is taken
    for one of them.
    """
    return backend() == "gpu" and (elsewhere() is not None or why_no_kernels() is None)


@functools.cache
def why_no_kernels() -> str | None:
    """Why kernels written with Pallas and Triton are not compiled for the GPU that is here; None: they are."""
    device = jax.devices()[0]
    try:
        capability = float(device.compute_capability)
    except (AttributeError, ValueError):  # other makers' have none, or one that is no number
        return f"{device.device_kind} is none of NVIDIA's GPUs"
    if capability < _AMPERE:
        return f"{device.device_kind} has compute capability {capability}, and they need {_AMPERE}"
    return _why_not_lowered()


def _why_not_lowered() -> str | None:
    """Why JAX does not take such a kernel: tried with a small one."""
    try:
        from jax.experimental import pallas as pl

        shape = jax.ShapeDtypeStruct((16,), jnp.float32)
        double = pl.pallas_call(_double, out_shape=shape, **triton_options(warps=4))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that Triton will go
            jax.jit(double).lower(shape)
    except Exception as error:  # each version of JAX refuses in another way
        return f"jax {jax.__version__}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def _double(values: Any, doubled: Any) -> None:
    doubled[...] = 2 * values[...]


def triton_options(warps: int) -> dict[str, Any]:
    """How `pallas_call` compiles a kernel written for Triton: on a GPU with it, elsewhere step by step, interpreted.

    Args:
        warps: of a block, 4 or 8.
    """
    if backend() != "gpu":
        return {"interpret": True}
    # Only there: elsewhere its parts may not be installed.
    from jax.experimental.pallas import triton

    # Values that are read ahead lie in shared memory. Blocks of eight warps read more of them, and three turns of
    # theirs would not fit into the 100 KB of GPUs that are not made for data centres.
    return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=3 if warps == 4 else 2)}


def lowering_platforms() -> tuple[str, ...] | None:
    """For `jax.stages.Traced.lower`: what to compile for; None: what JAX computes on.

    For a GPU that is not here its compiler has to be named, since JAX would ask for a GPU that is (jax issue 23971).
    """
    there = elsewhere()
    return ("cuda",) if there is not None and there.backend == "gpu" else None


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
