"""What server and clients of FedMatch send each other, who helps whom, and whole rounds: limits and ablations."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.federated import to_numbers
from fedjax_ssl.methods.fedavg import fedavg
from fedjax_ssl.methods.fedmatch import (
    FedMatch,
    Store,
    collect,
    message_bytes,
    nearest_clients,
    noise_image,
    to_cohort,
    upload,
)
from fedjax_ssl.models import Model, count_parameters, in_precision
from tests import toy

SERVER = {
    "sigma": np.array([0.1, -0.2, 0.3, 0.05, -0.07, 0.01, 0.02, 0.5]),
    "psi": np.array([1e-3, 2e-4, 4e-6, -3e-4, 6e-6, 1e-4, 0, -2e-3]),
}
CLIENT = {
    "sigma": np.array([0.1, -0.19994, 0.29996, 0.051, -0.07, 0.01, 0.020051, 0.5]),
    "psi": np.array([1e-3, 1e-4, 1e-3, -2.6e-4, 4e-6, -1e-4, 7e-5, -2.04e-3]),
}
HELPERS = np.array([[1e-3, 5e-4, 0, 0, 3e-6, -1e-4, 8e-5, -1e-3], [0, 0, 2e-3, -2.6e-4, 0, 0, 0, 0]])
TRAINED = {
    "sigma": np.array([0.1001, -0.2, 0.3, 0.04998, -0.07, 0.012, 0.02, 0.5]),
    "psi": np.array([1.2e-3, 2.3e-4, 6e-5, 3e-6, 6e-6, 1.6e-4, 2e-6, -2e-3]),
}
EPSILON, DELTA = 5e-6, 5e-5


def down_to(exchange: FedMatch, server, client, helpers, number, seen):
    """What one client is sent; the store has it and, as clients 1 and 2, its helpers."""
    uploads = {
        part: jnp.stack([client[part], *([client[part]] * 2 if part == "sigma" else helpers)]) for part in client
    }
    store = Store(uploads, seen, jnp.zeros((3, 4)))
    ids = jnp.zeros(1, jnp.int32)
    round = SimpleNamespace(clients=SimpleNamespace(id=ids), number=number, groups=server)
    sent = to_cohort(exchange, store, round)
    return jax.tree.map(lambda x: x[0], sent)


def settings(**changes) -> FedMatch:
    return FedMatch(**{"labels_at": "clients", "l1_threshold": EPSILON, "delta_threshold": DELTA, **changes})


@pytest.fixture(scope="module")
def exchanged():
    """(server, client, helpers, trained, round, seen, epsilon, delta) -> what is sent, received and uploaded."""

    def both(server, client, helpers, trained, number, seen, epsilon, delta):
        exchange = settings(l1_threshold=epsilon, delta_threshold=delta, s2c_lossy=True, first_contact="init")
        sent = down_to(exchange, server, client, helpers, number, seen)
        after = SimpleNamespace(groups=trained, received=server)
        merged = upload(exchange, after)
        counted = collect(exchange, SimpleNamespace(groups=trained, received=server, uploaded=merged))
        sparse = upload(dataclasses.replace(exchange, c2s_send_sparsified=True), after)
        received = {p: jnp.where(sent.lossy[0][p], server[p], sent.lossy[1][p]) for p in server}
        return sent, received, merged, sparse, counted.entries

    compiled = jax.jit(both)

    def call(number=9, seen=(1, 1, 1), epsilon=EPSILON, delta=DELTA, client=CLIENT, server=SERVER, trained=TRAINED):
        with jax.enable_x64(True):
            given = jax.tree.map(jnp.asarray, (server, client, HELPERS, trained))
            given = (*given, jnp.asarray(number, jnp.int32), np.array(seen, bool), epsilon, delta)
            return jax.device_get(compiled(*given))

    return call


def test_costs_of_the_worked_example(exchanged) -> None:
    """FedMatch section 13, check 9: shares of 8 numbers."""
    sent, received, merged, sparse, up = exchanged()
    down = {name: np.asarray(entries).tolist() for name, entries in sent.entries.items()}
    assert (down["psi"] / 8, down["sigma"] / 8, sum(down["helpers"]) / 8) == (0.5, 0.375, 0.375)
    assert down["helpers"] == [2, 1] and (down["psi"] + down["sigma"] + 3) / 8 == 1.25
    assert np.flatnonzero(sent.lossy[0]["psi"]).tolist() == [1, 2, 5, 6]
    assert np.flatnonzero(sent.lossy[0]["sigma"]).tolist() == [1, 3, 6]
    assert (int(up["psi"]) / 8, int(up["sigma"]) / 8) == (0.5, 0.25)
    np.testing.assert_array_equal(merged["psi"], [1.2e-3, 2e-4, 6e-5, 3e-6, 6e-6, 1.6e-4, 0, -2e-3])
    np.testing.assert_array_equal(sparse["psi"], [1.2e-3, 2e-4, 6e-5, 0, 6e-6, 1.6e-4, 0, -2e-3])
    np.testing.assert_array_equal(merged["sigma"], [0.1001, *SERVER["sigma"][1:5], 0.012, 0.02, 0.5])
    np.testing.assert_array_equal(received["sigma"], [0.1, -0.2, 0.29996, 0.05, -0.07, 0.01, 0.02, 0.5])
    # Of a helper a client knows what it was sent, its own weights where they are nearly alike, and zeros.
    np.testing.assert_array_equal(sent.helpers[0], [1e-3, 5e-4, 0, 0, 0, -1e-4, 7e-5, -1e-3])


def test_round_0_sends_everything_and_other_rounds_no_helpers(exchanged) -> None:
    sent, received, *_ = exchanged(number=0, seen=(0, 0, 0))
    assert {name: np.asarray(count).tolist() for name, count in sent.entries.items()} == {
        "sigma": 8,
        "psi": 8,
        "helpers": [0, 0],
    }
    np.testing.assert_array_equal(received["psi"], SERVER["psi"])
    sent, *_ = exchanged(number=10)
    assert sent.available.tolist() == [False, False] and sent.entries["helpers"].tolist() == [0, 0]
    sent, *_ = exchanged(seen=(1, 0, 1))
    assert sent.available.tolist() == [True, False] and sent.entries["helpers"].tolist() == [1, 0]
    sent, *_ = exchanged(seen=(0, 1, 1))  # measured against the initial model; nobody helps a stranger
    assert int(sent.entries["psi"]) == 4 and not sent.available.any()


def test_the_first_contact_may_cost_a_model(float64) -> None:
    seen = jnp.array([False, True, True])
    given = [jax.tree.map(jnp.asarray, tree) for tree in (SERVER, CLIENT, HELPERS)]
    sent = jax.jit(lambda: down_to(settings(), *given, jnp.asarray(9, jnp.int32), seen))()
    assert int(sent.entries["psi"]) == int(sent.entries["sigma"]) == 8


def test_bytes_of_a_message() -> None:
    """Dense 4 N, bitmap N / 8 + 4 n, coordinates 8 n; the smallest is the smallest for every n."""
    size, entries, plain = 203, np.arange(204, dtype=np.int32), ("dense", "bitmap", "coordinates")
    lengths = jax.jit(jax.vmap(lambda e: {code: message_bytes(e, size, code) for code in (*plain, "smallest")}))
    found = {name: values.astype(int) for name, values in to_numbers(lengths(jnp.asarray(entries))).items()}
    np.testing.assert_array_equal(found["dense"], 4 * size)
    np.testing.assert_array_equal(found["bitmap"], 26 + 4 * entries)
    np.testing.assert_array_equal(found["coordinates"], 8 * entries)
    others = np.stack([found[name] for name in plain])
    np.testing.assert_array_equal(found["smallest"], others.min(0))


# Who helps whom.


def test_nearest_helpers() -> None:
    """Check 12: distances .070711 and .141421; oneself is left out by number, not by place."""
    embeddings = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.65, 0.2, 0.15]])
    nearest = jax.jit(nearest_clients, static_argnums=3)
    asks, everybody = np.arange(4, dtype=np.int32), np.ones(4, bool)
    ids, there = nearest(asks, embeddings, everybody, 2)
    assert ids[0].tolist() == [3, 1] and there.all()
    order = np.array([2, 0, 3, 1])  # client c is now called place[c]
    place = np.argsort(order)
    again, _ = nearest(asks, embeddings[order], everybody, 2)
    np.testing.assert_array_equal(again, place[np.asarray(ids)][order])
    alike, _ = nearest(asks, np.zeros((4, 3)), everybody, 2)
    assert alike.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1]]
    ids, there = nearest(asks, embeddings, np.array([True, False, True, False]), 2)
    assert there.tolist() == [[True, False], [False, False], [True, False], [False, False]] and ids[0, 0] == 2


def test_more_helpers_than_clients_are_those_that_there_are() -> None:
    nearest = jax.jit(nearest_clients, static_argnums=3)
    ids, there = nearest(np.arange(2, dtype=np.int32), np.eye(2, dtype=np.float32), np.ones(2, bool), 5)
    assert ids.shape == there.shape == (2, 5) and there.sum(1).tolist() == [1, 1]


def test_noise_is_truncated_to_images() -> None:
    """Mean 0.497 and deviation 0.269, over 30,000 values to within four deviations of the mean."""
    noise = np.asarray(noise_image(jax.random.key(0), (100, 100, 3)))
    assert noise.min() >= 0 and noise.max() <= 1
    assert noise.mean() == pytest.approx(0.497, abs=7e-3) and noise.std() == pytest.approx(0.269, abs=5e-3)
    plain = np.asarray(noise_image(jax.random.key(0), (100, 100, 3), "normal"))
    assert plain.min() < 0 and plain.std() == pytest.approx(125 / 255, abs=9e-3)


# Whole rounds.


KEY = jax.random.key(2)
LARGE_DELTA = 0.02
fedmatch = functools.partial(methods.build, "fedmatch")
SETTINGS = {"supervised_weight": 1.0, "l2_weight": 1.0, "threshold": 0.4, "helper_interval": 2}


def with_validation(data, count: int = 20):
    """The last test examples are validation examples."""
    rows = np.asarray(data.test_index)
    changes = {
        "test_index": rows[:-count],
        "test_client": np.full(len(rows) - count, -1),
        "num_test": len(rows) - count,
    }
    return toy.changed(data, **changes, valid_index=rows[-count:], num_valid=count)


def run_of(data, **changes):
    return toy.setup(data, **{"model": toy.linear_model(), "batch_size": 4, "local_epochs": 1, **changes})


@pytest.fixture(scope="module")
def at_server():
    """Two rounds with labels at the server; of the second one helpers are sent."""
    data = with_validation(toy.weak_federation("server"))
    method = fedmatch(
        run_of(data),
        **SETTINGS,
        delta_threshold=LARGE_DELTA,
        unlabelled_batch_size=4,
        server_batch_size=3,
        patience=1,
        encoding="coordinates",
    )
    start, one_round = jax.jit(method.init)(KEY, data), jax.jit(method.round)
    states, infos = [start], []
    for _ in range(3):
        state, info = one_round(KEY, states[-1], data)
        states.append(state)
        infos.append(toy.numbers(info))
    return states, infos


@pytest.mark.thorough
def test_clients_without_labels_train_psi_alone(at_server) -> None:
    """Check 6: the sigma that a client hands back is the server's, bit for bit, which was trained before."""
    states, infos = at_server
    for before, after in itertools.pairwise(states):
        store = after.terms["fedmatch"].store
        assert store.seen.all()
        for client in range(6):
            mine = jax.tree.map(lambda table, client=client: table[client], store.uploads["sigma"])
            chex.assert_trees_all_equal(mine, after.params["sigma"])
        assert np.abs(after.params["sigma"]["w"] - before.params["sigma"]["w"]).max() > 1e-3
        mean = jax.tree.map(lambda table: table.mean(0), store.uploads["psi"])
        chex.assert_trees_all_close(mean, after.params["psi"], rtol=1e-5, atol=1e-6)
    assert infos[-1]["server_loss"] < infos[0]["server_loss"]


