"""What FedMatch's server and clients send each other: entries, bytes, what arrives, and who
helps whom.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import KDTree

from fedjax_ssl.federated import to_numbers
from fedjax_ssl.methods.fedmatch import (
    FedMatch,
    Store,
    from_client,
    nearest_clients,
    noise_image,
    to_cohort,
)
from fedjax_ssl.methods.parts.sparse_messages import message_bytes

SERVER = {
    "sigma": np.array([0.1, -0.2, 0.3, 0.05, -0.07, 0.01, 0.02, 0.5]),
    "psi": np.array([1e-3, 2e-4, 4e-6, -3e-4, 6e-6, 1e-4, 0, -2e-3]),
}
CLIENT = {
    "sigma": np.array([0.1, -0.19994, 0.29996, 0.051, -0.07, 0.01, 0.020051, 0.5]),
    "psi": np.array([1e-3, 1e-4, 1e-3, -2.6e-4, 4e-6, -1e-4, 7e-5, -2.04e-3]),
}
HELPERS = np.array(
    [[1e-3, 5e-4, 0, 0, 3e-6, -1e-4, 8e-5, -1e-3], [0, 0, 2e-3, -2.6e-4, 0, 0, 0, 0]]
)
TRAINED = {
    "sigma": np.array([0.1001, -0.2, 0.3, 0.04998, -0.07, 0.012, 0.02, 0.5]),
    "psi": np.array([1.2e-3, 2.3e-4, 6e-5, 3e-6, 6e-6, 1.6e-4, 2e-6, -2e-3]),
}
EPSILON = 5e-6
DELTA = 5e-5


def down_to(exchange: FedMatch, server, client, helpers, number, seen):
    """What one client is sent; the store has it and, as clients 1 and 2, its helpers."""
    uploads = {
        part: jnp.stack([client[part], *([client[part]] * 2 if part == "sigma" else helpers)])
        for part in client
    }
    store = Store(uploads, seen, jnp.zeros((3, 4)))
    ids = jnp.zeros(1, jnp.int32)
    round = SimpleNamespace(clients=SimpleNamespace(id=ids), number=number, groups=server)
    sent = to_cohort(exchange, store, round)
    return jax.tree.map(lambda x: x[0], sent)


def settings(**changes) -> FedMatch:
    return FedMatch(
        **{"labels_at": "clients", "l1_threshold": EPSILON, "delta_threshold": DELTA, **changes}
    )


@pytest.fixture(scope="module")
def exchanged():
    """(server, client, helpers, trained, round, seen, epsilon, delta) -> what is sent and
    uploaded.
    """

    def both(server, client, helpers, trained, number, seen, epsilon, delta):
        exchange = settings(l1_threshold=epsilon, delta_threshold=delta)
        sent = down_to(exchange, server, client, helpers, number, seen)
        after = SimpleNamespace(groups=trained, start_params=server)
        merged, entries = from_client(exchange, after)
        return sent, merged, entries

    compiled = jax.jit(both)

    def call(
        number=9,
        seen=(1, 1, 1),
        epsilon=EPSILON,
        delta=DELTA,
        client=CLIENT,
        server=SERVER,
        trained=TRAINED,
    ):
        with jax.enable_x64(True):
            given = jax.tree.map(jnp.asarray, (server, client, HELPERS, trained))
            given = (*given, jnp.asarray(number, jnp.int32), np.array(seen, bool), epsilon, delta)
            return jax.device_get(compiled(*given))

    return call


def test_costs_of_the_worked_example(exchanged) -> None:
    """FedMatch section 13, check 9: shares of 8 numbers."""
    sent, merged, up = exchanged()
    down = {name: np.asarray(entries).tolist() for name, entries in sent.entries.items()}
    assert (down["psi"] / 8, down["sigma"] / 8, sum(down["helpers"]) / 8) == (0.5, 0.375, 0.375)
    assert down["helpers"] == [2, 1] and (down["psi"] + down["sigma"] + 3) / 8 == 1.25
    assert (int(up["psi"]) / 8, int(up["sigma"]) / 8) == (0.5, 0.25)
    np.testing.assert_array_equal(merged["psi"], [1.2e-3, 2e-4, 6e-5, 3e-6, 6e-6, 1.6e-4, 0, -2e-3])
    np.testing.assert_array_equal(
        merged["sigma"], [0.1001, *SERVER["sigma"][1:5], 0.012, 0.02, 0.5]
    )
    np.testing.assert_array_equal(sent.helpers, HELPERS)  # differences are counted alone


def test_bounds_of_the_costs(exchanged) -> None:
    """Check 10: at most 2 + H down and 2 up, nothing where nothing changed, less with a larger
    threshold.
    """
    rng = np.random.default_rng(0)

    def draw():
        return {part: rng.normal(scale=1e-4, size=8) for part in SERVER}

    for _ in range(5):
        server = draw()
        client = draw()
        trained = draw()
        totals = []
        for delta in (0.0, DELTA, 2e-4, 1.0):
            sent, merged, up = exchanged(client=client, server=server, trained=trained, delta=delta)
            down = int(sent.entries["psi"] + sent.entries["sigma"] + sent.entries["helpers"].sum())
            totals.append((down, sum(map(int, up.values()))))
            assert 0 <= down <= 8 * 4 and 0 <= totals[-1][1] <= 8 * 2
            for part in SERVER:
                assert np.abs(merged[part] - trained[part]).max() <= delta + EPSILON
        assert totals == sorted(totals, reverse=True)
    sent, merged, up = exchanged(client=SERVER, trained=SERVER, delta=0.0, epsilon=0.0)
    assert int(sent.entries["psi"]) == int(sent.entries["sigma"]) == sum(map(int, up.values())) == 0
    np.testing.assert_array_equal(merged["psi"], SERVER["psi"])


def test_round_0_sends_everything_and_other_rounds_no_helpers(exchanged) -> None:
    sent, *_ = exchanged(number=0, seen=(0, 0, 0))
    assert {name: np.asarray(count).tolist() for name, count in sent.entries.items()} == {
        "sigma": 8,
        "psi": 8,
        "helpers": [0, 0],
    }
    sent, *_ = exchanged(number=10)
    assert sent.available.tolist() == [False, False] and sent.entries["helpers"].tolist() == [0, 0]
    sent, *_ = exchanged(seen=(1, 0, 1))
    assert sent.available.tolist() == [True, False] and sent.entries["helpers"].tolist() == [1, 0]
    # a stranger is sent a model, and nobody helps it
    sent, *_ = exchanged(seen=(0, 1, 1))
    assert int(sent.entries["psi"]) == int(sent.entries["sigma"]) == 8
    assert not sent.available.any()


def test_bytes_of_a_message() -> None:
    """The smallest of 4 N, N / 8 + 4 n and 8 n."""
    size = 203
    entries = np.arange(204, dtype=np.int32)
    lengths = jax.jit(jax.vmap(lambda e: {"x": message_bytes(e, size)}))
    found = to_numbers(lengths(jnp.asarray(entries)))["x"].astype(int)
    np.testing.assert_array_equal(
        found, np.minimum(4 * size, np.minimum(26 + 4 * entries, 8 * entries))
    )


def test_traffic_of_the_paper() -> None:
    """Check 19: (4 + 2 H / 10) models of 6,568,640 numbers are 115.6 MB."""
    size = 6_568_640
    dense = int(to_numbers({"x": message_bytes(jnp.asarray(size), size)})["x"])
    assert (4 + 2 * 2 / 10) * dense / 1e6 == pytest.approx(115.6, abs=0.05)


# Who helps whom.


def test_nearest_helpers() -> None:
    """Check 12: distances .070711 and .141421; oneself is left out by number, not by place."""
    embeddings = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.65, 0.2, 0.15]])
    nearest = jax.jit(nearest_clients, static_argnums=3)
    asks = np.arange(4, dtype=np.int32)
    everybody = np.ones(4, bool)
    ids, there = nearest(asks, embeddings, everybody, 2)
    assert ids[0].tolist() == [3, 1] and there.all()
    order = np.array([2, 0, 3, 1])  # client c is now called place[c]
    place = np.argsort(order)
    again, _ = nearest(asks, embeddings[order], everybody, 2)
    np.testing.assert_array_equal(again, place[np.asarray(ids)][order])
    alike, _ = nearest(asks, np.zeros((4, 3)), everybody, 2)
    assert alike.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]
    ids, there = nearest(asks, embeddings, np.array([True, False, True, False]), 5)
    assert ids.shape == (4, 5) and ids[0, 0] == 2
    assert there.sum(1).tolist() == [1, 0, 1, 0] and there[0, 0] and there[2, 0]


def test_nearest_helpers_are_those_of_a_tree() -> None:
    embeddings = np.random.default_rng(0).dirichlet(np.ones(10), 40).astype(np.float32)
    clients = np.array([3, 17, 40], np.int32)  # 40: an empty slot
    ids, there = jax.jit(nearest_clients, static_argnums=3)(
        clients, embeddings, np.ones(40, bool), 3
    )
    _, expected = KDTree(embeddings).query(embeddings[clients[:2]], 4)
    np.testing.assert_array_equal(ids[:2], expected[:, 1:])
    assert not there[2].any()


def test_noise_is_truncated_to_images() -> None:
    """Mean 0.497 and deviation 0.269, over 30,000 values to within four deviations of the mean."""
    noise = np.asarray(noise_image(jax.random.key(0), (100, 100, 3)))
    assert noise.min() >= 0 and noise.max() <= 1
    assert noise.mean() == pytest.approx(0.497, abs=7e-3) and noise.std() == pytest.approx(
        0.269, abs=5e-3
    )
