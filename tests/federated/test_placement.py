import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import all_clients, execution, placement
from fedjax_ssl.federated.client import LocalRound, train_client
from fedjax_ssl.federated.placement import deal, map_clients, without_examples
from tests import toy

AT_ONCE = (1, 2, 4, 5)


def update(client: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    return {"sum": client["x"], "steps": client["n"]}, {
        "twice": 2.0 * client["x"],
        "flag": client["n"] > 2,
    }


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_sums_are_added_in_client_order(at_once: int) -> None:
    # In float32, ((((0 + 1e8) + 1) - 1e8) + 1) + 3 = 4; every other order gives something else.
    clients = {
        "x": jnp.asarray([1e8, 1.0, -1e8, 1.0, 3.0], jnp.float32),
        "n": jnp.arange(5, dtype=jnp.int32),
    }
    summed, stacked = map_clients(update, clients, jnp.ones(5, bool), at_once)
    assert float(summed["sum"]) == 4.0
    assert int(summed["steps"]) == 10 and summed["steps"].dtype == jnp.int32
    np.testing.assert_array_equal(stacked["twice"], 2 * clients["x"])
    np.testing.assert_array_equal(stacked["flag"], [False, False, False, True, True])


@pytest.mark.parametrize("at_once", AT_ONCE)
def test_empty_slots_add_nothing_even_if_they_are_nan(at_once: int) -> None:
    clients = {"x": jnp.asarray([1.0, jnp.nan, 2.0], jnp.float32), "n": jnp.ones(3, jnp.int32)}
    summed, stacked = map_clients(update, clients, jnp.asarray([True, False, True]), at_once)
    assert float(summed["sum"]) == 3.0
    assert int(summed["steps"]) == 2
    assert stacked["twice"].shape == (3,)


def test_order_of_the_slots_does_not_matter_to_each_client() -> None:
    clients = {"x": jnp.asarray([1.0, 2.0, 4.0], jnp.float32), "n": jnp.arange(3, dtype=jnp.int32)}
    turned = jax.tree.map(lambda leaf: leaf[::-1], clients)
    one, kept = map_clients(update, clients, jnp.ones(3, bool), 2)
    other, turned_kept = map_clients(update, turned, jnp.ones(3, bool), 2)
    assert float(one["sum"]) == float(other["sum"]) == 7.0
    np.testing.assert_array_equal(kept["twice"], turned_kept["twice"][::-1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sizes", "loop"), [((8, 8, 0, 8), "whole"), ((8, 8, 4, 8), "bound"), ((16, 1, 0, 1), "own")]
)
def test_loops_for_accelerators_train_as_that_of_a_cpu(
    sizes: tuple[int, ...], loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal clients and one without examples, nearly equal ones, others: loops of a GPU, run
    here.
    """
    data = toy.federation(sizes=sizes, labelled=sizes)

    def rounds() -> tuple[federated.ServerState, list[dict[str, float]]]:
        how = {"placement": "vmap", "all_clients": jax.device_get(all_clients(data))}
        setup = toy.setup(
            data, local_optimizer=federated.local_optimizer(momentum=0.5, weight_decay=0.1)
        )
        return toy.train(
            toy.executed(methods.build("fedavg", setup), **how), jax.random.key(1), data, 2
        )

    state, metrics = rounds()
    seen: list[str] = []
    monkeypatch.setattr(execution, "backend", lambda: "gpu")

    def noting(local: LocalRound, client: federated.Client, plan: Any, loop: str) -> Any:
        seen.append(loop)
        return train_client(local, client, plan, loop)

    monkeypatch.setattr(placement, "train_client", noting)
    other_state, other_metrics = rounds()
    assert set(seen) == {loop}
    chex.assert_trees_all_close(state, other_state, rtol=1e-5, atol=1e-6)
    for name in ("local_steps", "examples", "clients", "dropped_clients"):
        assert [row[name] for row in metrics] == [row[name] for row in other_metrics]


def test_unknown_placement_and_bad_chunks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'gpu'.*vmap, sequential, chunked, lanes"):
        execution.choose("gpu", None, 2, "cpu")
    with pytest.raises(ValueError, match="chunk_size is 0"):
        execution.choose("chunked", 0, 2, "cpu")


@functools.cache
def trained(placement: str, num_devices: int, reduce: str = "ordered") -> federated.ServerState:
    """Two rounds of six clients of 1 to 14 examples; on four devices, two slots stay empty."""
    data = toy.federation()
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("clients",)) if num_devices else None
    chunk_size = 1 if placement == "sequential" else 2
    how = {"placement": placement, "chunk_size": chunk_size, "mesh": mesh, "reduce": reduce}
    method = toy.executed(methods.build("fedavg", toy.setup(data)), **how)
    return toy.train(method, jax.random.key(1), data, 2)[0]


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    "placement", [*(pytest.param(p, marks=THOROUGH) for p in ("sequential", "chunked")), "lanes"]
)
@pytest.mark.parametrize("num_devices", [pytest.param(2, marks=THOROUGH), 4])
def test_devices_share_a_cohort_bit_by_bit(placement: str, num_devices: int) -> None:
    chex.assert_trees_all_equal(trained(placement, 0), trained(placement, num_devices))


def test_clients_are_dealt_longest_first_there_and_back() -> None:
    steps = jnp.asarray([3, 9, 1, 7, 2, 8, 4, 6], jnp.int32)
    dealt = np.asarray(deal(steps, 2)).reshape(2, 4)
    np.testing.assert_array_equal(np.asarray(steps)[dealt], [[9, 6, 4, 1], [8, 7, 3, 2]])
    assert sorted(dealt.ravel()) == list(range(8))
    np.testing.assert_array_equal(deal(steps, 1), np.argsort(-np.asarray(steps)))


def test_dealing_brings_devices_close_together() -> None:
    steps = np.maximum(np.random.default_rng(2).lognormal(3, 1, 64), 1).astype(np.int32)
    loads = steps[np.asarray(deal(jnp.asarray(steps), 4)).reshape(4, 16)].sum(axis=1)
    blocks = steps.reshape(4, 16).sum(axis=1)
    assert loads.max() <= loads.mean() + steps.max() / 2 < blocks.max()


def test_clients_that_only_fill_up_take_no_step() -> None:
    data = toy.federation()
    emptied = without_examples(
        all_clients(data), jnp.asarray([True, False, True, True, True, True])
    )
    np.testing.assert_array_equal(emptied.num_examples, [12, 0, 7, 1, 8, 14])
    np.testing.assert_array_equal(emptied.num_labelled, [4, 0, 0, 1, 8, 2])


def test_an_unknown_reduction_is_refused() -> None:
    data = toy.federation()
    method = toy.executed(methods.build("fedavg", toy.setup(data)), reduce="sum")
    with pytest.raises(ValueError, match=r"reduce is 'sum'\. Allowed: ordered, fast"):
        jax.eval_shape(method.round, jax.random.key(0), method.init(jax.random.key(0), data), data)
