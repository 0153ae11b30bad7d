"""Clients that are not there, drop out or do a part of their work."""

import itertools
import re
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import federated, methods
from fedjax_ssl.config import ConfigError
from fedjax_ssl.config import resolve as resolved
from fedjax_ssl.federated import Facts, Moved, participation
from fedjax_ssl.federated.by_client import numbers_by_client
from fedjax_ssl.federated.messages import Sums, Work
from fedjax_ssl.federated.participation import Fate, first_steps
from fedjax_ssl.testing import promises
from tests import toy

DATA = toy.federation(noise=1.0)
FACTS = Facts(num_clients=DATA.num_clients, cohort_size=DATA.num_clients, rounds=3)
KEY = jax.random.key(2)


def table(tmp_path, *rows) -> str:
    path = tmp_path / f"table{len(list(tmp_path.iterdir()))}.csv"
    np.savetxt(path, np.array(rows), delimiter=",")
    return str(path)


def unreliable(name: str = "fedavg", facts: Facts = FACTS, setup=None, method=None, **given):
    setup = toy.setup(DATA, **(setup or {}))
    setup = setup._replace(participation=participation(facts, setup.local_epochs, **given))
    return methods.build(name, setup, **(method or {}))


# What a step moves by: the numbers of the specification.
WEIGHTS = np.array([10.0, 20.0, 30.0])
DELTAS = np.array([1.0, 2.0, 4.0])
ARRIVE = np.array([0.9, 0.5, 0.8])
NOW = federated.Now(jnp.int32(0), run_key=KEY, round=jnp.int32(0))


