"""Packing clients into lanes; that lanes train as if every client were alone is in the contract
suite.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated.placement import pack


@pytest.mark.parametrize("num_lanes", [1, 3, 8])
def test_every_client_is_in_one_lane_and_lanes_have_no_gaps(num_lanes):
    steps = np.random.default_rng(0).integers(0, 30, 12)
    steps[[2, 7]] = 0
    queue, start, length = map(np.asarray, pack(jnp.asarray(steps, jnp.int32), num_lanes))
    taken = queue[queue < 12]
    assert sorted(taken) == sorted(np.flatnonzero(steps))
    ends = []
    for lane in queue:
        clients = lane[lane < 12]
        assert (lane[len(clients) :] == 12).all()
        np.testing.assert_array_equal(start[clients], np.cumsum([0, *steps[clients]])[:-1])
        ends.append(steps[clients].sum())
    assert length == max(ends)
    assert max(ends) <= 4 / 3 * max(steps.max(), steps.sum() / num_lanes) + 1


def test_log_normal_sizes_waste_little():
    """100 clients with a spread of sigma 1 in ten lanes, against padding all to the largest."""
    steps = np.maximum(np.random.default_rng(1).lognormal(3, 1, 100), 1).astype(np.int32)
    *_, length = jax.jit(pack, static_argnums=1)(jnp.asarray(steps), 10)
    assert 1 - steps.sum() / (10 * int(length)) < 0.1
    assert steps.sum() / (100 * steps.max()) < 0.4


def test_nobody_trains():
    queue, _, length = pack(jnp.zeros(4, jnp.int32), 2)
    assert int(length) == 0 and (np.asarray(queue) == 4).all()
