"""Losses and prototype bank of ProtoFSSL: the worked numbers of section 16, and invariants."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.methods import protofssl
from fedjax_ssl.methods.parts import prototype_bank
from fedjax_ssl.methods.parts.prototype_bank import PrototypeSets, empty_bank
from fedjax_ssl.methods.protofssl import ProtoFSSL
from tests.objectives.test_prototypes import ALL, HELPERS, LABELLED, LOCAL, UNLABELLED

# Compiled: one program is quicker than many operations.
query_loss = jax.jit(protofssl.query_loss, static_argnames="settings")
unlabelled_loss = jax.jit(protofssl.unlabelled_loss, static_argnames="settings")
pseudo_labels = jax.jit(protofssl.pseudo_labels, static_argnames="settings")
mean_log_probs = jax.jit(protofssl.mean_log_probs, static_argnames="distance")
push = jax.jit(prototype_bank.push)
newest_sets = jax.jit(prototype_bank.newest_sets, static_argnums=1)
choose_helpers = jax.jit(prototype_bank.choose_helpers, static_argnames=("rounds", "num_helpers"))

FLOWING = ProtoFSSL()


def sets(centers: np.ndarray = HELPERS) -> PrototypeSets:
    return PrototypeSets(jnp.asarray(centers), jnp.ones(centers.shape[:-1], bool))


def unlabelled(
    z, present=ALL, helpers: np.ndarray = HELPERS, settings: ProtoFSSL = FLOWING
) -> jax.Array:
    mask = jnp.ones(len(z), bool)
    return unlabelled_loss(
        jnp.asarray(z), mask, jnp.asarray(LOCAL), jnp.asarray(present), sets(helpers), settings
    )


def test_whole_loss(float64) -> None:
    """With padding rows that hold NaN-free nonsense."""
    queries = jnp.asarray(np.concatenate([LABELLED, 99 * np.ones((1, 4))]))
    targets = jnp.asarray([0, 2, -1], jnp.int32)
    supervised = query_loss(queries, targets, jnp.asarray(LOCAL), jnp.asarray(ALL), FLOWING)
    assert float(supervised) == pytest.approx(0.5439378175, abs=1e-10)
    rows = jnp.asarray(np.concatenate([UNLABELLED, 99 * np.ones((1, 4))]))
    mask = jnp.asarray([True, True, False])
    found = unlabelled_loss(rows, mask, jnp.asarray(LOCAL), jnp.asarray(ALL), sets(), FLOWING)
    assert float(found) == pytest.approx(0.7752577009, abs=1e-10)
    assert float(supervised + 0.3 * found) == pytest.approx(0.7765151278, abs=1e-10)


@pytest.mark.parametrize(
    ("helpers", "settings", "value", "slope"),
    [
        (HELPERS, FLOWING, 1.0711757850, [0.0250047687, 0.3643027151, 0.1763269585, -0.0167191592]),
        (
            LOCAL[None],
            dataclasses.replace(FLOWING, temperature=1.0),
            0.9753278292,
            [0.0610515550] * 2 + [0.1831546649, 0.0610515550],
        ),
    ],
)
def test_gradients_through_pseudo_labels_or_not(float64, helpers, settings, value, slope) -> None:
    """One helper at T = 1 is distillation from its prototypes."""
    found, gradient = jax.value_and_grad(
        lambda z: unlabelled(z, helpers=helpers, settings=settings)
    )(jnp.asarray(UNLABELLED[:1]))
    assert float(found) == pytest.approx(value, abs=1e-10)
    np.testing.assert_allclose(gradient, [slope], atol=1e-10)


def test_a_missing_local_class_keeps_its_clipped_part(float64) -> None:
    """The clipped probability of the missing class counts in the loss."""
    present = np.array([True, False, True])
    losses = [float(unlabelled(UNLABELLED[i : i + 1], present)) for i in (0, 1)]
    np.testing.assert_allclose(losses, [4.2149089592, 14.5245975033], atol=1e-9)
    assert float(unlabelled(UNLABELLED, present)) == pytest.approx(9.3697532313, abs=1e-9)


def test_held_or_flowing_the_loss_is_the_same(float64) -> None:
    """And so is the gradient where no class lacks; else a helper's prototype of the class alone
    moves the pseudo-label towards it: where it is held, along no direction.
    """
    held = dataclasses.replace(FLOWING, absent_classes="stop")
    flowing = dataclasses.replace(FLOWING, absent_classes="flow")

    def loss(centre: jax.Array, settings: ProtoFSSL, present) -> jax.Array:
        helpers = jnp.asarray(HELPERS).at[:, 1].set(centre)
        return unlabelled(UNLABELLED, present, helpers, settings)

    both = jax.value_and_grad(loss)
    for lacks in (False, True):
        present = np.array([True, not lacks, True])
        one, other = (both(jnp.asarray(HELPERS[0, 1]), how, present) for how in (held, flowing))
        assert one[0] == other[0] and np.any(other[1])
        np.testing.assert_array_equal(one[1], 0 * other[1] if lacks else other[1])


def test_queries_of_a_class_without_prototype_do_not_count(float64) -> None:
    targets = jnp.asarray([0, 1], jnp.int32)

    def loss(present, rows: slice = slice(None)):
        there = jnp.asarray(present)
        return jax.value_and_grad(
            lambda z: query_loss(z, targets[rows], jnp.asarray(LOCAL), there, FLOWING)
        )(jnp.asarray(LABELLED[rows]))

    both, alone = (loss([True, False, True], rows) for rows in (slice(None), slice(1)))
    assert float(both[0]) == pytest.approx(float(alone[0]), rel=1e-12)
    value, slope = loss([False] * 3)
    assert value == 0 and not np.any(slope)


@pytest.mark.parametrize(("there", "rows"), [(False, True), (True, False)])
def test_without_helpers_or_unlabelled_examples_the_loss_is_nothing(there, rows) -> None:
    """No NaN from 0/0, in the value or in the gradient."""
    helpers = PrototypeSets(jnp.asarray(HELPERS, jnp.float32), jnp.full((2, 3), there))
    mask = jnp.full(2, rows)
    local = jnp.asarray(LOCAL, jnp.float32)
    value, slope = jax.value_and_grad(
        lambda z: unlabelled_loss(z, mask, local, jnp.asarray(ALL), helpers, FLOWING)
    )(jnp.asarray(UNLABELLED, jnp.float32))
    assert value == 0 and np.isfinite(slope).all() and not np.any(slope)


def test_what_must_not_change_a_probability(float64) -> None:
    """A shift and a rotation of everything, the order of helpers, every helper twice, and the
    numbering of classes; equal prototypes tell nothing.
    """
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    shift = rng.normal(size=4)

    def found(helpers, z=UNLABELLED) -> jax.Array:
        return pseudo_labels(jnp.asarray(z), sets(helpers), FLOWING)

    expected = np.asarray(found(HELPERS))
    for other, same in (
        (found(HELPERS @ rotation + shift, UNLABELLED @ rotation + shift), expected),
        (found(HELPERS[::-1]), expected),
        (found(np.tile(HELPERS, (2, 1, 1))), expected),
        (found(HELPERS[:, [2, 0, 1]]), expected[:, [2, 0, 1]]),
        (found(np.ones((2, 3, 4))), np.full((2, 3), 1 / 3)),
    ):
        np.testing.assert_allclose(other, same, rtol=1e-12)


def test_predictions_average_probabilities_and_not_prototypes(float64) -> None:
    """Z = 1.8, helpers (0, 2) and (4, 1): class 1 with 0.9730; the mean prototypes would say
    class 0.
    """
    for helpers, kind, probability in (
        ([[[0.0], [2.0]], [[4.0], [1.0]]], 1, 0.9730),
        ([[[2.0], [1.5]]], 0, 0.5125),
    ):
        found = np.exp(mean_log_probs(jnp.asarray([[1.8]]), sets(np.array(helpers)), "mean_sq"))
        assert found[0, kind] == pytest.approx(probability, abs=5e-5)


@pytest.mark.parametrize(("first", "expected"), [(True, [1, 0, 0]), (False, [1 / 3] * 3)])
def test_predictions_are_finite_where_classes_or_sets_are_missing(first, expected) -> None:
    helpers = PrototypeSets(
        jnp.asarray(HELPERS, jnp.float32), jnp.zeros((2, 3), bool).at[0, 0].set(first)
    )
    found = mean_log_probs(jnp.asarray(UNLABELLED, jnp.float32), helpers, "mean_sq")
    np.testing.assert_allclose(np.exp(found), [expected] * 2, atol=1e-6)
    assert np.isfinite(found).all()


def upload(value: float, present: list[list[bool]]) -> PrototypeSets:
    given = jnp.asarray(present)
    return PrototypeSets(jnp.full((*given.shape, 2), value), given)


IDS = jnp.asarray([4, 7], jnp.int32)
KEPT = jnp.asarray([True, True])
FULL = [[True] * 3] * 2


def test_the_bank_replaces_the_oldest_round() -> None:
    bank = empty_bank(2, 2, 3, 2)
    for value in (1.0, 2.0, 3.0):
        bank = push(bank, upload(value, FULL), IDS, KEPT)
    np.testing.assert_array_equal(bank.sets.centers[:, 0, 0, 0], [3, 2])
    np.testing.assert_array_equal(bank.owner, [[4, 7], [4, 7]])


def test_sets_of_dropped_clients_and_sets_that_are_not_finite_stay_out() -> None:
    before = push(empty_bank(2, 2, 3, 2), upload(1.0, FULL), IDS, KEPT)
    after = push(before, upload(2.0, FULL), IDS, jnp.asarray([False, True]))
    np.testing.assert_array_equal(after.sets.present[0], [[False] * 3, [True] * 3])
    broken = upload(2.0, FULL)
    broken = broken._replace(centers=broken.centers.at[0, 1, 0].set(jnp.nan))
    after = push(before, broken, IDS, KEPT)
    np.testing.assert_array_equal(after.sets.present[0], [[False] * 3, [True] * 3])
    chex.assert_tree_all_finite(after)
    # What stands in the place of a class that is not there does not matter.
    absent = PrototypeSets(broken.centers, jnp.asarray([[True, False, True], [True] * 3]))
    assert bool(push(before, absent, IDS, KEPT).sets.present[0, 0, 0])
    chex.assert_trees_all_equal(push(before, broken, IDS, jnp.asarray([True, False])), before)


@pytest.mark.parametrize("has_other", [True, False])
def test_a_class_that_a_set_lacks_is_the_mean_of_the_others(has_other: bool) -> None:
    """(1, 3) and (3, 5) give (2, 4); sets without any class stay empty."""
    centers = jnp.ones((3, 2, 2)).at[:, 0].set(jnp.asarray([[1.0, 3], [3, 5], [0, 0]]))
    present = jnp.asarray([[True, True], [True, True], [False, has_other]])
    ids = jnp.arange(3, dtype=jnp.int32)
    bank = push(empty_bank(1, 3, 2, 2), PrototypeSets(centers, present), ids, ids >= 0)
    found = newest_sets(bank, 1)
    np.testing.assert_array_equal(found.present, [[True] * 2] * 2 + [[has_other] * 2])
    if has_other:
        np.testing.assert_array_equal(found.centers[2, 0], [2, 4])


def test_helpers_follow_from_client_ids_and_not_from_slots() -> None:
    uploads = PrototypeSets(
        jnp.arange(4.0)[:, None, None] * jnp.ones((4, 3, 2)), jnp.ones((4, 3), bool)
    )
    ids = jnp.asarray([3, 5, 6, 9], jnp.int32)
    bank = push(empty_bank(2, 4, 3, 2), uploads, ids, jnp.ones(4, bool))
    turned = jax.tree.map(lambda x: x[::-1], (uploads, ids))
    other = push(empty_bank(2, 4, 3, 2), *turned, jnp.ones(4, bool))
    counts = np.zeros(4)
    for seed in range(30):
        first, second = (choose_helpers(jax.random.key(seed), one, 1, 2) for one in (bank, other))
        chosen = np.asarray(first.centers[:, 0, 0]).astype(int)
        assert (
            set(chosen) == set(np.asarray(second.centers[:, 0, 0]).astype(int))
            and len(set(chosen)) == 2
        )
        counts[chosen] += 1
    assert counts.min() >= 5  # 15 expected, standard deviation 2.7
    # Empty sets are chosen last.
    few = push(empty_bank(2, 4, 3, 2), uploads, ids, jnp.asarray([False, True, False, True]))
    assert bool(choose_helpers(jax.random.key(0), few, 2, 2).present.all())


# What a round costs: the analytic costs of Tables 1 and 2, to every printed digit.


@pytest.mark.parametrize(
    ("helpers", "gflop", "megabytes"), [(2, 447.915, 52.588), (5, 447.922, 52.649)]
)
def test_costs_of_table_2(helpers, gflop, megabytes) -> None:
    """Printed there: 447.9 and 52.6."""
    model = models.build("resnet8", num_classes=10, input_shape=(32, 32, 3))
    size = 4 * models.count_parameters(jax.eval_shape(model.init, jax.random.key(0))[0])
    operations, sent = protofssl.analytic_cost(
        50, 490, model.forward_operations(), size, helpers, num_classes=10, num_features=512
    )
    assert (round(operations / 1e9, 3), round(sent / 1e6, 3)) == (gflop, megabytes)


def test_cost_formulas_count_passes_and_helpers() -> None:
    # 5 features, 7 classes, 3 helpers: 5 * 3 * 7 multiplications for an unlabelled example, and 4
    # sets of 7 * 20 bytes.
    found = protofssl.analytic_cost(3, 10, 2, 100, 3, 7, 5, passes=4)
    assert found == (2 * 13 * 4 + 105 * 10 * 4 + 2 * 3, 200 + 4 * 140)
