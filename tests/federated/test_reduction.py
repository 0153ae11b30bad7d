"""Sums over clients that are spread over devices: the same bits for every number of devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from fedjax_ssl.federated.placement import add_in_order, sum_over_devices

RANDOM = np.random.default_rng(0)
VALUES = {
    "change": jnp.asarray(
        RANDOM.normal(size=(8, 50)) * 10.0 ** RANDOM.integers(-4, 4, (8, 1)), jnp.float32
    ),
    "steps": jnp.arange(8, dtype=jnp.int32),
    "nothing": jnp.zeros((8, 0), jnp.float32),
}
VALID = jnp.asarray([True, True, False, True, True, True, True, True])


def total(reduce, num_devices):
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("clients",))

    def on_device(values, valid):
        return sum_over_devices(values, valid, mesh.axis_names, reduce)

    share = PartitionSpec("clients")
    function = jax.shard_map(
        on_device, mesh=mesh, in_specs=(share, share), out_specs=PartitionSpec(), check_vma=False
    )
    return jax.jit(function)(VALUES, VALID)


EXACT = np.sum(np.asarray(VALUES["change"], np.float64)[np.asarray(VALID)], axis=0)


def test_same_bits_for_every_number_of_devices():
    one, two, four = (total("ordered", count) for count in (1, 2, 4))
    for name in VALUES:
        np.testing.assert_array_equal(one[name], two[name])
        np.testing.assert_array_equal(one[name], four[name])
    assert int(one["steps"]) == 28 - 2 and one["steps"].dtype == jnp.int32
    largest = float(jnp.max(jnp.abs(VALUES["change"])))
    tolerance = 8 * largest * 2.0**-24
    np.testing.assert_allclose(one["change"], EXACT, rtol=0, atol=tolerance)


def test_ordered_is_the_sum_on_one_device():
    np.testing.assert_array_equal(
        total("ordered", 4)["change"], add_in_order(VALUES, VALID)["change"]
    )


def test_fast_is_right_up_to_rounding():
    np.testing.assert_allclose(total("fast", 4)["change"], EXACT, rtol=1e-5, atol=1e-2)
