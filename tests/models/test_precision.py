import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models

KEY = jax.random.key(0)
INPUTS = jax.random.normal(jax.random.key(1), (6, 5))


def network(precision):
    return models.in_precision(
        models.build("mlp", num_classes=3, input_shape=(5,), hidden=(8,), norm="bn"), precision
    )


def test_parameters_statistics_outputs_and_gradients_keep_their_type():
    full = network("float32")
    half = network("bf16")
    params, state = jax.jit(half.init)(KEY)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves((params, state)))

    def loss(model):
        def of(params):
            outputs, new_state = model.apply(params, state, INPUTS, train=True)
            return jnp.sum(outputs.logits**2), (outputs, new_state)

        return jax.jit(jax.value_and_grad(of, has_aux=True))(params)

    (_, (exact, exact_state)), exact_slope = loss(full)
    (_, (outputs, new_state)), slope = loss(half)
    for found, expected in zip(
        jax.tree.leaves((outputs, new_state, slope)),
        jax.tree.leaves((exact, exact_state, exact_slope)),
        strict=True,
    ):
        assert found.dtype == expected.dtype == jnp.float32
        np.testing.assert_allclose(
            found, expected, atol=0.05 * max(float(jnp.max(jnp.abs(expected))), 0.1)
        )
    # it was computed in fewer bits
    assert (np.asarray(outputs.logits) != np.asarray(exact.logits)).any()


def test_float32_changes_nothing_and_others_are_refused():
    model = network("float32")
    assert models.in_precision(model, "float32") is model
    with pytest.raises(ValueError, match=r"precision is 'fp8'.* Allowed: float32, bf16"):
        network("fp8")
