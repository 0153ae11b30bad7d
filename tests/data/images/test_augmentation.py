"""Augmentation and normalization."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from fedjax_ssl.data.images.augmentation import AUGMENTATIONS, augmentation
from fedjax_ssl.data.images.weak import slide, turn

STRONG = [name for name in AUGMENTATIONS if name.startswith(("fixmatch", "randaugment"))]
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 9, 7, 3)).astype(np.uint8)


def candidates(image, pixels, mode, flips):
    """Every result that the augmentation may give for one image, by NumPy's padding."""
    height, width, _ = image.shape
    padded = np.pad(image, ((pixels, pixels), (pixels, pixels), (0, 0)), mode=mode)
    crops = [
        padded[top : top + height, left : left + width]
        for top in range(2 * pixels + 1)
        for left in range(2 * pixels + 1)
    ]
    return np.stack(crops + [crop[:, ::-1] for crop in crops] if flips else crops)


@pytest.mark.parametrize(
    ("name", "options", "mode"),
    [
        ("shift", {"pixels": 2}, "reflect"),
        ("shift", {"pixels": 3, "fill": "constant"}, "constant"),
        ("crop_flip", {"pixels": 2}, "reflect"),
        ("crop_flip", {"pixels": 6, "fill": "constant"}, "constant"),
    ],
)
def test_every_result_is_a_padded_crop_and_all_occur(name, options, mode):
    # 150 keys x 12 images over at most 50 outcomes for pixels=2: one stays out with probability
    # below 1e-13.
    augment = jax.jit(jax.vmap(augmentation(name, **options), (0, None)))
    results = np.asarray(augment(jax.random.split(jax.random.key(0), 150), jnp.asarray(IMAGES)))
    assert results.shape == (150, *IMAGES.shape) and results.dtype == np.uint8
    seen = set()
    for place, image in enumerate(IMAGES):
        allowed = candidates(image, options["pixels"], mode, name == "crop_flip")
        lookup = {crop.tobytes(): number for number, crop in enumerate(allowed)}
        seen |= {lookup[np.ascontiguousarray(result).tobytes()] for result in results[:, place]}
    if options["pixels"] == 2:
        assert len(seen) == (50 if name == "crop_flip" else 25)


@pytest.mark.thorough
@pytest.mark.promise
def test_flamby_changes_every_second_image_within_its_bounds():
    quarters = np.full((400, 128, 128, 1), 128, np.uint8)
    quarters[:, :64, 64:], quarters[:, 64:, :64] = 98, 158
    augment = jax.jit(augmentation("flamby"))
    grey, turned = (
        np.asarray(augment(jax.random.key(0), x)) for x in (np.full_like(quarters, 128), quarters)
    )
    middle = grey[:, 64, 64, 0].astype(int)
    # A square of 16 of 128 pixels hides the middle in 16 of 113 places, along both axes.
    hides = 0.5 * np.mean([1 - (1 - (16 / 113) ** 2) ** count for count in range(1, 9)])
    assert np.mean(middle == 0) == pytest.approx(hides, abs=0.03)
    assert np.mean(middle[middle > 0] == 128) == pytest.approx(0.5, abs=0.08)
    # 128 x (1 +- 0.1) +- 38.25
    assert 77 <= middle[middle > 0].min() < 90 and 166 < middle.max() <= 179
    parts = [
        turned[:, rows, columns].mean((1, 2, 3))
        for rows in (slice(16, 64), slice(64, 112))
        for columns in (slice(16, 64), slice(64, 112))
    ]
    right = parts[1] + parts[3] > parts[0] + parts[2]
    below = parts[2] + parts[3] < parts[0] + parts[1]
    shares = [
        np.mean((right == flipped) & (below == upside))
        for flipped in (False, True)
        for upside in (False, True)
    ]
    np.testing.assert_allclose(shares, [1 / 2, 1 / 6, 1 / 6, 1 / 6], atol=0.08)


