"""EfficientNet-B0: sizes, torchvision's values, blocks, stochastic depth."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.models.efficientnet import STAGES, InvertedResidual, StochasticDepth
from tests.models.torchvision_arrays import efficientnet_b0_arrays

# Computed once in float64 by torchvision 0.28.0's efficientnet_b0 in evaluation mode, with the
# arrays of efficientnet_b0_arrays(3) and the images of the test: the first five features of each
# image and the class scores.
TORCHVISION_FEATURES = [
    [0.1080155, 0.0055649, 0.4823749, 0.0155505, 0.0990581],
    [0.1105453, 0.0328267, 0.5511217, 0.0410213, 0.2319800],
]
TORCHVISION_LOGITS = [[-0.0946571, -0.7985419, 0.4235910], [0.1991685, -0.7497403, -0.1908249]]


def shapes(num_classes, shape=(64, 64, 3), **options):
    model = models.build("efficientnet_b0", num_classes=num_classes, input_shape=shape, **options)
    return model, jax.eval_shape(model.init, jax.random.key(0))


@pytest.mark.thorough
def test_parameter_counts():
    _, (params, state) = shapes(1000)
    assert models.count_parameters(params) == 5_288_548
    assert (
        models.count_parameters({name: tree for name, tree in params.items() if name != "head"})
        == 4_007_548
    )
    assert models.count_parameters(state) == 42_016
    _, (params, _) = shapes(8, shape=(28, 28, 1), aux_head=True)
    assert models.count_parameters(params) == 4_007_548 - 2 * 9 * 32 + 2 * (1280 * 8 + 8)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "efficientnet_b0.npz"
    np.savez(path, **efficientnet_b0_arrays(3))
    return path


@pytest.mark.thorough
def test_values_are_torchvisions(exported):
    options = {"num_classes": 3, "input_shape": (40, 33, 3)}
    model = models.build("efficientnet_b0", **options, weights=str(exported))
    params, state = model.init(jax.random.key(0))
    x = np.random.RandomState(999).uniform(-2, 2, (2, 40, 33, 3)).astype(np.float32)
    outputs, new_state = jax.jit(lambda x: model.apply(params, state, x, train=False))(x)
    assert outputs.features.shape == (2, 1280)
    np.testing.assert_allclose(outputs.features[:, :5], TORCHVISION_FEATURES, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(outputs.logits, TORCHVISION_LOGITS, rtol=1e-3, atol=1e-4)
    chex.assert_trees_all_equal(new_state, state)


@pytest.mark.thorough
def test_another_number_of_classes_and_a_second_head_start_at_random(exported):
    model, template = shapes(8, weights=str(exported), aux_head=True)
    first = model.init(jax.random.key(0))
    second = model.init(jax.random.key(1))
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(lambda leaf: leaf.shape, template)
    differ = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), *(params for params, _ in (first, second))
    )
    assert {name for name, tree in differ.items() if any(jax.tree.leaves(tree))} == {
        "head",
        "aux_head",
    }
    chex.assert_trees_all_equal(first[1], second[1])
    chex.assert_trees_all_equal(first, model.init(jax.random.key(0)))


@pytest.mark.thorough
def test_training_needs_a_key_unless_nothing_is_drawn():
    model, (params, state) = shapes(3)
    x = jax.ShapeDtypeStruct((2, 64, 64, 3), jnp.float32)
    with pytest.raises(ValueError, match="needs key="):
        jax.eval_shape(lambda *arguments: model.apply(*arguments, train=True), params, state, x)
    model, _ = shapes(3, dropout_rate=0.0, stochastic_depth=0.0, normalize_features=True)
    low = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), params)
    outputs, new_state = jax.eval_shape(
        lambda *arguments: model.apply(*arguments, train=True), low, state, x
    )
    assert outputs.features.dtype == outputs.logits.dtype == jnp.bfloat16
    assert new_state == state


def test_stochastic_depth_drops_examples():
    x = jnp.ones((512, 2, 1, 3))
    layer = StochasticDepth(0.25)
    y = np.asarray(layer.apply({}, x, True, rngs={"dropout": jax.random.key(0)})).reshape(512, -1)
    dropped = (y == 0).all(1)
    np.testing.assert_allclose(y[~dropped], 1 / 0.75, rtol=1e-6)
    assert abs(dropped.mean() - 0.25) < 0.08  # four standard deviations
    np.testing.assert_array_equal(layer.apply({}, x, False), x)


def test_padding_rows_and_dropped_blocks_change_nothing():
    block = InvertedResidual(STAGES[1]._replace(filters=4), 1, 0.5, "auto")
    x = np.random.default_rng(0).standard_normal((16, 3, 3, 4), np.float32)
    template = jax.eval_shape(lambda key, x: block.init(key, x, False, None), jax.random.key(0), x)
    variables = jax.tree.map(
        lambda leaf: np.abs(np.random.default_rng(1).standard_normal(leaf.shape, np.float32)),
        template,
    )

    @jax.jit
    def train(x):
        mask = jnp.arange(16) < 12
        return block.apply(
            variables, x, True, mask, rngs={"dropout": jax.random.key(1)}, mutable=["batch_stats"]
        )

    outputs, new = train(x)
    others, other = train(np.where(np.arange(16).reshape(-1, 1, 1, 1) < 12, x, 1e3))
    np.testing.assert_array_equal(outputs[:12], others[:12])
    chex.assert_trees_all_equal(new, other)
    kept_as_they_were = (np.asarray(outputs) == x).all((1, 2, 3))
    assert 0 < kept_as_they_were.sum() < 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_shape": (64,)}, "height, width, channels"),
        ({"weights": "nowhere.npz"}, "weights nowhere.npz is not there"),
    ],
)
def test_bad_builds(options, message):
    with pytest.raises(ValueError, match=message):
        models.build("efficientnet_b0", **{"num_classes": 3, "input_shape": (32, 32, 3), **options})


@pytest.mark.thorough
def test_images_of_other_channels_do_not_fit_the_weights(exported):
    with pytest.raises(
        ValueError,
        match=r"'features\.0\.0\.weight' has shape \(32, 3, 3, 3\), .* needs \(32, 1, 3, 3",
    ):
        models.build(
            "efficientnet_b0", num_classes=3, input_shape=(32, 32, 1), weights=str(exported)
        )