@pytest.mark.thorough
def test_bytes_are_those_of_what_was_sent(at_server) -> None:
    """Coordinates and values, 8 bytes a number: both parts whole in round 0, then what differs from the last upload."""
    states, infos = at_server
    size = count_parameters(states[0].params["psi"])
    assert infos[0]["bytes_down"] == 6 * 2 * size * 8 and infos[0]["s2c"] == 2.0
    for (before, after), info in zip(itertools.pairwise(states), infos, strict=True):
        uploads = after.terms["fedmatch"].store.uploads["psi"]
        sent = sum(int((uploads[name] != before.params["psi"][name]).sum()) for name in uploads)
        assert info["bytes_up"] == 8 * sent and info["c2s"] == pytest.approx(sent / size / 6)
        assert "c2s_sigma" not in info and 0.3 < info["c2s"] < 1
    held, now = states[1].terms["fedmatch"].store.uploads, states[2]
    differ = sum(
        int((jnp.abs(table - new[None]) > LARGE_DELTA).sum())
        for part, new_part in (("sigma", now.params["sigma"]), ("psi", states[1].params["psi"]))
        for table, new in zip(jax.tree.leaves(held[part]), jax.tree.leaves(new_part), strict=True)
    )
    assert infos[1]["helpers"] == 2 and infos[2]["helpers"] == 0
    assert infos[1]["bytes_down"] == 8 * differ + 8 * round(6 * size * infos[1]["s2c_helpers"])