# `test_random_augment.py` shows the same of the strong ones by a policy that compiles in less time.
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.thorough if n in STRONG else ()) for n in AUGMENTATIONS],
)
def test_padding_key_and_dtype(name):
    augment = jax.jit(augmentation(name))
    images = jnp.asarray(IMAGES)
    result = augment(jax.random.key(1), images)
    np.testing.assert_array_equal(result, augment(jax.random.key(1), images))
    padded = augment(jax.random.key(1), jnp.concatenate([images, images[:5]]))
    np.testing.assert_array_equal(padded[:12], result)
    floats = augment(jax.random.key(1), images.astype(jnp.float32))
    assert floats.dtype == jnp.float32
    whole = jnp.round(floats) if name in ("translate", "resize_crop", "flamby") else floats
    rounded_twice = 1.0 if name == "resize_crop" else 0.0
    np.testing.assert_allclose(whole, np.asarray(result, np.float32), rtol=0, atol=rounded_twice)
    assert (name == "none") == bool((result == images).all())
    if name != "none":
        assert (augment(jax.random.key(2), images) != result).any()


def test_images_of_a_batch_move_independently():
    same = jnp.asarray(np.broadcast_to(IMAGES[:1], IMAGES.shape))
    moved = np.asarray(jax.jit(augmentation("shift", pixels=2))(jax.random.key(0), same))
    assert len({image.tobytes() for image in moved}) > 5


def test_vmapped_over_clients_is_the_same_per_client():
    augment = augmentation("crop_flip", pixels=2)
    keys = jax.random.split(jax.random.key(3), 3)
    batches = jnp.asarray(np.stack([IMAGES, IMAGES[::-1], IMAGES]))
    stacked = jax.jit(jax.vmap(augment))(keys, batches)
    one = jax.jit(augment)
    alone = [one(key, batch) for key, batch in zip(keys, batches, strict=True)]
    np.testing.assert_array_equal(stacked, np.stack(alone))


def test_no_shift_and_constant_value():
    images = jnp.asarray(IMAGES)
    np.testing.assert_array_equal(
        augmentation("shift", pixels=0)(jax.random.key(0), images), images
    )
    augment = augmentation("shift", pixels=6, fill="constant")
    assert set(np.unique(augment(jax.random.key(0), jnp.ones_like(images)))) == {0, 1}


@pytest.mark.thorough
def test_resize_crop_cuts_windows_out_of_what_pillow_enlarges():
    image = np.random.default_rng(0).integers(0, 256, (8, 6, 3), np.uint8)
    enlarged = np.asarray(Image.fromarray(image).resize((9, 9), Image.Resampling.BILINEAR))
    windows = [enlarged[y : y + 8, x : x + 6] for y in range(2) for x in range(4)]
    allowed = np.stack(windows + [window[:, ::-1] for window in windows]).astype(int)
    cut = np.asarray(
        augmentation("resize_crop", size=9)(jax.random.key(0), jnp.asarray(np.stack([image] * 200)))
    )
    # A value halfway between two whole ones may go either way: Pillow's weights are rounded, too.
    away = np.abs(cut.astype(int)[:, None] - allowed).max(axis=(2, 3, 4))
    assert (away.min(axis=1) <= 1).all()
    # one of 16 is missing with probability 16 * exp(-13)
    assert set(away.argmin(axis=1)) == set(range(16))
    with pytest.raises(
        ValueError, match="size=7 must be at least the images' size, which is 8 x 6"
    ):
        augmentation("resize_crop", size=7)(jax.random.key(0), jnp.asarray(image[None]))


def test_images_that_do_not_fit():
    with pytest.raises(
        ValueError, match="pixels=7 must be smaller than the images, which are 9 x 7"
    ):
        augmentation("shift", pixels=7)(jax.random.key(0), jnp.asarray(IMAGES))
    with pytest.raises(
        ValueError, match=r"augmentation needs images \[n, H, W, C\], got shape \(4, 5\)"
    ):
        augmentation("shift")(jax.random.key(0), jnp.zeros((4, 5)))


