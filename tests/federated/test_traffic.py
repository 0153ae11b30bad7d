"""Bytes stay exact beyond 32 bits, whatever program counts them."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl.federated import count, to_numbers


def test_bytes_beyond_32_bits_are_exact() -> None:
    times = np.array([3, 2**31 - 1, 0], np.int32)
    size = 2**31 + 7
    assert int(jax.jit(lambda n: count(n, size) + count(5) + count(n[0], 2**40))(times)) == (
        int(times.sum(dtype=np.int64)) * size + 5 + 3 * 2**40
    )


def test_rounds_and_runs() -> None:
    """Rounds are put together in the program; runs stay apart."""

    def run(number: jax.Array):
        _, rounds = jax.lax.scan(lambda total, _: (total, count(number, 2**33)), 0, length=3)
        return {"bytes": rounds.of_all_rounds(), "loss": jnp.ones(2)}

    found = to_numbers(jax.jit(jax.vmap(run))(jnp.array([1, 2])))
    np.testing.assert_array_equal(found["bytes"], np.array([3, 6], np.uint64) * 2**33)
    assert found["loss"].shape == (2, 2)
    assert int(count(3, 4).padded(5)) == 12