def scaled(model: Model, factor: float) -> Model:
    return model._replace(init=lambda key: (jax.tree.map(lambda w: factor * w, model.init(key)[0]), {}))


@pytest.mark.thorough
def test_without_unsupervised_weights_it_is_federated_averaging_on_labels(float64) -> None:
    """Check 18a: psi never moves, sigma + psi is FedAvg's model."""
    data = toy.federation(sizes=(8, 8, 8), labelled=(4, 4, 4))
    zero = dict.fromkeys(("agreement_weight", "kl_weight", "l2_weight", "l1_weight", "delta_threshold"), 0.0)
    method = fedmatch(run_of(data), supervised_weight=1.0, lr_schedule="none", helper_interval=2, **zero)
    state, _ = toy.train(method, KEY, data, 3)
    expected, _ = toy.train(fedavg(run_of(data, model=scaled(toy.linear_model(), 1.2))), KEY, data, 3)
    total = jax.tree.map(jnp.add, state.params["sigma"], state.params["psi"])
    chex.assert_trees_all_close(total, expected.params["model"], rtol=1e-12)
    first = jax.tree.map(lambda w: 0.2 * w, toy.linear_model().init(KEY)[0])
    chex.assert_trees_all_equal(state.params["psi"], first)


@pytest.mark.thorough
def test_lossy_downloads(float64) -> None:
    """Without thresholds they lose nothing; above all differences, clients stay with the model of round 0."""
    data = with_validation(toy.federation())
    build = lambda **more: fedmatch(run_of(data), **SETTINGS, lr_schedule="global", helper_hold="keep", **more)  # noqa: E731
    none = {"l1_threshold": 0.0, "delta_threshold": 0.0}
    lossless, infos = toy.train(build(s2c_lossy=True, **none), KEY, data, 4)
    plain, others = toy.train(build(**none), KEY, data, 4)
    chex.assert_trees_all_equal(lossless.params, plain.params)
    assert infos == others or np.testing.assert_equal(infos, others) is None
    deaf, infos = toy.train(build(s2c_lossy=True, l1_threshold=0.0, delta_threshold=1e3), KEY, data, 3)
    chex.assert_trees_all_equal(deaf.params, jax.jit(build().init)(KEY, data).params)
    assert infos[1]["s2c"] == infos[1]["c2s"] == infos[1]["bytes_up"] == 0
    assert float(plain.terms["fedmatch"].plateau.best) < 10


