"""Losses and prototype bank of ProtoFSSL: the worked numbers of section 16, and invariants."""

import dataclasses
import functools

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

# Compiled: one program is quicker than many operations.
query_loss = jax.jit(protofssl.query_loss, static_argnames="settings")
unlabelled_loss = jax.jit(protofssl.unlabelled_loss, static_argnames="settings")
pseudo_labels = jax.jit(protofssl.pseudo_labels, static_argnames="settings")
mean_log_probs = jax.jit(protofssl.mean_log_probs, static_argnames="distance")
push = jax.jit(prototype_bank.push)
newest_sets = jax.jit(prototype_bank.newest_sets, static_argnums=1)
choose_helpers = jax.jit(prototype_bank.choose_helpers, static_argnames=("rounds", "num_helpers"))

LOCAL = np.array([[1.0, 1, 0, 0], [0, 2, 2, 0], [3, 1, 1, 1]])
LABELLED = np.array([[1.0, 0, 0, 1], [2, 2, 1, 1]])
UNLABELLED = np.array([[1.0, 2, 0, 1], [0, 1, 2, 0]])
HELPERS = np.array(
    [[[1, 0, 0, 1], [0, 2, 2, 1], [3, 2, 1, 1]], [[1, 1, 0, 1], [0, 2, 1, 0], [2, 2, 0, 2]]],
    np.float64,
)
ALL = np.ones(3, bool)
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


def test_nothing_drives_embeddings_off_a_class_without_local_labels(float64) -> None:
    """Held fixed by default; with "flow" the gradient is the formula's, as in the code."""
    present = np.array([True, False, True])
    z = jnp.asarray(UNLABELLED)
    flowing = dataclasses.replace(FLOWING, absent_classes="flow")

    def slope(settings: ProtoFSSL, present=present) -> jax.Array:
        return jax.jit(jax.grad(lambda z: unlabelled(z, present, settings=settings)))(z)

    def as_in_the_code(z: jax.Array, flows: bool = True) -> jax.Array:
        distances = jnp.mean((z[:, None] - jnp.asarray(LOCAL)) ** 2, axis=2)
        p = jax.nn.softmax(-jnp.where(present, distances, 1e18))
        by_helper = jax.nn.softmax(
            -jnp.mean((z[:, None, None] - jnp.asarray(HELPERS)) ** 2, axis=3)
        )
        mean = jnp.mean(by_helper, axis=1) ** 2
        targets = mean / jnp.sum(mean, axis=1, keepdims=True)
        targets = targets if flows else jax.lax.stop_gradient(targets)
        return -jnp.mean(jnp.sum(targets * jnp.log(jnp.clip(p, 1e-7, 1 - 1e-7)), axis=1))

    np.testing.assert_allclose(slope(flowing), jax.jit(jax.grad(as_in_the_code))(z), atol=1e-10)
    held = jax.jit(jax.grad(functools.partial(as_in_the_code, flows=False)))(z)
    np.testing.assert_allclose(slope(FLOWING), held, atol=1e-10)
    assert np.abs(slope(flowing)).max() > 10 * np.abs(slope(FLOWING)).max()
    assert unlabelled(UNLABELLED, present, settings=flowing) == unlabelled(UNLABELLED, present)
    # no class lacks: both are the code's
    np.testing.assert_array_equal(slope(flowing, ALL), slope(FLOWING, ALL))

    # A helper's prototype of the class alone moves the pseudo-label towards it: where it is fixed,
    # along no direction.
    def towards(settings: ProtoFSSL) -> jax.Array:
        def loss(centre: jax.Array) -> jax.Array:
            return unlabelled(
                UNLABELLED, present, jnp.asarray(HELPERS).at[:, 1].set(centre), settings
            )

        return jax.jit(jax.grad(loss))(jnp.asarray(HELPERS[0, 1]))

    assert np.any(towards(flowing)) and not np.any(towards(FLOWING))


def test_queries_of_a_class_without_prototype_do_not_count(float64) -> None:
    present = jnp.asarray([True, False, True])
    targets = jnp.asarray([0, 1], jnp.int32)
    both = query_loss(jnp.asarray(LABELLED), targets, jnp.asarray(LOCAL), present, FLOWING)
    alone = query_loss(jnp.asarray(LABELLED[:1]), targets[:1], jnp.asarray(LOCAL), present, FLOWING)
    assert float(both) == pytest.approx(float(alone), rel=1e-12)
    nothing = jnp.zeros(3, bool)
    value, slope = jax.value_and_grad(
        lambda z: query_loss(z, targets, jnp.asarray(LOCAL), nothing, FLOWING)
    )(jnp.asarray(LABELLED))
    assert value == 0 and not np.any(slope)


def test_without_helpers_or_unlabelled_examples_the_loss_is_nothing() -> None:
    """No NaN from 0/0, in the value or in the gradient."""
    absent = PrototypeSets(jnp.asarray(HELPERS, jnp.float32), jnp.zeros((2, 3), bool))
    for helpers, mask in (
        (absent, jnp.ones(2, bool)),
        (sets(HELPERS.astype(np.float32)), jnp.zeros(2, bool)),
    ):
        value, slope = jax.value_and_grad(
            lambda z, helpers=helpers, mask=mask: unlabelled_loss(
                z, mask, jnp.asarray(LOCAL, jnp.float32), jnp.asarray(ALL), helpers, FLOWING
            )
        )(jnp.asarray(UNLABELLED, jnp.float32))
        assert value == 0 and np.isfinite(slope).all() and not np.any(slope)


