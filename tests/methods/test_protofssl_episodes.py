"""Episodes: what a local step draws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.federated import Client
from fedjax_ssl.methods.protofssl import ProtoFSSL, episodes
from tests import toy

STEPS = 12
CLASSES = 4
LABELS = [0] * 6 + [1] * 2 + [2]  # of class 3 there is none


def client(labels=tuple(LABELS), unlabelled: int = 5, padding: int = 3) -> Client:
    size = len(labels) + unlabelled + padding
    observed = np.full(size, -1, np.int32)
    observed[: len(labels)] = labels
    count = jnp.asarray(len(labels), jnp.int32)
    total = jnp.asarray(len(labels) + unlabelled, jnp.int32)
    index = jnp.asarray(np.arange(size, dtype=np.int32))
    return Client(
        jnp.asarray(0, jnp.int32),
        index,
        jnp.asarray(observed),
        count,
        total,
        sent={},
        sent_by_optimizer=(),
    )


@functools.partial(jax.jit, static_argnames=("bound", "num_unlabelled", "support"))
def schedule_of(one: Client, key, learns, bound: int, num_unlabelled: int, support: int):
    run = toy.setup(toy.federation(), local_epochs=STEPS)
    run = run._replace(num_classes=CLASSES, max_labelled=bound)
    settings = ProtoFSSL(
        num_support=support,
        num_unlabelled=max(num_unlabelled, 1),
        unlabelled_weight=float(num_unlabelled > 0),
    )
    return episodes(run, settings, lambda now: learns).schedule(key, one, toy.NOW)


def draw(
    one: Client,
    seed: int = 0,
    bound: int = 12,
    num_unlabelled: int = 4,
    learns: bool = True,
    support: int = 1,
):
    schedule = schedule_of(
        one, jax.random.key(seed), np.bool_(learns), bound, num_unlabelled, support
    )
    return jax.tree.map(np.asarray, schedule)


def test_support_and_queries_are_distinct_and_of_their_class() -> None:
    schedule = draw(client())
    labels = np.array(LABELS)
    for step in range(STEPS):
        drawn = {}
        for stream, width in (("support", 1), ("query", 2)):
            mask = schedule.masks[stream][step].reshape(CLASSES, width)
            places = schedule.positions[stream][step].reshape(CLASSES, width)
            drawn[stream] = [places[k][mask[k]] for k in range(CLASSES)]
            assert all((labels[drawn[stream][k]] == k).all() for k in range(CLASSES))
        # enough labels; one support and one query; a single one is support; nothing
        assert [len(s) for s in drawn["support"]] == [1, 1, 1, 0]
        assert [len(q) for q in drawn["query"]] == [2, 1, 0, 0]
        together = np.concatenate(drawn["support"] + drawn["query"])
        assert len(np.unique(together)) == len(together)
    assert schedule.num_steps == STEPS


def test_every_labelled_example_is_drawn_as_often() -> None:
    counts = np.zeros(6)
    for seed in range(40):
        schedule = draw(client(), seed)
        for stream, width in (("support", 1), ("query", 2)):
            np.add.at(
                counts,
                schedule.positions[stream].reshape(STEPS, CLASSES, width)[:, 0].reshape(-1),
                1,
            )
    # 1440 draws of 6: standard deviation about 14 (without replacement); five of them
    np.testing.assert_allclose(counts, 240, atol=70)


@pytest.mark.parametrize(
    ("number", "support", "query"), [(1, 1, 0), (2, 1, 1), (3, 2, 1), (4, 3, 1), (9, 3, 2)]
)
def test_classes_with_fewer_labels_than_asked_for(number: int, support: int, query: int) -> None:
    schedule = draw(client(labels=(2,) * number), support=3)
    assert (schedule.masks["support"].sum(1) == support).all()
    assert (schedule.masks["query"].sum(1) == query).all()


def test_unlabelled_queries_do_not_repeat() -> None:
    schedule = draw(client())
    assert schedule.masks["unlabelled"].sum(1).tolist() == [4] * STEPS
    assert not draw(client(), learns=False).masks["unlabelled"].any()
    for step in range(STEPS):
        places = schedule.positions["unlabelled"][step]
        assert (
            len(np.unique(places)) == 4
            and places.min() >= len(LABELS)
            and places.max() < len(LABELS) + 5
        )
    few = draw(client(unlabelled=3))
    assert few.masks["unlabelled"].sum(1).tolist() == [3] * STEPS
    assert "unlabelled" not in draw(client(), num_unlabelled=0).masks


def test_padding_and_bounds_change_no_draw() -> None:
    plain = draw(client())
    padded = draw(client(padding=9), bound=17)
    for stream in ("support", "query", "unlabelled"):
        np.testing.assert_array_equal(plain.masks[stream], padded.masks[stream])
        mask = plain.masks[stream]
        np.testing.assert_array_equal(plain.positions[stream][mask], padded.positions[stream][mask])


@pytest.mark.parametrize(
    ("labels", "unlabelled", "learns", "steps"),
    [((), 5, True, STEPS), ((), 5, False, 0), ((), 0, True, 0), ((1,), 0, False, STEPS)],
)
def test_a_client_with_nothing_to_learn_from_takes_no_step(
    labels, unlabelled, learns, steps
) -> None:
    assert draw(client(labels=labels, unlabelled=unlabelled), learns=learns).num_steps == steps
