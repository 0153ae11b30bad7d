"""What a run tells the compiler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.runs import compile as programs


def test_a_processors_programs_take_less_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    level, width = {"xla_backend_optimization_level": 1}, {"xla_cpu_prefer_vector_width": 512}
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    told = programs.compiler_options()
    passes = {"xla_disable_hlo_passes": told["xla_disable_hlo_passes"]}
    assert told == level | passes | width
    loops, barriers = passes["xla_disable_hlo_passes"].rsplit(",", 1)
    assert "simplify-while-loops" in loops and barriers == "cse_barrier_expander"
    assert programs.compiler_options(barriers=False) == level | {"xla_disable_hlo_passes": loops} | width
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert programs.compiler_options() == passes | width
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=algsimp")
    assert programs.compiler_options() == level | width


def test_an_accelerators_compiler_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "backend", lambda: "gpu")
    assert programs.compiler_options() == {}


def test_a_loop_that_takes_no_barrier_is_compiled_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")

    @jax.jit
    def doubled(number: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, x: 2 * jax.lax.optimization_barrier(x + 1), number)

    lowered = doubled.lower(jnp.float32(1))
    with pytest.raises(jax.errors.JaxRuntimeError, match="opt-barrier"):
        lowered.compile(compiler_options=programs.compiler_options())
    np.testing.assert_array_equal(programs.compiled_program(lowered)(jnp.float32(1)), 22)