def test_what_must_not_change_a_probability(float64) -> None:
    """A shift or a rotation of everything, the order of helpers, or every helper twice."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    shift = rng.normal(size=4)
    z = jnp.asarray(UNLABELLED)
    expected = pseudo_labels(jnp.asarray(UNLABELLED), sets(), FLOWING)
    moved = pseudo_labels(
        jnp.asarray(UNLABELLED @ rotation + shift), sets(HELPERS @ rotation + shift), FLOWING
    )
    for other in (
        moved,
        pseudo_labels(z, sets(HELPERS[::-1]), FLOWING),
        pseudo_labels(z, sets(np.tile(HELPERS, (2, 1, 1))), FLOWING),
    ):
        np.testing.assert_allclose(other, expected, rtol=1e-12)
    permuted = pseudo_labels(z, sets(HELPERS[:, [2, 0, 1]]), FLOWING)
    np.testing.assert_allclose(permuted, expected[:, jnp.asarray([2, 0, 1])], rtol=1e-12)
    np.testing.assert_allclose(
        pseudo_labels(z, sets(np.ones((2, 3, 4))), FLOWING), 1 / 3, rtol=1e-12
    )


def test_predictions_average_probabilities_and_not_prototypes(float64) -> None:
    """Z = 1.8, helpers (0, 2) and (4, 1): class 1 with 0.9730; the mean prototypes would say
    class 0.
    """
    helpers = sets(np.array([[[0.0], [2.0]], [[4.0], [1.0]]]))
    found = np.exp(mean_log_probs(jnp.asarray([[1.8]]), helpers, "mean_sq"))
    assert found[0, 1] == pytest.approx(0.9730, abs=5e-5)
    merged = np.exp(
        mean_log_probs(jnp.asarray([[1.8]]), sets(np.array([[[2.0], [1.5]]])), "mean_sq")
    )
    assert merged[0, 0] == pytest.approx(0.5125, abs=5e-5)


def test_predictions_are_finite_where_classes_or_sets_are_missing() -> None:
    helpers = PrototypeSets(
        jnp.asarray(HELPERS, jnp.float32), jnp.asarray([[True, False, False], [False] * 3])
    )
    found = mean_log_probs(jnp.asarray(UNLABELLED, jnp.float32), helpers, "mean_sq")
    np.testing.assert_allclose(np.exp(found), [[1, 0, 0]] * 2, atol=1e-6)
    assert np.isfinite(found).all()
    nobody = PrototypeSets(helpers.centers, jnp.zeros((2, 3), bool))
    np.testing.assert_allclose(
        mean_log_probs(jnp.asarray(UNLABELLED, jnp.float32), nobody, "mean_sq"),
        -np.log(3),
        rtol=1e-6,
    )


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


def test_a_class_that_a_set_lacks_is_the_mean_of_the_others() -> None:
    """(1, 3) and (3, 5) give (2, 4); sets without any class stay empty."""
    centers = jnp.asarray([[[1.0, 3.0]], [[3.0, 5.0]], [[0.0, 0.0]]])
    both = jnp.concatenate([centers, jnp.ones((3, 1, 2))], axis=1)
    present = jnp.asarray([[True, True], [True, True], [False, True]])
    bank = push(
        empty_bank(1, 3, 2, 2),
        PrototypeSets(both, present),
        jnp.arange(3, dtype=jnp.int32),
        jnp.ones(3, bool),
    )
    found = newest_sets(bank, 1)
    np.testing.assert_array_equal(found.centers[2, 0], [2, 4])
    assert bool(found.present.all())
    without = push(
        empty_bank(1, 3, 2, 2),
        PrototypeSets(both, present.at[2].set(False)),
        bank.owner[0],
        jnp.ones(3, bool),
    )
    np.testing.assert_array_equal(newest_sets(without, 1).present[:, 0], [True, True, False])


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


def resnet8() -> tuple[float, int]:
    """Forward operations of an example, and bytes."""
    model = models.build("resnet8", num_classes=10, input_shape=(32, 32, 3))
    assert model.forward_operations is not None
    parameters = models.count_parameters(jax.eval_shape(model.init, jax.random.key(0))[0])
    return model.forward_operations(), 4 * parameters


@pytest.mark.parametrize(
    ("helpers", "gflop", "megabytes"), [(2, 447.915, 52.588), (5, 447.922, 52.649)]
)
def test_costs_of_table_2(helpers, gflop, megabytes) -> None:
    """Printed there: 447.9 and 52.6."""
    operations, size = protofssl.analytic_cost(
        50, 490, *resnet8(), helpers, num_classes=10, num_features=512
    )
    assert (round(operations / 1e9, 3), round(size / 1e6, 3)) == (gflop, megabytes)


def test_cost_formulas_count_passes_and_helpers() -> None:
    # 5 features, 7 classes, 3 helpers: 5 * 3 * 7 multiplications for an unlabelled example, and 4
    # sets of 7 * 20 bytes.
    found = protofssl.analytic_cost(3, 10, 2, 100, 3, 7, 5, passes=4)
    assert found == (2 * 13 * 4 + 105 * 10 * 4 + 2 * 3, 200 + 4 * 140)
    assert protofssl.analytic_cost(3, 0, 2, 100, 0, 7, 5, passes=4) == (2 * 3 * 4 + 6, 200 + 140)


def test_a_round_of_the_paper_as_it_is_run() -> None:
    """Ten episodes of 30 labelled and 100 unlabelled examples, then 50 for the prototypes: 1,350
    forward passes.
    """
    operations = resnet8()[0]
    trained = 10 * (3 * 10 + 100)
    others = 50
    assert round(operations * (trained + others) / 1e9, 1) == 1024.9
    assert round(operations * (3 * trained + others) / 1e9) == 2999