@pytest.mark.thorough
def test_helpers_that_are_kept_cost_nothing_and_go_on_helping(float64) -> None:
    """The round after helpers were sent: with "keep" they still pull, otherwise not."""
    data = toy.federation(sizes=(8, 8, 8), labelled=(4, 4, 4))
    given = {**SETTINGS, "kl_weight": 5.0, "lr_schedule": "none"}
    kept, infos = toy.train(fedmatch(run_of(data), **given, helper_hold="keep"), KEY, data, 3)
    one_round, others = toy.train(fedmatch(run_of(data), **given), KEY, data, 3)
    assert [info["helpers"] for info in infos] == [info["helpers"] for info in others] == [0, 2, 0]
    assert infos[2]["s2c"] == pytest.approx(others[2]["s2c"], abs=0.05)
    assert infos[2]["loss"] > others[2]["loss"] and infos[1]["loss"] == pytest.approx(others[1]["loss"], rel=1e-12)
    assert np.abs(kept.params["psi"]["w"] - one_round.params["psi"]["w"]).max() > 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("decomposition", "part"), [("none", "sigma"), ("without_sigma", "psi"), ("without_psi", "sigma")]
)
def test_ablations(decomposition: str, part: str) -> None:
    """One part, the same function at the start, and it learns; both losses move it."""
    data = toy.federation()
    given = {
        **SETTINGS,
        "l2_weight": 0.05,
        "supervised_weight": 5.0,
        "lr_schedule": "none",
        "decomposition": decomposition,
    }
    method = fedmatch(run_of(data), **given)
    start = jax.jit(method.init)(KEY, data)
    assert list(start.params) == [part]
    first = jax.tree.map(lambda w: jnp.float32(1.2) * w, toy.linear_model().init(KEY)[0])
    chex.assert_trees_all_close(start.params[part], first, rtol=1e-6)
    state, infos = toy.run(jax.jit(method.round), KEY, start, data, 12)
    chosen = np.argmax(method.predict(state, data.inputs), axis=1)[data.test_index]
    assert np.mean(chosen == data.labels[data.test_index]) > 0.8
    assert infos[0]["s2c"] == 1.0 and 0 < infos[1]["c2s"] <= 1.0 and infos[1]["s2c"] <= 3.0


