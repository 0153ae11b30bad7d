"""Parameters in few arrays and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated.packing import LARGE, packing


@pytest.mark.parametrize(
    ("shapes", "packed"),
    [
        ({"a": (3, 2), "b": (4,), "c": ()}, [(11,)]),
        (
            {"a": (64, 64), "b": (2,), "c": (LARGE - 1,), "d": (LARGE, 1)},
            [(64, 64), (LARGE, 1), (LARGE + 1,)],
        ),
        ({"a": (LARGE,)}, [(LARGE,)]),
    ],
)
def test_large_arrays_stay_and_small_ones_share_a_vector(shapes: dict, packed: list) -> None:
    rng = np.random.default_rng(0)
    tree = {
        name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()
    }
    both = (
        packing(jax.eval_shape(lambda: tree))
        if len(packed) == 1 and len(tree) == 1
        else packing(tree)
    )
    found = both.pack(tree)
    assert [values.shape for values in found] == packed
    jax.tree.map(np.testing.assert_array_equal, both.unpack(found), tree)


def test_a_network_without_parameters_has_none() -> None:
    both = packing({})
    assert both.unpack(both.pack({})) == {}
