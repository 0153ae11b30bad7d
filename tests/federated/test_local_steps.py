"""`optimizer.local_steps`: a fixed number of local updates, whose batches go on from round to
round.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl.config import ConfigError, ConfigNote
from fedjax_ssl.federated import (
    Kept,
    Now,
    labelled_epochs,
    mixed_epochs,
    paired_batches,
    to_numbers,
)
from fedjax_ssl.federated.sampler import LOCAL_STEPS, passes
from tests.federated.test_sampler import a_client

RUN = jax.random.key(3)
FIVE = {"optimizer.local_epochs": 1, "optimizer.local_steps": 5}


def batches(
    number: int, batch_size: int, steps: int, rounds: int, bound: int = 12, identity: int = 0
) -> list[list]:
    """The positions of all steps of a client that takes part in every round."""
    sampler = labelled_epochs(batch_size, 1, bound).going_on(steps)
    draw = jax.jit(sampler.schedule)
    taken = []
    for round in range(rounds):
        kept = Kept({}, {}, {LOCAL_STEPS: jnp.int32(len(taken))}, ())
        client = a_client(number, number, 16)._replace(kept=kept, id=jnp.int32(identity))
        drawn = draw(jax.random.key(round), client, Now(jnp.int32(round), run_key=RUN))
        positions = drawn.positions["labelled"]
        masks = drawn.masks["labelled"]
        taken += [row[mask].tolist() for row, mask in zip(positions, masks, strict=True)][
            : int(drawn.num_steps)
        ]
    return taken


@pytest.mark.parametrize(
    ("number", "batch_size", "steps"), [(10, 4, 4), (12, 4, 2), (3, 4, 5), (7, 1, 9), (1, 2, 3)]
)
def test_batches_go_through_permutations_that_live_on_between_rounds(number, batch_size, steps):
    per_pass = -(-number // batch_size)
    taken = batches(number, batch_size, steps, 3 * per_pass)
    assert len(taken) == 3 * per_pass * steps
    passes = [
        [place for batch in taken[start : start + per_pass] for place in batch]
        for start in range(0, len(taken), per_pass)
    ]
    assert all(sorted(one) == list(range(number)) for one in passes)
    if number > 5:
        assert len(set(map(tuple, passes))) == len(passes)


def test_they_are_the_same_however_rounds_cut_them_and_however_wide_tables_are():
    plain = batches(10, 4, 4, 6)
    assert batches(10, 4, 8, 3) == plain
    assert batches(10, 4, 4, 6, bound=16) == plain
    assert batches(10, 4, 4, 6, identity=1) != plain


def run(**settings):
    fields = {
        "rounds": 4,
        "eval_every": 1,
        "optimizer.local_epochs": 1,
        "optimizer.local_steps": 3,
        **settings,
    }
    return fs.make_train(fs.load_config("digits_fedavg", fields))


def test_clients_without_labels_sit_out_and_drawn_ones_go_on():
    train = run(**{"supervision.labelled_clients": 4, "federated.cohort_size": 3})
    state, metrics = train(jax.random.key(0))
    assert to_numbers(metrics)["local_steps"].tolist() == [9, 9, 9, 9]
    steps = np.asarray(state.clients.terms[LOCAL_STEPS])
    assert steps.sum() == 36
    assert (steps > 0).sum() == 4
    assert (steps % 3 == 0).all()


@pytest.mark.thorough
def test_one_step_a_round_of_a_single_client_is_gradient_descent_over_its_passes():
    """Rounds of one step are those of a pass cut into pieces: FedAvg of one client does not see
    rounds.
    """
    one = {
        "partition.name": "iid",
        "partition.num_clients": 1,
        "federated.cohort_size": None,
        "supervision.labels": 50,
    }
    many, few = (
        run(**one, **{"rounds": r, "optimizer.local_steps": s}) for r, s in ((12, 1), (4, 3))
    )
    (first, _) = many(jax.random.key(1))
    (second, _) = few(jax.random.key(1))
    for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(second.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def drawn(sampler, labelled: int, examples: int):
    """Positions of real rows by stream, step by step, and the number of steps."""
    schedule = sampler.going_on(4).schedule
    found = schedule(RUN, a_client(labelled, examples, 16), Now(jnp.int32(0), run_key=RUN))
    rows = {
        name: [row[mask].tolist() for row, mask in zip(table, found.masks[name], strict=True)]
        for name, table in found.positions.items()
    }
    return rows, int(found.num_steps)


@pytest.mark.parametrize("labelled_too", [False, True])
def test_pairs_of_batches_have_the_steps_that_are_given(labelled_too: bool) -> None:
    sampler = paired_batches(2, 3, passes(2, 3, 1, 5, 12), 5, 12, labelled_too)
    rows, steps = drawn(sampler, 2, 8)
    assert steps == 4 and [sorted(row) for row in rows["labelled"]] == 4 * [[0, 1]]
    seen = [place for row in rows["unlabelled"] for place in row]
    first = 0 if labelled_too else 2
    assert sorted(seen[: 8 - first]) == list(range(first, 8)) and len(seen) == 12
    assert drawn(sampler, 0, 0)[1] == 0


@pytest.mark.parametrize(
    ("labelled", "examples", "halves"), [(2, 8, (2, 2)), (0, 8, (0, 4)), (3, 3, (2, 0))]
)
def test_mixed_batches_have_the_steps_that_are_given(labelled, examples, halves) -> None:
    rows, steps = drawn(mixed_epochs(2, 1, 5, 12), labelled, examples)
    assert steps == 4
    for row in rows["mixed"]:
        with_label = sum(place < labelled for place in row)
        assert (with_label, len(row) - with_label) == halves
    others = [place for row in rows["mixed"] for place in row if place >= labelled]
    left = examples - labelled
    assert sorted(others[:left]) == list(range(labelled, examples))[: len(others)]


def test_other_batches_are_refused_and_epochs_beside_it_are_noted():
    with pytest.raises(
        ConfigError, match=r"local_steps is 5, but this method draws its batches otherwise"
    ):
        fs.make_train(fs.load_config("digits_protofssl", FIVE))(jax.random.key(0))
    with pytest.warns(
        ConfigNote,
        match=r"local_epochs=5 has no effect at the clients: config\.optimizer\.local_steps=3",
    ):
        run(**{"optimizer.local_epochs": 5})
