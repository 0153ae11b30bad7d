"""FedMatch's networks: the sizes in the paper, no bias anywhere, and inputs that are converted
in the open.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models


def shapes(name: str, shape: tuple[int, ...] = (32, 32, 3), **options: object) -> dict:
    return jax.eval_shape(
        models.build(name, num_classes=10, input_shape=shape, **options).init, jax.random.key(0)
    )[0]


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("fedmatch_resnet9", {}, 6_568_640),
        ("fedmatch_resnet9", {"shape": (28, 28, 1), "pad": 2, "colours": True}, 6_568_640),
        (
            "fedmatch_resnet9",
            {"width_factor": 0.25},
            27 * 16 + 9 * (16 * 32 + 2 * 32**2 + 32 * 64 + 64 * 128 + 2 * 128**2) + 1280,
        ),
        ("fedmatch_alexnet", {}, 3072 + 73_728 + 131_072 + 1024 * 2048 + 2048**2 + 20_480),
        ("fedmatch_alexnet", {"shape": (28, 28, 1), "pad": 2, "colours": True}, 6_519_808),
    ],
)
def test_parameter_counts(name: str, options: dict, count: int) -> None:
    params = shapes(name, **options)
    assert models.count_parameters(params) == count
    assert not [
        path for path, _ in jax.tree_util.tree_leaves_with_path(params) if path[-1].key == "bias"
    ]


def test_costs_of_the_paper() -> None:
    """FedMatch section 13, check 19: 379,261,952 products an image; 1,524.6 GFLOP for 50 + 4 *
    490 forward passes.
    """
    params = shapes("fedmatch_resnet9")
    sides = (32, 32, 16, 16, 16, 8, 4, 4)  # of the images that the eight convolutions read
    kernels = [math.prod(params[f"block{i}"]["conv"]["kernel"].shape) for i in range(1, 9)]
    head = math.prod(params["head"]["kernel"].shape)
    forward = 2 * (
        head + sum(side**2 * kernel for side, kernel in zip(sides, kernels, strict=True))
    )
    assert forward == 2 * 379_261_952
    assert (50 + (2 + 2) * 490) * forward / 1e9 == pytest.approx(1524.6, abs=0.05)


def test_grey_images_are_shown_in_three_channels_inside_a_border() -> None:
    options = {"num_classes": 3, "width_factor": 1 / 32, "lowering": "lax"}
    grey = models.build("fedmatch_alexnet", input_shape=(17, 17, 1), pad=1, colours=True, **options)
    plain = models.build("fedmatch_alexnet", input_shape=(19, 19, 3), **options)
    params, state = grey.init(jax.random.key(0))
    images = np.random.default_rng(0).normal(size=(2, 17, 17, 1)).astype(np.float32)
    by_hand = np.repeat(np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0))), 3, axis=3)
    found, expected = (
        jax.jit(lambda x, m=m: m.apply(params, state, x, train=False)[0].logits)(jnp.asarray(x))
        for m, x in ((grey, images), (plain, by_hand))
    )
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).max() > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "fedmatch_resnet9",
            {"colours": True},
            r"\(height, width, 1\) with colours=True, got \(32, 32, 3\)",
        ),
        ("fedmatch_alexnet", {"shape": (18, 18, 1)}, "needs images of 19x19 or more"),
        ("fedmatch_alexnet", {"shape": (64,)}, r"\(height, width, channels\), got \(64,\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shapes(name, **options)
