import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import map_clients
from tests import toy

PLACEMENTS = [("sequential", 1), ("vmap", 1), ("chunked", 1), ("chunked", 2), ("chunked", 4), ("chunked", 99)]


def update(client: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    return {"sum": client["x"], "steps": client["n"]}, {"twice": 2.0 * client["x"], "flag": client["n"] > 2}


@pytest.mark.parametrize(("placement", "chunk_size"), PLACEMENTS)
def test_sums_are_added_in_client_order(placement: str, chunk_size: int) -> None:
    # In float32, ((((0 + 1e8) + 1) - 1e8) + 1) + 3 = 4; every other order gives something else.
    clients = {"x": jnp.asarray([1e8, 1.0, -1e8, 1.0, 3.0], jnp.float32), "n": jnp.arange(5, dtype=jnp.int32)}
    summed, stacked = map_clients(update, clients, jnp.ones(5, bool), placement, chunk_size)
    assert float(summed["sum"]) == 4.0
    assert int(summed["steps"]) == 10 and summed["steps"].dtype == jnp.int32
    np.testing.assert_array_equal(stacked["twice"], 2 * clients["x"])
    np.testing.assert_array_equal(stacked["flag"], [False, False, False, True, True])


@pytest.mark.parametrize(("placement", "chunk_size"), PLACEMENTS)
def test_empty_slots_add_nothing_even_if_they_are_nan(placement: str, chunk_size: int) -> None:
    clients = {"x": jnp.asarray([1.0, jnp.nan, 2.0], jnp.float32), "n": jnp.ones(3, jnp.int32)}
    summed, stacked = map_clients(update, clients, jnp.asarray([True, False, True]), placement, chunk_size)
    assert float(summed["sum"]) == 3.0
    assert int(summed["steps"]) == 2
    assert stacked["twice"].shape == (3,)


def test_order_of_the_slots_does_not_matter_to_each_client() -> None:
    clients = {"x": jnp.asarray([1.0, 2.0, 4.0], jnp.float32), "n": jnp.arange(3, dtype=jnp.int32)}
    turned = jax.tree.map(lambda leaf: leaf[::-1], clients)
    one, kept = map_clients(update, clients, jnp.ones(3, bool), "chunked", 2)
    other, turned_kept = map_clients(update, turned, jnp.ones(3, bool), "chunked", 2)
    assert float(one["sum"]) == float(other["sum"]) == 7.0
    np.testing.assert_array_equal(kept["twice"], turned_kept["twice"][::-1])


def test_unknown_placement_and_bad_chunks_are_refused() -> None:
    clients = {"x": jnp.zeros(2), "n": jnp.zeros(2, jnp.int32)}
    with pytest.raises(ValueError, match=r"'gpu'.*auto, vmap, sequential, chunked, lanes"):
        map_clients(update, clients, jnp.ones(2, bool), "gpu")
    with pytest.raises(ValueError, match="chunk_size is 0"):
        map_clients(update, clients, jnp.ones(2, bool), "chunked", 0)


def test_devices_share_a_cohort_that_they_do_not_divide() -> None:
    """Six clients on four devices, where two slots stay empty, and sums over devices of either kind."""
    data = toy.federation()

    def trained(num_devices: int, **changes) -> federated.ServerState:
        mesh = Mesh(np.array(jax.devices()[:num_devices]), ("clients",)) if num_devices else None
        method = methods.build("fedavg", toy.setup(data, placement="sequential", mesh=mesh, **changes))
        return toy.train(method, jax.random.key(1), data, 2)[0]

    alone = trained(0)
    chex.assert_trees_all_equal(alone, trained(4))
    one, four = trained(1, reduce="fixed"), trained(4, reduce="fixed")
    chex.assert_trees_all_equal(one, four)
    chex.assert_trees_all_close(alone, four, rtol=1e-6, atol=1e-6)


def test_an_unknown_reduction_is_refused() -> None:
    data = toy.federation()
    method = methods.build("fedavg", toy.setup(data, reduce="sum"))
    with pytest.raises(ValueError, match="reduce is 'sum'; allowed: ordered, fixed, fast"):
        jax.eval_shape(method.round, jax.random.key(0), method.init(jax.random.key(0), data), data)
