"""Uploads that come late, and a server that waits for a number of them."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.contrib.asynchronous import asynchronous, late_uploads
from fedjax_ssl.contrib.optimizers.fednova import fednova
from fedjax_ssl.federated import build, grouped, local, scaffold
from fedjax_ssl.federated.uploads.sums import SUMS
from tests import toy

DATA = toy.federation(noise=1.0)
KEY = jax.random.key(2)
CLIENTS = DATA.num_clients - 1  # one has no label and never trains


def recipe_of(name: str = "fedavg", **setup):
    return methods.recipe(name, toy.setup(DATA, **setup))


def steps(sent: list[list[tuple[float, int]]], delay: int, buffer: int = 1) -> list[float]:
    """What the server steps with, round by round, of uploads (value, delay) of one number each."""
    transform = late_uploads(0.0, delay, buffer, 1)
    state = transform.init({"model": jnp.zeros(())})
    found = []
    for uploads in sent:
        zero = jnp.zeros(())
        count = zero + len(uploads)
        later = jnp.zeros(delay)
        weights = jnp.zeros(delay)
        now = [value for value, rounds in uploads if rounds == 0]
        for value, rounds in uploads:
            if rounds:
                later = later.at[rounds - 1].add(value)
                weights = weights.at[rounds - 1].add(1.0)
        total = toy.total({"model": count}, {"model": sum(now, zero)})
        total = total._replace(
            weight=count,
            statistics=sum(now, zero)[None],
            averages={
                "late": {
                    "update": {"model": later},
                    "statistics": later[:, None],
                    "weight": weights,
                    "number": weights,
                    "on_time": zero + len(now),
                }
            },
        )
        total, state = transform.at_server(KEY, total, None, state)
        found.append((total.update["model"], total.statistics[0], total.weight))
    return np.asarray(found).tolist()


@pytest.mark.usefixtures("float64")
def test_uploads_arrive_after_their_delay_and_count_less() -> None:
    late, latest = 2 / np.sqrt(2), 4 / np.sqrt(3)  # in round 2 nothing arrives
    expected = [(1, 1, 1), (late, late, 1), (0, 0, 0), (latest, latest, 1), (0, 0, 0)]
    np.testing.assert_allclose(steps([[(1, 0), (2, 1), (4, 3)], [], [], [], []], 3), expected)


@pytest.mark.usefixtures("float64")
def test_behind_a_buffer_staleness_counts_steps_of_the_server() -> None:
    """The upload of round 0 comes four rounds late, when with K = 2 the server has stepped once."""
    sent = [[(1, 4)], [(1, 0)], [(1, 0)], [(1, 0)], [(1, 0)], [(1, 0)]]
    late = 1 + 1 + 2**-0.5
    expected = [(0, 0, 0), (0, 0, 0), (2, 2, 2), (0, 0, 0), (late, late, 3), (0, 0, 0)]
    np.testing.assert_allclose(steps(sent, 4, buffer=2), expected)


def test_the_server_steps_once_as_many_uploads_lie_there() -> None:
    sent = [[(1, 0), (1, 0)]] * 6
    assert [weight for *_, weight in steps(sent, 1, buffer=5)] == [0, 0, 6, 0, 0, 6]


def test_a_buffer_of_the_cohort_without_delay_is_fedavg_bit_for_bit() -> None:
    plain, _ = toy.train(build(recipe_of()), KEY, DATA, 2)
    method = build(asynchronous(recipe_of(), late=0.0, delay=1, buffer=CLIENTS))
    buffered, _ = toy.train(method, KEY, DATA, 2)
    chex.assert_trees_all_equal(plain.params, buffered.params)


def test_a_round_late_is_the_round_before() -> None:
    """All updates of round 0 come in round 1: until then the model stands still."""
    method = build(asynchronous(recipe_of(weighting="examples"), late=1.0, delay=1))
    start, first, second = (toy.train(method, KEY, DATA, rounds)[0] for rounds in (0, 1, 2))
    chex.assert_trees_all_equal(first.params, start.params)
    on_time, _ = toy.train(build(recipe_of(weighting="examples")), KEY, DATA, 1)
    chex.assert_trees_all_close(second.params, on_time.params, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "setup", "message"),
    [
        ("xclp", {}, "clients also send codes of their examples"),
        ("protofssl", {}, "clients also send what the term"),
        ("fedavg", {"federated_optimizer": scaffold()}, "what the federated optimizer"),
        ("fedavg", {"federated_optimizer": fednova()}, "what the federated optimizer"),
        ("fedavg", {"federated_optimizer": local()}, "has several or weighs"),
        ("fedavg", {"federated_optimizer": grouped((3, 3))}, "has several or weighs"),
        ("fedavg", {"combine_uploads": SUMS.build("median")}, "config.sum needs each upload"),
    ],
)
def test_what_cannot_be_late_is_refused(name: str, setup: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        asynchronous(recipe_of(name, **setup))