def moved_by(weights: str, arrived: tuple[bool, ...]) -> float:
    """How far the model moves, where these clients arrive."""
    lost = federated.ClientNumbers(lambda key, number, ids: 1 - jnp.asarray(ARRIVE)[ids])
    how = federated.Participation(lost=lost, weights=weights)
    total = None
    for client, there in enumerate(arrived):
        own = WEIGHTS[client] * there
        moved = Moved({"model": jnp.asarray(own)}, {"model": jnp.asarray(own * DELTAS[client])})
        zero = jnp.zeros(())
        plain = Sums(moved, jnp.zeros(0), {}, {}, jnp.asarray(own), Work(zero, zero, zero, zero))
        client_of = federated.Client(jnp.int32(client), *[zero] * 4, {}, ())
        own_weights = {"model": jnp.asarray(WEIGHTS[client]), "": jnp.asarray(WEIGHTS[client])}
        fate = Fate(jnp.asarray(not there), jnp.int32(0), zero)
        one = how.weighed(NOW, client_of, plain, own_weights, fate, jnp.asarray(there))
        total = one if total is None else jax.tree.map(jnp.add, total, one)
    summed = how.averaged(total)
    after, _ = federated.fedavg().apply((), {"model": jnp.zeros(())}, summed.update, None)
    return float(after["model"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("weights", "second_lost", "expected"),
    [("renormalise", 3.25, 2.738), ("fixed", 2.1666666667, 2.0833333333),
     ("inverse", 2.6851851852, 2.8333333333)],
)  # fmt: skip
def test_weights_of_what_arrives(weights: str, second_lost: float, expected: float) -> None:
    everybody = moved_by(weights, (True, True, True))
    if weights != "inverse":
        assert everybody == pytest.approx(2.8333333333, abs=1e-9)
    assert moved_by(weights, (True, False, True)) == pytest.approx(second_lost, abs=1e-9)
    assert moved_by(weights, (False, False, False)) == 0.0
    mean = 0.0
    for arrived in itertools.product((True, False), repeat=3):
        chance = np.prod(np.where(arrived, ARRIVE, 1 - ARRIVE))
        mean += chance * moved_by(weights, arrived)
    assert mean == pytest.approx(expected, abs=5e-4 if weights == "renormalise" else 1e-9)


def test_a_share_of_the_steps() -> None:
    steps = [int(first_steps(jnp.float32(share), jnp.int32(95))) for share in (0, 0.05, 0.5, 0.99)]
    assert steps == [1, 4, 47, 94]
    assert int(first_steps(jnp.float32(0.9), jnp.int32(0))) == 0


@pytest.fixture(scope="module")
def losing(tmp_path_factory):
    """FedAvg that loses client 1 in its first round, everybody in the second; in the third nobody
    is there.
    """
    folder = tmp_path_factory.mktemp("traces")
    number = DATA.num_clients
    gone = np.eye(number)[1]
    lost = table(folder, gone, np.ones(number), np.zeros(number))
    there = table(folder, np.ones(number), np.ones(number), np.zeros(number))
    optimizer = federated.local_optimizer("sgd", momentum=0.5)
    keeping = {"keep_optimizer": True, "local_optimizer": optimizer}
    method = unreliable(setup=keeping, probability=there, lost=lost)
    one_round = jax.jit(method.round)
    states = [method.init(KEY, DATA)]
    infos = []
    for _ in range(3):
        state, info = one_round(KEY, states[-1], DATA)
        states.append(state)
        infos.append(toy.numbers(info))
    return states, infos, toy.setup(DATA, **keeping)


def test_a_lost_client_might_not_have_been_there(losing) -> None:
    states, infos, plain = losing
    method = methods.build("fedavg", plain)
    whole = jax.jit(method.round)
    absent, info = whole(KEY, states[0], toy.without(DATA, 1))
    chex.assert_trees_all_close(states[1].params, absent.params, atol=1e-6)
    chex.assert_trees_all_close(states[1].clients, absent.clients, atol=1e-6)
    assert infos[0]["lost_clients"] == 1 and infos[0]["dropped_clients"] == 0
    # It worked, and nothing of it was sent up.
    assert infos[0]["local_steps"] > int(info["local_steps"])
    assert infos[0]["bytes_up"] == int(info["bytes_up"]) < infos[0]["bytes_down"]


def test_a_round_of_which_nothing_arrives_changes_nothing(losing) -> None:
    states, infos, _ = losing
    for before, after, info in zip(states[1:], states[2:], infos[1:], strict=False):
        chex.assert_trees_all_equal(before._replace(round=after.round), after)
        assert info["dropped_clients"] == 0
    assert infos[1]["lost_clients"] == infos[1]["clients"] > 0
    assert infos[2]["clients"] == infos[2]["local_steps"] == infos[2]["lost_clients"] == 0


def test_methods_of_a_seed_lose_the_same_clients() -> None:
    half = participation(FACTS, probability=0.5)
    drawn = [
        np.asarray(half.happens("available", half.probability, key, number, jnp.arange(1000)))
        for key, number in ((KEY, jnp.int32(0)), (KEY, jnp.int32(1)), (jax.random.key(3), 0))
    ]
    assert all(430 < there.sum() < 570 for there in drawn)
    assert not np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    # The same of the first clients, however many there are.
    first = half.happens("available", half.probability, KEY, jnp.int32(0), jnp.arange(10))
    np.testing.assert_array_equal(first, drawn[0][:10])


def test_numbers_by_client(tmp_path) -> None:
    ids = jnp.arange(DATA.num_clients)

    def of(given, number=0, key=KEY, **more):
        found = numbers_by_client("x", given, "[0, 1]", FACTS, **more)
        return np.asarray(found.of(key, jnp.int32(number), ids))

    np.testing.assert_allclose(of(0.25), 0.25)
    for text, low, high in (("uniform:0.2:0.4", 0.2, 0.4), ("beta:2:5", 0, 1)):
        one = of(text)
        assert (one >= low).all() and (one <= high).all() and len(set(one)) == len(one)
        np.testing.assert_array_equal(one, of(text, number=2))
        assert not np.array_equal(one, of(text, key=jax.random.key(0)))
        assert not np.array_equal(of(text, each_round=True), of(text, number=2, each_round=True))
    rows = np.arange(18).reshape(3, 6) / 18
    np.testing.assert_allclose(of(table(tmp_path, *rows), number=2), rows[2])
    np.testing.assert_allclose(of(table(tmp_path, rows[1]), number=2), rows[1])
    np.save(tmp_path / "column.npy", rows[0][:, None])
    np.testing.assert_allclose(of(str(tmp_path / "column.npy")), rows[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"probability": 1.5}, "probability is 1.5; it must be a number in [0, 1]"),
        ({"probability": "unifrom:0:1"}, "Did you mean 'uniform'?"),
        ({"probability": "uniform:0"}, "write uniform:LOW:HIGH"),
        ({"probability": "uniform:0:2"}, "it must be a number in [0, 1]"),
        ({"lost": "lognormal:1:1"}, "goes beyond [0, 1]; use beta:A:B"),
        ({"probability": 0.0}, "probability is 0 for every client, so that nobody is ever there"),
        ({"lost": 1.0}, "lost is 1 for every client"),
        ({"lost": 0.5, "lost_when": "codes", "weights": "fixed"}, "Use lost_when='training'"),
        ({"lost": 0.5, "lost_when": "soon"}, "lost_when is 'soon'. Allowed: start, codes"),
        ({"slow": 0.5, "work": (0.9, 0.1)}, "of which the first is not above"),
        ({"slow": 0.5, "work": ("epochs",), "local_epochs": 1}, "local_epochs of at least 2"),
        ({"probability": "none.csv"}, "none.csv cannot be read: "),
    ],
)
def test_what_cannot_be_is_refused(given: dict, message: str) -> None:
    epochs = given.pop("local_epochs", 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        participation(FACTS, epochs, **given)


def test_a_trace_has_to_fit_the_run(tmp_path) -> None:
    row = np.ones(DATA.num_clients)
    for rows, message in (
        ([row, row], "ends after 2 rounds; the run has 3"),
        ([row[1:]], "has numbers of 5 clients; 6 train"),
        ([2 * row], "it must be a number in [0, 1]"),
        ([np.nan * row], "has no number in row 1, column 1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            participation(FACTS, probability=table(tmp_path, *rows))
    path = tmp_path / "named.csv"
    path.write_text("north,south\n0.5,0.5\n")
    with pytest.raises(ValueError, match="without a line of names"):
        participation(FACTS, probability=str(path))


def test_a_config_says_it() -> None:
    config = fs.load_config(
        "digits_fedavg",
        {"participation.probability": "0.5", "participation.lost": "beta:1:9"},
    )
    config = resolved(config)
    assert config.participation.probability == 0.5
    assert config.participation.lost == "beta:1:9"
    traced = fs.config.traced_numbers(config)
    assert traced["participation.probability"] == 0.5 and "participation.lost" not in traced
    with pytest.raises(ConfigError, match=r"config.participation.lost is 2"):
        resolved(fs.load_config("digits_fedavg", {"participation.lost": 2}))
    for old, when in (("lost_before", "start"), ("lost_after", "codes")):
        with pytest.raises(
            ConfigError, match=f"is gone: write config.participation.lost with .*{when}"
        ):
            fs.load_config("digits_xclp", {f"method.{old}": 0.5})


def test_what_inverse_weights_do_not_make_up_for_is_said() -> None:
    for there, said in ((0.5, 0), ("uniform:0.2:0.9", 1)):
        how = participation(FACTS, probability=there, lost=0.1, weights="inverse")
        assert len(how.notes()) == said
    (note,) = how.notes()
    assert "makes up for clients that are lost, not for those that are not there" in note


@pytest.mark.thorough
def test_reliable_clients_change_no_bit() -> None:
    plain, _ = toy.train(methods.build("fedavg", toy.setup(DATA)), KEY, DATA, 2)
    always, _ = toy.train(unreliable(probability=1.0), KEY, DATA, 2)
    chex.assert_trees_all_equal(plain, always)


@pytest.mark.thorough
@pytest.mark.parametrize("work", [(0.0,), (0.2, 0.7), ("epochs",)])
def test_slow_clients_take_a_part_of_their_steps(work) -> None:
    optimizer = {"federated_optimizer": federated.fednova()}
    usual = toy.train(unreliable(setup=optimizer, slow=1e-9, work=work), KEY, DATA, 1)[1][0]
    slow = toy.train(unreliable(setup=optimizer, slow=1.0, work=work), KEY, DATA, 1)[1][0]
    if work == (0.0,):
        assert slow["local_steps"] == slow["clients"]
    elif work == ("epochs",):
        assert slow["local_steps"] == usual["local_steps"] // 2
    else:
        assert slow["clients"] <= slow["local_steps"] < 0.8 * usual["local_steps"]


@pytest.mark.thorough
def test_what_a_lost_client_keeps() -> None:
    optimizer = federated.local_optimizer("sgd", momentum=0.5)
    keeping = {"keep_optimizer": True, "local_optimizer": optimizer}
    ends = {
        commit: toy.train(unreliable(setup=keeping, lost=0.999999, commit=commit), KEY, DATA, 1)[0]
        for commit in ("ack", "local")
    }
    start, _ = toy.train(unreliable(setup=keeping, lost=0.999999), KEY, DATA, 0)
    chex.assert_trees_all_equal(ends["ack"].clients, start.clients)
    assert not np.array_equal(
        *[jax.tree.leaves(state.clients.optimizer)[0] for state in (ends["local"], start)]
    )
    chex.assert_trees_all_equal(ends["local"].params, start.params)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "given", "settings"),
    [
        ("fedavg", {"probability": 0.9, "lost": 0.1, "weights": "fixed", "slow": 0.3}, {}),
        ("semifl", {"probability": "uniform:0.8:1", "lost": 0.1}, {"threshold": 0.5}),
        ("xclp", {"lost": 0.1, "lost_when": "codes"}, {"num_bits": 256, "num_neighbors": 3}),
    ],
)
def test_unreliable_clients_keep_the_promises(name: str, given: dict, settings: dict) -> None:
    def build(data, **changes) -> federated.Method:
        run = toy.setup(data, augment=toy.jitter, **changes)
        facts = Facts(data.num_clients, run.cohort_size, None)
        how = participation(facts, run.local_epochs, **given)
        return methods.build(name, run._replace(participation=how), **settings)

    trial = promises.trial_of(build, promises.Special())
    lost = sum(info["lost_clients"] + DATA.num_clients - info["clients"] for info in trial.infos)
    assert lost > 0
    # Of others a client is missed that was away.
    for promise in (
        promises.state_keeps_its_types_and_rounds_compile_once,
        promises.same_key_same_bits_other_key_other_result,
        promises.order_of_storage_does_not_matter,
        promises.hidden_labels_do_not_leak,
        promises.resume_is_bit_exact,
        promises.predictions_are_normalized_log_probabilities,
        promises.keys_placement_and_padding_do_not_matter,
        promises.lanes_train_every_client_as_if_alone,
    ):
        promise(trial)


@pytest.mark.thorough
def test_the_page_on_unreliable_clients_runs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "unreliable.md"
    mark = "<!-- tests/federated/test_participation.py runs this block. -->\n```python\n"
    block = page.read_text(encoding="utf-8").partition(mark)[2].partition("```")[0]
    exec(compile(block.replace('"rounds": 20', '"rounds": 2'), str(page), "exec"), {})
    assert "times a writer was lost" in capsys.readouterr().out
