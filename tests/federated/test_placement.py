import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated import map_clients

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
    with pytest.raises(ValueError, match=r"'gpu'.*auto, vmap, sequential, chunked"):
        map_clients(update, clients, jnp.ones(2, bool), "gpu")
    with pytest.raises(ValueError, match="chunk_size is 0"):
        map_clients(update, clients, jnp.ones(2, bool), "chunked", 0)