@pytest.mark.thorough
def test_no_inter_client_loss_and_a_stream() -> None:
    """H = 0, the ablation; unlabelled examples in four parts, a round each."""
    data = dataclasses.replace(toy.federation(sizes=(12, 12, 3), labelled=(4, 4, 3)), num_parts=4)
    run = run_of(data, rounds=4)
    state, infos = toy.train(
        fedmatch(run, **{**SETTINGS, "num_helpers": 0, "threshold": 0.0, "lr_schedule": "none"}), KEY, data, 4
    )
    chex.assert_tree_all_finite(state)
    assert [info["helpers"] for info in infos] == [0] * 4
    # Every client uses its labelled examples, and the two unlabelled ones of the part: all that it has then.
    assert [info["examples"] for info in infos] == [4 + 2 + 4 + 2 + 3] * 4
    assert [info["pseudo_label_coverage"] for info in infos] == [1.0] * 4


@pytest.mark.thorough
def test_in_half_precision_parameters_and_costs_stay_whole() -> None:
    """A step of 1e-7 is far below the spacing of bfloat16; here thresholds of 1e-5 still tell."""
    data = toy.federation()
    run = run_of(data, model=in_precision(toy.setup(data).model, "bf16"), learning_rate=1e-6)
    state, infos = toy.train(fedmatch(run, **SETTINGS, lr_schedule="none", delta_threshold=1e-9), KEY, data, 1)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}
    assert infos[0]["c2s_psi"] > 0.3
