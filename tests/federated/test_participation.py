"""Clients that are absent from a round or drop out of it."""

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
from fedjax_ssl.federated import Participation, participation
from fedjax_ssl.testing import promises
from tests import toy

DATA = toy.federation(noise=1.0)
KEY = jax.random.key(2)


def unreliable(setup=None, **given):
    setup = toy.setup(DATA, **(setup or {}))
    return methods.build("fedavg", setup._replace(participation=participation(**given)))


class ByTable(Participation):
    """Participation by tables [rounds, C] in place of draws."""

    def happens(self, name, probability, run_key, number, ids):
        number_of_clients = DATA.num_clients
        nobody = jnp.zeros(number_of_clients, bool)
        tables = {
            "available": jnp.stack([~nobody, ~nobody, nobody]),
            "lost": jnp.stack([jnp.arange(number_of_clients) == 1, ~nobody, nobody]),
        }
        return tables[name][number, ids]


@pytest.fixture(scope="module")
def losing():
    """FedAvg that loses client 1 in its first round, everybody in the second; in the third nobody
    is there.
    """
    optimizer = federated.local_optimizer("sgd", momentum=0.5)
    keeping = {"keep_optimizer": True, "local_optimizer": optimizer}
    setup = toy.setup(DATA, **keeping)
    method = methods.build("fedavg", setup._replace(participation=ByTable(0.5, 0.5)))
    one_round = jax.jit(method.round)
    states = [method.init(KEY, DATA)]
    infos = []
    for _ in range(3):
        state, info = one_round(KEY, states[-1], DATA)
        states.append(state)
        infos.append(toy.numbers(info))
    return states, infos, setup


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
    half = participation(probability=0.5)
    drawn = [
        np.asarray(half.happens("available", half.probability, key, number, jnp.arange(1000)))
        for key, number in ((KEY, jnp.int32(0)), (KEY, jnp.int32(1)), (jax.random.key(3), 0))
    ]
    assert all(430 < there.sum() < 570 for there in drawn)
    assert not np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    # The same of the first clients, however many there are.
    first = half.happens("available", half.probability, KEY, jnp.int32(0), jnp.arange(10))
    np.testing.assert_array_equal(first, drawn[0][:10])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"probability": 1.5}, "probability is 1.5; it must be a number in [0, 1]"),
        ({"probability": 0.0}, "probability is 0, so that no client is ever there"),
        ({"lost": 1.0}, "lost is 1, so that nothing of any client ever arrives"),
        ({"lost": 0.5, "lost_when": "soon"}, "lost_when is 'soon'. Allowed: start, codes"),
    ],
)
def test_what_cannot_be_is_refused(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        participation(**given)


def test_a_config_says_it() -> None:
    config = resolved(fs.load_config("digits_fedavg", {"participation.probability": "0.5"}))
    assert config.participation.probability == 0.5
    assert fs.config.traced_numbers(config)["participation.probability"] == 0.5
    with pytest.raises(ConfigError, match=r"config.participation.lost is 2"):
        resolved(fs.load_config("digits_fedavg", {"participation.lost": 2}))
    for old, when in (("lost_before", "start"), ("lost_after", "codes")):
        with pytest.raises(
            ConfigError, match=f"is gone: write config.participation.lost with .*{when}"
        ):
            fs.load_config("digits_xclp", {f"method.{old}": 0.5})


@pytest.mark.promise
@pytest.mark.thorough
def test_reliable_clients_change_no_bit() -> None:
    plain, _ = toy.train(methods.build("fedavg", toy.setup(DATA)), KEY, DATA, 2)
    always, _ = toy.train(unreliable(probability=1.0), KEY, DATA, 2)
    chex.assert_trees_all_equal(plain, always)


@pytest.mark.promise
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "given", "settings"),
    [
        ("fedavg", {"probability": 0.9, "lost": 0.1}, {}),
        ("semifl", {"probability": 0.9, "lost": 0.1}, {"threshold": 0.5}),
        ("xclp", {"lost": 0.1, "lost_when": "codes"}, {"num_bits": 256, "num_neighbors": 3}),
    ],
)
def test_unreliable_clients_keep_the_promises(name: str, given: dict, settings: dict) -> None:
    def build(data, **changes) -> federated.Method:
        run = toy.setup(data, augment=toy.jitter, participation=participation(**given), **changes)
        return methods.build(name, run, **settings)

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


@pytest.mark.promise
@pytest.mark.thorough
def test_the_page_on_unreliable_clients_runs(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "unreliable.md"
    mark = "<!-- tests/federated/test_participation.py runs this block. -->\n```python\n"
    block = page.read_text(encoding="utf-8").partition(mark)[2].partition("```")[0]
    exec(compile(block.replace('"rounds": 20', '"rounds": 2'), str(page), "exec"), {})
    assert "times a writer was lost" in capsys.readouterr().out
