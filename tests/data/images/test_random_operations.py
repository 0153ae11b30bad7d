"""Random image operations of strong augmentation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.data import augmentation
from fedjax_ssl.data.images.random_operations import FIXMATCH, OPERATIONS, SEMIFL, random_operations

COLOUR = jnp.asarray(np.random.default_rng(1).integers(0, 256, (64, 9, 7, 3)).astype(np.uint8))
GREY = COLOUR[..., :1]
ALWAYS = SEMIFL._replace(chance=1.0)
compiled = jax.jit(random_operations, static_argnums=(2, 3))


def applied(name, images, **changes):
    """One operation on every image, at its largest magnitude unless told otherwise."""
    strength = ALWAYS._replace(operations=(name,), **changes)
    return np.asarray(compiled(jax.random.key(0), images, strength, 1), np.float64)


def test_values_are_changed_as_named():
    before = np.asarray(COLOUR, np.float64)
    np.testing.assert_array_equal(applied("identity", COLOUR), before)
    np.testing.assert_array_equal(applied("invert", COLOUR), 255 - before)
    np.testing.assert_array_equal(applied("solarize", COLOUR), 255 - before)
    np.testing.assert_array_equal(applied("posterize", COLOUR), before // 16 * 16)
    np.testing.assert_array_equal(applied("brightness", COLOUR), np.minimum(np.round(1.9 * before), 255))
    half = applied("brightness", COLOUR, enhance=(0.5, 0.5))
    np.testing.assert_allclose(half, 0.5 * before, atol=0.5)
    stretched = applied("autocontrast", COLOUR)
    assert (stretched.min(axis=(1, 2)) == 0).all() and (stretched.max(axis=(1, 2)) == 255).all()


def test_equalized_values_are_spread_evenly_and_keep_their_order():
    narrow = (np.asarray(GREY) // 8 + 100).astype(np.uint8)
    result = applied("equalize", jnp.asarray(narrow))
    assert (result.max(axis=(1, 2)) == 255).all() and (result.min(axis=(1, 2)) == 0).all()
    for image, equalized in zip(narrow[:8], result[:8], strict=True):
        order = np.argsort(image, axis=None, kind="stable")
        assert (np.diff(equalized.reshape(-1)[order]) >= 0).all()
        # A value becomes the share of pixels that are not above it, from the lowest value's share on.
        share = np.array([(image <= value).mean() for value in image.reshape(-1)])
        expected = np.round(255 * (share - share.min()) / (1 - share.min()))
        np.testing.assert_allclose(equalized.reshape(-1), expected, atol=1)


def test_mixing_channels_leaves_grey_images_alone():
    np.testing.assert_array_equal(applied("color", GREY), np.asarray(GREY))
    faded = applied("color", COLOUR, enhance=(0.0, 0.0))
    np.testing.assert_array_equal(faded[..., 0], faded[..., 2])
    weights = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(faded[..., 0], np.asarray(COLOUR, np.float64) @ weights, atol=0.51)


@pytest.mark.parametrize(("name", "axis"), [("translate_x", 2), ("translate_y", 1)])
def test_translation_goes_both_ways_and_black_comes_in(name, axis):
    moved = applied(name, GREY, translate=2.0)
    before = np.asarray(GREY, np.float64)
    directions = set()
    for image, result in zip(before, moved, strict=True):
        shifts = [np.roll(image, by, axis - 1) for by in (2, -2)]
        for shift, edge in zip(shifts, (slice(0, 2), slice(-2, None)), strict=True):
            shift[(slice(None),) * (axis - 1) + (edge,)] = 0
        directions.add([bool((result == shift).all()) for shift in shifts].index(True))
    assert directions == {0, 1}
    assert (applied(name, GREY, translate=100.0) == 0).all()


def test_rotation_and_shear_keep_the_middle():
    square = GREY[:, :7]
    for name in ("rotate", "shear_x", "shear_y"):
        turned = applied(name, square, rotate=90.0)
        np.testing.assert_array_equal(turned[:, 3, 3], np.asarray(square)[:, 3, 3])
        if name == "rotate":
            quarter = [[np.rot90(image, k) for k in (1, 3)] for image in np.asarray(square)]
            assert all((turned[i] == q).all(axis=(1, 2, 3)).any() for i, q in enumerate(quarter))


def test_a_cutout_is_grey_and_never_larger_than_allowed():
    white = jnp.full((200, 8, 8, 1), 255, jnp.uint8)
    strength = FIXMATCH._replace(operations=("identity",))
    cut = np.asarray(compiled(jax.random.key(2), white, strength))
    assert set(np.unique(cut)) == {128, 255}
    rows, columns = (cut == 128).any(axis=2).sum(axis=1), (cut == 128).any(axis=1).sum(axis=1)
    assert rows.max() == columns.max() == 4 and rows.min() == 0


def test_every_named_operation_is_drawn_and_magnitudes_differ():
    # 64 images with 2 of 14 operations each: one operation stays out with probability below 1e-3.
    names = FIXMATCH.operations
    assert set(names) | {"invert", "cutout"} == set(OPERATIONS) and "identity" not in SEMIFL.operations
    same = jnp.broadcast_to(COLOUR[:1], COLOUR.shape)
    results = np.asarray(jax.jit(augmentation("fixmatch", pixels=2))(jax.random.key(4), same))
    assert results.dtype == np.uint8 and len({image.tobytes() for image in results}) == 64


def test_other_ranges_of_values():
    """Sixteen levels, and shares: the same operations on the same scale."""
    digits = (np.asarray(GREY) // 16).astype(np.uint8)
    strong = augmentation("semifl", pixels=1, flip=False, input_max=16)
    result = np.asarray(jax.jit(strong)(jax.random.key(5), jnp.asarray(digits)))
    assert result.dtype == np.uint8 and result.max() == 16 and len(np.unique(result)) > 10
    shares = jnp.asarray(np.asarray(GREY, np.float32) / 255)
    strong, wide = (jax.jit(augmentation("fixmatch", pixels=1, input_max=top)) for top in (1.0, 255.0))
    expected = np.asarray(wide(jax.random.key(6), GREY), np.float64) / 255
    difference = np.abs(np.asarray(strong(jax.random.key(6), shares)) - expected)
    assert (difference < 1.01 / 255).mean() > 0.98  # rounding may move a value over a threshold


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": -1}, "operations is -1; it must be a whole number of at least 0"),
        ({"input_max": 0}, "input_max is 0; it must be a number above 0"),
        ({"pixels": -2}, "pixels is -2; it must be a whole number of at least 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        augmentation("fixmatch", **options)
