"""Options of XLA for the programs of a run."""

import os
from collections.abc import Callable
from typing import Any

import jax

from fedjax_ssl.backend import backend

# XLA's passes that rewrite loops, one bit for each of up to 16 iterations of all passes. On CPUs
# nothing was slower without them.
_REWRITING_LOOPS = (
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-constant-sinking",
)
_LEFT_OUT = (*_REWRITING_LOOPS, "reshape-mover")


def compiled_program(lowered: jax.stages.Lowered) -> Callable[..., Any]:
    """Compile a program with the options for runs."""
    try:
        return lowered.compile(compiler_options=compiler_options())
    except jax.errors.JaxRuntimeError as error:
        if "opt-barrier" not in str(error):
            raise
        # XLA writes a loop over a handful of numbers as one kernel, in which a barrier is
        # impossible.
        return lowered.compile(compiler_options=compiler_options(barriers=False))


def compiler_options(barriers: bool = True) -> dict[str, Any]:
    """Return XLA's options; on CPUs they compile less and use AVX-512 (docs/speed.md).

    LLVM optimizes less, loops are not rewritten, and barriers stay until operations are fused to
    kernels, as on accelerators, see `fedjax_ssl.federated.packing`. Vectors have 512 bits if the
    processor supports it, not XLA's default of 256. Options in $XLA_FLAGS have priority.

    Args:
        barriers: keep barriers.
    """
    if backend() != "cpu":
        return {}
    left_out = [*_LEFT_OUT, "cse_barrier_expander"] if barriers else _LEFT_OUT
    options: dict[str, Any] = {
        "xla_backend_optimization_level": 1,
        "xla_cpu_prefer_vector_width": 512,
        "xla_disable_hlo_passes": ",".join(left_out),
    }
    return {
        name: value
        for name, value in options.items()
        if name not in os.environ.get("XLA_FLAGS", "")
    }
