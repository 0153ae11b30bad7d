"""Image operations of RandAugment against Pillow, on all levels of the published policies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from fedjax_ssl.data.images import policies
from fedjax_ssl.data.images.policies import ENHANCERS
from fedjax_ssl.data.images.random_augment import branch

# Noise, a narrow range, few values, a constant, and a ramp: what tables and borders may get wrong.
RANDOM = np.random.default_rng(0)
NOISE = RANDOM.integers(0, 256, (3, 13, 11, 3))
COLOUR = np.concatenate(
    [
        NOISE,
        NOISE // 8 + 100,
        NOISE // 100 * 90,
        np.full((1, 13, 11, 3), 77),
        np.broadcast_to(
            np.arange(143).reshape(1, 13, 11, 1) + np.array([0, 20, 100]), (1, 13, 11, 3)
        ),
    ]
).astype(np.uint8)
GREY = np.ascontiguousarray(COLOUR[..., :1])
EVERY = {
    "fedmatch": policies.fedmatch(),
    "fixmatch": policies.fixmatch(),
    "sage": policies.levelled(whole_pixels=True),
    "fedrgd": policies.levelled(whole_pixels=False),
}
ENTRIES = 20  # the most that are compared per operation, spread over its levels and signs
# Levels by which an operation may be off. Autocontrast: a whole quotient comes out one lower in
# Pillow where its double precision rounds down. Shear by cubic interpolation: single precision,
# next to a whole number.
OFF = {"autocontrast": 1, "smooth": 1}


def pillow(choice, image, amount):
    """One operation by Pillow, as the papers' code calls it."""
    name = choice.operation
    (width, height) = image.size
    if name in ("identity", "autocontrast", "equalize"):
        return image.copy() if name == "identity" else getattr(ImageOps, name)(image)
    if name in ENHANCERS:
        return getattr(ImageEnhance, name.capitalize())(image).enhance(amount)
    if name == "posterize":
        return ImageOps.posterize(image, int(amount))
    if name == "solarize":
        return ImageOps.solarize(image, amount)
    fill = (
        choice.fill
        if image.mode == "RGB"
        else round(float(np.dot(choice.fill, [0.299, 0.587, 0.114]).sum()))
    )
    fill = tuple(int(v) for v in np.broadcast_to(fill, 3)) if image.mode == "RGB" else fill
    if name == "rotate":
        return image.rotate(amount, fillcolor=fill)
    shift = amount * (1 if choice.pixels else width if name == "translate_x" else height)
    matrix = {
        "shear_x": (1, amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, amount, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }[name]
    sampling = Image.Resampling.BICUBIC if choice.smooth else Image.Resampling.NEAREST
    return image.transform(image.size, Image.Transform.AFFINE, matrix, sampling, fillcolor=fill)


def amount_of(choice, entry):
    if not choice.amounts:
        return None
    amount = choice.amounts[entry // 2 % len(choice.amounts)]
    if choice.signed and entry % 2:
        amount = -amount
    return 1.0 + amount if choice.signed and choice.operation in ENHANCERS else amount


def entries_of(choice):
    return np.unique(np.linspace(0, 2 * max(len(choice.amounts), 1) - 1, ENTRIES).astype(np.int32))


def compare(policy, stored):
    """Largest difference in levels by operation, and the share of values that differ."""
    choices = [choice for choice in policy.choices if choice.operation != "cutout"]
    height, width, channels = stored.shape[1:]
    planes = np.moveaxis(stored, -1, 1).astype(np.float32)
    steps = [branch(choice, height, width, channels) for choice in choices]

    @jax.jit
    def ours(entries):
        spot = jnp.zeros((len(planes), 2))
        one = [
            jax.vmap(lambda e, s=step: s(planes, jnp.full(len(planes), e), spot)) for step in steps
        ]
        return [function(jnp.asarray(entry)) for function, entry in zip(one, entries, strict=True)]

    entries = [np.resize(entries_of(choice), ENTRIES) for choice in choices]
    results = ours(entries)
    for choice, entry, result in zip(choices, entries, results, strict=True):
        values = np.moveaxis(np.asarray(result), 2, -1)
        assert ((values >= 0) & (values <= 255) & (values == np.round(values))).all(), (
            choice.operation
        )
        images = [Image.fromarray(image if channels == 3 else image[..., 0]) for image in stored]
        expected = np.stack(
            [
                [np.asarray(pillow(choice, image, amount_of(choice, e))) for image in images]
                for e in entry
            ]
        ).reshape(values.shape)
        difference = np.abs(values - expected)
        allowed = OFF.get("smooth" if choice.smooth else choice.operation, 0)
        assert difference.max() <= allowed, (
            choice.operation,
            difference.max(),
            (difference > 0).mean(),
        )
        if allowed:
            assert (difference > 0).mean() < 0.01, choice.operation


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("fedmatch", "sage") else pytest.mark.thorough)
        for n in EVERY
    ],
)
def test_colour_images_are_pillows(name):
    compare(EVERY[name], COLOUR)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) for n in ("fedmatch", "sage")]
)
def test_grey_images_are_pillows(name):
    compare(EVERY[name], GREY)