def test_rotation_is_about_the_centre_within_the_given_angle():
    square = jnp.asarray(IMAGES[:, :7])
    for turns in range(4):
        turned = jax.jit(turn)(square, jnp.full(12, turns * np.pi / 2, jnp.float32))
        np.testing.assert_array_equal(turned, np.rot90(square, turns, axes=(1, 2)))
    # A bar from the centre to the right, seen under the angles that were drawn.
    bar = np.zeros((400, 41, 41, 1), np.float32)
    bar[:, 20, 20:] = 1.0
    weight = np.asarray(
        jax.jit(augmentation("rotate", degrees=20.0))(jax.random.key(0), bar)[..., 0]
    )
    assert weight.sum(axis=(1, 2)).min() > 15, "the bar stays in the image"
    y, x = np.mgrid[:41, :41] - 20.0
    angles = np.rad2deg(
        np.arctan2(-np.sum(weight * y, axis=(1, 2)), np.sum(weight * x, axis=(1, 2)))
    )
    assert -21 < angles.min() < -18 and 18 < angles.max() < 21, (
        "both ends of the range, and nothing beyond"
    )
    assert abs(angles.mean()) < 2


@pytest.mark.parametrize("name", STRONG)
def test_shape_and_type_stay(name):
    for images in (IMAGES, IMAGES[..., :1].astype(np.float32), IMAGES[:1], IMAGES[:0]):
        result = jax.eval_shape(augmentation(name), jax.random.key(0), images)
        assert (result.shape, result.dtype) == (images.shape, images.dtype)


def test_translation_by_parts_of_pixels():
    images = IMAGES[:4].astype(np.float32)
    offset = np.array([0.0, 1.75, -0.4, -8.2], np.float32)
    for axis in (1, 2):
        moved = jax.jit(slide, static_argnums=(2, 3))(images, offset, axis, 9.0)
        for image, by, result in zip(images, offset, moved, strict=True):
            shift = np.where(np.arange(3) == axis - 1, by, 0.0)
            expected = ndimage.shift(image, shift, order=1, mode="grid-constant", cval=9.0)
            np.testing.assert_allclose(result, expected, atol=1e-3)
    # A ramp tells how far each image moved: at most two pixels of sixteen, in both directions.
    ramp = np.broadcast_to(
        np.arange(16.0)[:, None, None] * 10 + np.arange(16.0)[:, None], (300, 16, 16, 1)
    )
    augment = jax.jit(augmentation("translate", flip=False, input_max=510.0))
    results = np.asarray(augment(jax.random.key(0), ramp.astype(np.float32)))[..., 0]
    moved = 7.5 * 11 - results[:, 4:12, 4:12].mean(axis=(1, 2))
    assert -22 <= moved.min() < -17 and 17 < moved.max() <= 22
    # The corner is all border where either offset is above 1: 300 images are off by 0.12 with
    # probability below 1e-4.
    assert abs((results[:, 0, 0] == 255).mean() - (1 - 0.75**2)) < 0.12


def test_names_with_commas_between_are_a_chain() -> None:
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)), jnp.uint8)
    key = jax.random.key(4)
    chain = augmentation("rotate, flip,shift", degrees=10.0, pixels=1)
    expected = images
    for place, link in enumerate((augmentation("rotate", degrees=10.0), augmentation("flip"))):
        expected = link(jax.random.fold_in(key, place), expected)
    expected = augmentation("shift", pixels=1)(jax.random.fold_in(key, 2), expected)
    np.testing.assert_array_equal(chain(key, images), expected)
    assert set(AUGMENTATIONS.options("rotate,translate")) == {"degrees", "flip"}
    assert AUGMENTATIONS.takes("rotate,translate", "input_max")
    with pytest.raises(ValueError, match="Did you mean 'flip'"):
        augmentation("rotate,flp")
    with pytest.raises(ValueError, match="degrees"):
        augmentation("rotate,flip", degrees=200.0)
    with pytest.raises(ValueError, match="pixels"):
        augmentation("rotate,flip", pixels=3)


def test_every_second_image_is_mirrored() -> None:
    images = jnp.asarray(np.random.default_rng(1).random((400, 2, 3, 1)))
    found = np.asarray(augmentation("flip")(jax.random.key(0), images))
    same = (found == np.asarray(images)).all((1, 2, 3))
    np.testing.assert_array_equal(found[~same], np.asarray(images)[~same][:, :, ::-1])
    assert 160 < same.sum() < 240
