"""Random augmentation: what is drawn, how often, and for whom."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_ssl.data import augmentation
from fedjax_ssl.data.images import policies, random_augment
from fedjax_ssl.data.images.policies import Choice, Policy
from fedjax_ssl.data.images.random_augment import branch, draw

IMAGES = np.random.default_rng(1).integers(0, 256, (21, 8, 7, 3)).astype(np.uint8)
# A chi-square test of a right generator fails with this probability; the keys are fixed.
UNLIKELY = 1e-4
MOST = 20_000


@pytest.fixture(scope="module")
def drawn():
    """What fedmatch's policy draws for many images, each its own."""
    policy = policies.fedmatch()
    return policy, jax.device_get(
        jax.jit(lambda key: draw(key, policy, MOST, MOST))(jax.random.key(3))
    )


def fits(counts, shares):
    return stats.chisquare(counts, np.asarray(shares) * np.sum(counts)).pvalue > UNLIKELY


def test_operations_and_levels_have_the_published_frequencies(drawn):
    policy, draws = drawn
    assert len(policy.choices) == 13 and draws.operation.shape == (6, MOST)
    assert draws.applied.all()
    for slot in range(6):
        assert fits(np.bincount(draws.operation[slot], minlength=13), np.full(13, 1 / 13))
    # U{0..M-1} with M uniform on 2..5.
    shares = [np.mean([1 / most * (index < most) for most in (2, 3, 4, 5)]) for index in range(5)]
    np.testing.assert_allclose(shares, [0.3208, 0.3208, 0.1958, 0.1125, 0.05], atol=5e-5)
    for slot in range(6):
        assert fits(np.bincount(draws.entry[slot] // 2, minlength=5), shares)
        assert fits(np.bincount(draws.entry[slot] % 2, minlength=2), [0.5, 0.5])
    # An image has one M for all its operations: two of them are at index 4 in 1 / 25 of the quarter
    # with M = 5.
    both = np.mean((draws.entry[:2] // 2 == 4).all(axis=0))
    assert abs(both - 0.25 / 25) < 4 * np.sqrt(0.01 / MOST)


def test_six_operations_do_nothing_as_often_as_published(drawn):
    policy, draws = drawn
    idle = []
    for choice in policy.choices:
        amounts = choice.amounts or (0.0,) * 5
        neutral = {"solarize": 256.0, "posterize": 8.0}.get(choice.operation, 0.0)
        idle.append(
            [choice.operation != "autocontrast" and amount == neutral for amount in amounts]
        )
    share = np.asarray(idle)[draws.operation, draws.entry // 2]
    assert abs(share.mean() - 0.373) < 0.005, "37.3 % of draws"
    # All six of an image: its M is shared, so that the probability is a mean of sixth powers over
    # M.
    idle_given_most = np.array([(1 + 12 / most) / 13 for most in (2, 3, 4, 5)])
    assert abs(idle_given_most.mean() - 0.373) < 5e-4
    assert abs(share.all(axis=0).mean() - np.mean(idle_given_most**6)) < 0.0025


def test_first_entries_change_nothing():
    """Index 0 of every table, and index 1 of posterize."""
    policy = policies.fedmatch()
    planes = np.moveaxis(IMAGES, -1, 1).astype(np.float32)
    steps = [branch(choice, 8, 7, 3) for choice in policy.choices if choice.amounts]
    posterize = next(c for c in policy.choices if c.operation == "posterize")

    @jax.jit
    def first(entry):
        entries = jnp.full(len(planes), entry, jnp.int32)
        spot = jnp.zeros((len(planes), 2))
        return [step(planes, entries, spot) for step in steps] + [
            branch(posterize, 8, 7, 3)(planes, entries + 2, spot)
        ]

    for entry in np.int32([0, 1]):
        for result in first(entry):
            np.testing.assert_array_equal(result, planes)


def test_a_constant_image_stays_under_operations_that_stretch_or_blend():
    flat = np.full((2, 3, 5, 5), 93.0, np.float32)
    names = ("autocontrast", "equalize", "contrast", "color", "sharpness")
    choices = [Choice(name, (0.3,), signed=True) for name in names]
    steps = [branch(choice, 5, 5, 3) for choice in choices]
    results = jax.jit(lambda e, s: [step(flat, e, s) for step in steps])(
        jnp.arange(2), jnp.zeros((2, 2))
    )
    for result in results:
        np.testing.assert_array_equal(result, flat)


@pytest.mark.parametrize(
    ("policy", "operations", "levels", "chance"),
    [
        (policies.levelled(True), 14, 9, 0.5),
        (policies.fixmatch(), 14, policies.LEVELS, 1.0),
        (policies.fl2(), 14, policies.LEVELS, 1.0),
    ],
)
def test_every_policy_draws_uniformly(policy, operations, levels, chance):
    assert (
        len(policy.choices) == operations and policy.levels == (levels,) and policy.chance == chance
    )
    assert {len(c.amounts) for c in policy.choices if c.operation not in ("cutout",)} <= {
        0,
        1,
        levels,
    }
    assert len({c.operation for c in policy.choices}) == operations


def test_tables_hold_the_published_strengths():
    def amounts(policy, name):
        return next(
            c.amounts for c in (*policy.choices, policy.cutout) if c and c.operation == name
        )

    fedmatch = policies.fedmatch()
    sage = policies.levelled(True)
    np.testing.assert_allclose(
        amounts(fedmatch, "solarize"), [256, 253.22, 250.44, 247.67, 244.89], atol=0.005
    )
    assert amounts(fedmatch, "posterize") == (8, 8, 7, 7, 6)
    np.testing.assert_allclose(amounts(fedmatch, "rotate"), [0, 40, 80, 120, 160])
    np.testing.assert_allclose(
        np.multiply(amounts(fedmatch, "translate_x"), 32), [0, 0.71, 1.42, 2.13, 2.84], atol=5e-3
    )
    assert amounts(sage, "translate_x") == (0, 1, 2, 3, 4, 5, 6, 7, 8)
    assert amounts(sage, "posterize") == (4, 4, 5, 5, 6, 6, 6, 7, 7)
    for policy in (policies.fixmatch(), policies.fl2()):
        turn = amounts(policy, "rotate")
        factor = amounts(policy, "contrast")
        assert -30 < turn[0] < -29.9 < 29.9 < turn[-1] < 30 and 0.05 < factor[0] < factor[-1] < 0.95
    assert set(amounts(policies.fl2(), "posterize")) == {4, 5, 6, 7}
    assert set(amounts(policies.fixmatch(), "posterize")) == {4, 5, 6, 7, 8}


def small(groups, number=3):
    """A policy that compiles quickly and shows its draws: values change by operation, level and
    sign.
    """
    choices = (
        Choice("solarize", (0.0,)),
        Choice("solarize", (60.0, 120.0)),
        Choice("translate_x", (1.0, 2.0), True, True),
    )
    policy = Policy(
        choices,
        number,
        chance=0.8,
        levels=(2,),
        cutout=Choice("cutout", (0.3, 0.6), fill=(1.0, 2.0, 3.0)),
    )
    return functools.partial(random_augment.random_augment, policy=policy, groups=groups)


@pytest.mark.thorough
def test_every_way_to_compute_gives_the_same_images():
    """One after another, several clients under `vmap`, all at once as on accelerators, and a
    longer batch.
    """
    augment = small(4)
    keys = jax.random.split(jax.random.key(0), 2)
    batch = jnp.stack([IMAGES, IMAGES[::-1]])
    alone = jax.jit(augment)(keys[0], batch[0])
    np.testing.assert_array_equal(jax.jit(jax.vmap(augment))(keys, batch)[0], alone)
    longer = jnp.concatenate([batch[0], batch[1, :6]])
    np.testing.assert_array_equal(jax.jit(augment)(keys[0], longer)[:21], alone)
    at_once = functools.partial(augment, in_turn=False)
    np.testing.assert_array_equal(jax.jit(jax.vmap(at_once))(keys, batch)[0], alone)
    assert (np.asarray(alone) != IMAGES).any(axis=(1, 2, 3)).mean() > 0.8


def test_a_group_shares_operations_and_an_image_has_its_own_without():
    same = jnp.asarray(np.broadcast_to(IMAGES[:1], (24, *IMAGES.shape[1:])))
    policy = Policy(
        (Choice("solarize", (0.0,)), Choice("identity"), Choice("posterize", (1.0,))),
        4,
        levels=(1,),
    )
    shared = np.asarray(
        jax.jit(lambda k: random_augment.random_augment(k, same, policy, 3))(jax.random.key(1))
    )
    np.testing.assert_array_equal(shared, np.tile(shared[:3], (8, 1, 1, 1)))
    apart = np.asarray(
        jax.jit(lambda k: random_augment.random_augment(k, same, policy, 24))(jax.random.key(1))
    )
    assert len({image.tobytes() for image in apart}) > 3
    np.testing.assert_array_equal(apart[:3], shared[:3])


def test_cutouts_lie_where_their_rule_says():
    """Full squares are cut at the far borders only: 40 pixels hide all of 32 x 32 in 43 % of
    draws.
    """
    count = 4000
    white = np.full((count, 1, 32, 32), 255.0, np.float32)
    spot = np.random.default_rng(0).random((count, 2)).astype(np.float32)
    make = {
        full: branch(Choice("cutout", (40.0,), pixels=True, full=full), 32, 32, 1)
        for full in (True, False)
    }
    cut = jax.jit(
        lambda s: [make[full](white, jnp.zeros(count, jnp.int32), s) for full in (True, False)]
    )(spot)
    hidden = [np.asarray(c)[:, 0] == 0 for c in cut]
    assert (
        abs(hidden[0].all(axis=(1, 2)).mean() - (21 / 32) ** 2) < 0.03
        and abs(hidden[0].mean() - 0.88) < 0.02
    )
    assert hidden[0][:, -1].any(axis=1).all(), "it reaches the far border"
    # Around the middle otherwise: rows from 20 above it to 19 below.
    rows = np.arange(32)
    expected = np.abs(rows - np.floor(spot[:, :1] * 32) + 0.5) < 20
    np.testing.assert_array_equal(hidden[1].any(axis=2), expected)


@pytest.mark.thorough
def test_other_ranges_of_values():
    """Sixteen levels, and shares: the same operations on the same scale."""
    policy = Policy(
        (
            Choice("solarize", (0.0,)),
            Choice("translate_y", (0.25,), True),
            Choice("brightness", (0.5,)),
        ),
        2,
        levels=(1,),
    )

    def augment(images, input_max):
        run = jax.jit(lambda k: random_augment.random_augment(k, images, policy, 21, input_max))
        return np.asarray(run(jax.random.key(5)))

    wide = augment(jnp.asarray(IMAGES), 255.0)
    np.testing.assert_allclose(
        augment(jnp.asarray(IMAGES, jnp.float32) / 255, 1.0), wide / 255.0, atol=1e-6
    )
    sixteen = augment(jnp.asarray(IMAGES // 16), 16.0)
    assert sixteen.dtype == np.uint8 and sixteen.max() == 16
    # A level of 16 is 16 of 255 values, and as far may what is rounded down to it lie off.
    assert np.abs(sixteen * 15.9375 - wide).max() < 32


def test_values_outside_the_range_and_nan_stay_in_their_image():
    policy = Policy((Choice("equalize"),), 1, levels=(1,))
    run = jax.jit(
        lambda images: random_augment.random_augment(jax.random.key(0), images, policy, 1)
    )
    images = IMAGES.astype(np.float32)
    usual = np.asarray(run(images))
    images[0, 0, 0, 0], images[1, 0, 0, 0] = np.nan, 1e9
    strange = np.asarray(run(images))
    np.testing.assert_array_equal(strange[2:], usual[2:])
    assert strange[1].max() == 255


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"augmentation needs images \[n, H, W, C\], got shape \(4, 5\)"
    ):
        augmentation("fixmatch")(jax.random.key(0), jnp.zeros((4, 5)))
