"""Where kernels end on a CPU."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedjax_ssl.federated.packing import MANY, cut, packing
from fedjax_ssl.runs import compiler

LAYERS = [jnp.full((4,), float(place)) for place in range(MANY)]


def test_arrays_cut_out_of_a_vector_are_cut_before_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vector, unravel = ravel_pytree(LAYERS)

    def use(vector: jax.Array) -> list[jax.Array]:
        return [2 * layer for layer in cut(unravel, vector)]

    lowered = jax.jit(use).lower(vector)
    # Otherwise every layer has a kernel with its place in it, which is compiled for this layer
    # alone.
    monkeypatch.setenv("XLA_FLAGS", "")
    compiled = compiler.compiled_program(lowered)
    assert "opt-barrier" in compiled.as_text()
    for layer, doubled in zip(LAYERS, compiled(vector), strict=True):
        np.testing.assert_array_equal(doubled, 2 * layer)


def test_few_arrays_and_those_of_an_accelerator_are_cut_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def barriers(layers: list[jax.Array]) -> int:
        vector, unravel = ravel_pytree(layers)
        return str(jax.make_jaxpr(partial(cut, unravel))(vector)).count("optimization_barrier")

    assert barriers(LAYERS) == 2
    assert barriers(LAYERS[1:]) == 0
    module = sys.modules["fedjax_ssl.federated.packing"]
    monkeypatch.setattr(module, "backend", lambda: "gpu")
    assert barriers(LAYERS) == 0


def test_what_is_cut_has_its_gradient() -> None:
    both = packing(LAYERS)
    gradient = jax.grad(lambda packed: sum(jnp.sum(x**2) for x in both.unpack(packed)))(
        both.pack(LAYERS)
    )
    jax.tree.map(
        np.testing.assert_array_equal, both.unpack(gradient), [2 * layer for layer in LAYERS]
    )
