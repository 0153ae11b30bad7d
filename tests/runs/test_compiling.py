"""What a run tells the compiler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.runs import compiler


def test_a_loop_that_takes_no_barrier_is_compiled_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")

    @jax.jit
    def doubled(number: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, x: 2 * jax.lax.optimization_barrier(x + 1), number)

    lowered = doubled.lower(jnp.float32(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="opt-barrier"):
        lowered.compile(compiler_options=compiler.compiler_options())
    np.testing.assert_array_equal(compiler.compiled_program(lowered)(jnp.float32(1)), 22)
