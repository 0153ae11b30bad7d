"""Every network: parameter counts, contract of (init, apply), padding, options, errors."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.models.residual import PreActivationBlock, ResNet18

THOROUGH = pytest.mark.thorough
SMALL = {
    "linear": ((5,), {}),
    "mlp": ((4, 2), {"hidden": (32, 64)}),
    "cnn": ((8, 8, 1), {}),
    "cnn13": ((12, 12, 1), {}),
    "mnist_cnn": ((4, 4, 1), {}),
    "emnist_cnn": ((8, 8, 1), {}),
    "resnet18": ((8, 8, 3), {}),
    "resnet8_basic": ((4, 4, 3), {"widen": 2}),
    "wrn28": ((4, 4, 3), {"widen": 1}),
}
# the deep networks once each, most of them in `make thorough`: they take the layers' behaviour from
# the same modules
NORMS = [("mlp", "none"), ("mlp", "bn"), ("mlp", "gn"), ("cnn", "bn"), ("mnist_cnn", "bn")]
DEEP = [("cnn13", "bn"), ("resnet18", "gn"), ("wrn28", "bn")]
NORMS += [pytest.param(*more, marks=THOROUGH) for more in (("cnn", "none"), ("cnn", "gn"), *DEEP)]
FEATURES = {
    "linear": 5,
    "mlp": 64,
    "cnn": 128,
    "cnn13": 128,
    "mnist_cnn": 512,
    "emnist_cnn": 128,
    "resnet18": 512,
    "resnet8_basic": 128,
    "wrn28": 64,
}


def small(name, **options):
    shape, defaults = SMALL[name]
    return models.build(name, num_classes=3, input_shape=shape, **{**defaults, **options}), shape


def drawn(model):
    """Parameters and state of the right shapes without the network's own initialisation, which
    compiles slowly.
    """
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = rng.standard_normal(leaf.shape, np.float32) / np.sqrt(
            max(np.prod(leaf.shape[:-1]), 1)
        )
        positive = getattr(path[-1], "key", "") in ("var", "scale", "g")
        return jnp.asarray(np.abs(values) + 0.5 if positive else values)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(model.init, jax.random.key(0)))


def evaluated(model, params, state, x):
    """Outputs of the network in one program."""
    return jax.jit(lambda p, s, x: model.apply(p, s, x, train=False)[0])(params, state, x)


@pytest.mark.parametrize(
    ("name", "num_classes", "shape", "options", "count"),
    [
        ("linear", 10, (28, 28, 1), {}, 7_850),
        ("linear", 10, (28, 28, 1), {"aux_head": True}, 15_700),
        ("mlp", 10, (8, 8, 1), {}, 64 * 128 + 128 + 1_290),
        ("mlp", 10, (8, 8, 1), {"norm": "bn"}, 64 * 128 + 128 + 256 + 1_290),
        ("cnn", 62, (28, 28, 1), {}, 1_206_590),
        ("cnn", 10, (32, 32, 3), {}, 1_626_442),
        ("cnn13", 10, (32, 32, 3), {}, 3_125_908),
        ("resnet18", 100, (84, 84, 3), {"stem": "imagenet"}, 11_227_812),
        ("resnet18", 10, (32, 32, 3), {"stem": "cifar"}, 11_173_962),
        ("mnist_cnn", 10, (28, 28, 1), {}, 14_219_210),
        ("mnist_cnn", 10, (28, 28, 3), {}, 14_219_210),
        ("emnist_cnn", 47, (28, 28, 1), {}, 1_204_655),
        ("resnet18", 10, (32, 32, 3), {"stem": "cifar", "norm": "gn"}, 11_173_962),
        ("resnet9", 10, (32, 32, 3), {"norm": "gn"}, 6_575_370),
        ("resnet8_basic", 10, (32, 32, 3), {}, 1_227_594),
        ("resnet8_basic", 100, (32, 32, 3), {}, 1_250_724),
        ("wrn28", 10, (32, 32, 3), {}, 1_467_610),
    ],
)
def test_parameter_counts(name, num_classes, shape, options, count):
    model = models.build(name, num_classes=num_classes, input_shape=shape, **options)
    params, state = jax.eval_shape(model.init, jax.random.key(0))
    assert models.count_parameters(params) == count
    assert models.count_parameters(state) == {
        "cnn13": 4_096,
        "resnet18": 9_600 * (options.get("norm") != "gn"),
    }.get(name, models.count_parameters(state))


def test_initialisation_is_deterministic_and_depends_on_the_key():
    model, _ = small("mlp")
    first, second, other = (model.init(jax.random.key(seed))[0] for seed in (0, 0, 1))
    chex.assert_trees_all_equal(first, second)
    assert not np.array_equal(first["dense1"]["kernel"], other["dense1"]["kernel"])
    assert isinstance(first, dict)
    assert {leaf.dtype for leaf in jax.tree.leaves(first)} == {jnp.dtype(jnp.float32)}
    np.testing.assert_array_equal(first["head"]["bias"], 0)


SLOW = ("cnn13", "resnet18", "wrn28")  # compile for longer than all others together


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.thorough) if n in SLOW else n for n in SMALL]
)
def test_outputs(name):
    model, shape = small(name, normalize_features=True, aux_head=True)
    params, state = drawn(model)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((4, *shape), np.float32))
    outputs, new_state = jax.jit(lambda p, s, x: model.apply(p, s, x, train=False))(
        params, state, x
    )
    assert outputs.logits.shape == outputs.aux_logits.shape == (4, 3)
    assert outputs.features.shape == (4, FEATURES[name])
    assert {a.dtype for a in outputs} == {jnp.dtype(jnp.float32)}
    assert not np.allclose(outputs.logits, outputs.aux_logits)
    np.testing.assert_allclose(np.linalg.norm(outputs.features, axis=1), 1, rtol=1e-5)
    chex.assert_trees_all_equal(new_state, state)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=THOROUGH if name in ("efficientnet_b0", "wrn28") else ())
        for name in models.available()
        if "width_factor" in models.options(name)
    ],
)
def test_a_narrower_network_has_less_of_everything_and_still_works(name):
    def sizes(factor):
        model = models.build(name, num_classes=3, input_shape=(32, 32, 3), width_factor=factor)
        params, state = jax.eval_shape(model.init, jax.random.key(0))
        x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
        outputs, _ = jax.eval_shape(
            lambda p, s, x: model.apply(p, s, x, train=False), params, state, x
        )
        return sum(leaf.size for leaf in jax.tree.leaves(params)), outputs.features.shape[1]

    (whole, width) = sizes(1.0)
    (quarter, narrow) = sizes(0.25)
    assert quarter < whole / 3.4
    assert narrow == width / 4


def test_features_are_the_heads_input():
    for name in ("linear", "mlp", "cnn"):
        model, shape = small(name)
        params, state = drawn(model)
        x = jnp.asarray(np.random.default_rng(1).standard_normal((4, *shape), np.float32))
        outputs = evaluated(model, params, state, x)
        assert outputs.aux_logits is None
        logits = (
            np.asarray(outputs.features) @ np.asarray(params["head"]["kernel"]).T
            + params["head"]["bias"]
        )
        np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)


def test_linear_starts_at_zero_where_asked_to():
    model = models.build("linear", num_classes=3, input_shape=(5,), start="zero")
    params, _ = model.init(jax.random.key(0))
    assert all(not leaf.any() for leaf in jax.tree.leaves(params))


def test_mlp_without_activation_is_linear():
    model, shape = small("mlp", hidden=(6, 5), activation="none")
    params, state = drawn(model)
    x = np.random.default_rng(1).standard_normal((4, *shape), np.float32)
    outputs = evaluated(model, params, state, jnp.asarray(x))
    first, second = (params[name] for name in ("dense1", "dense2"))
    hidden = x.reshape(4, -1) @ np.asarray(first["kernel"]).T + np.asarray(first["bias"])
    features = hidden @ np.asarray(second["kernel"]).T + np.asarray(second["bias"])
    np.testing.assert_allclose(outputs.features, features, rtol=1e-4, atol=1e-5)
    assert (features < 0).any()


@pytest.mark.parametrize(("name", "norm"), NORMS)
def test_padding_rows_change_nothing(name, norm):
    model, shape = small(name, norm=norm)
    params, state = drawn(model)
    x = np.random.default_rng(1).standard_normal((5, *shape), np.float32)

    @jax.jit
    def train(x, mask):
        return model.apply(params, state, x, train=True, key=jax.random.key(1), mask=mask)

    mask = jnp.arange(7) < 5
    outputs, new_state = train(np.concatenate([x, np.full((2, *shape), 1e3, np.float32)]), mask)
    others, other_state = train(np.concatenate([x, np.zeros((2, *shape), np.float32)]), mask)
    np.testing.assert_array_equal(outputs.logits[:5], others.logits[:5])
    chex.assert_trees_all_equal(new_state, other_state)
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), new_state, state)
    assert bool(changed) == (norm == "bn")
    assert all(jax.tree.leaves(changed))
    if name in ("mlp", "cnn"):
        expected, expected_state = train(x, jnp.ones(5, bool))
        np.testing.assert_allclose(outputs.logits[:5], expected.logits, rtol=2e-3, atol=2e-4)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
            new_state,
            expected_state,
        )


def test_grey_images_are_three_equal_channels():
    grey, _ = small("mnist_cnn")
    colour = models.build("mnist_cnn", num_classes=3, input_shape=(4, 4, 3))
    params, state = drawn(grey)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 4, 4, 1), np.float32))
    outputs = evaluated(grey, params, state, x)
    expected = evaluated(colour, params, state, np.repeat(x, 3, axis=-1))
    np.testing.assert_array_equal(outputs.logits, expected.logits)


@pytest.mark.parametrize(
    ("stem", "side"), [("cifar", 32), ("imagenet", 8), ("imagenet_unpooled", 16)]
)
def test_stems_of_resnet18_shrink_the_image(stem, side):
    """By the size of what the first block returns."""
    module = ResNet18(num_classes=10, stem=stem)

    def first_block(x):
        variables = module.init(jax.random.key(0), x, False, None)
        seen = module.apply(
            variables, x, False, None, capture_intermediates=True, mutable=["intermediates"]
        )[1]
        return seen["intermediates"]["block1_1"]["__call__"][0]

    image = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    assert jax.eval_shape(first_block, image).shape == (1, side, side, 64)


@pytest.mark.parametrize(("filters", "stride"), [(3, 1), (5, 2)])
def test_blocks_of_the_wide_network(filters, stride):
    """The raw input goes around the convolutions where the width stays, else a convolution of
    the active input.
    """
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((2, 4, 4, 3), np.float32))
    block = PreActivationBlock(filters, stride, "none", "lax")
    shapes = jax.eval_shape(lambda x: block.init(jax.random.key(0), x, False, None), x)["params"]
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape, np.float32)), shapes
    )
    assert ("shortcut" in params) == (stride == 2)

    def layer(name, inputs, stride=1):
        kernel = params[name]["kernel"]
        padding = kernel.shape[0] // 2
        return (
            models.conv2d(inputs, kernel, stride=stride, padding=padding, lowering="lax")
            + params[name]["bias"]
        )

    active = jnp.maximum(x, 0)
    around = layer("shortcut", active, stride) if stride == 2 else x
    expected = around + layer("conv2", jnp.maximum(layer("conv1", active, stride), 0))
    np.testing.assert_allclose(
        block.apply({"params": params}, x, False, None), expected, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("name", "norm"), NORMS)
def test_parameters_decide_the_dtype(name, norm):
    model, shape = small(name, norm=norm, normalize_features=True, aux_head=True)
    params, state = jax.eval_shape(model.init, jax.random.key(0))
    low = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, jnp.bfloat16), params)

    def train(params, state, x, key):
        return model.apply(params, state, x, train=True, key=key)

    x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    outputs, new_state = jax.eval_shape(train, low, state, x, jax.random.key(0))
    assert {a.dtype for a in outputs} == {jnp.dtype(jnp.bfloat16)}
    assert new_state == state
    with jax.enable_x64(True):
        params, state = jax.eval_shape(model.init, jax.random.key(0))
        outputs, new_state = jax.eval_shape(train, params, state, x, jax.random.key(0))
        assert {a.dtype for a in outputs} == {jnp.dtype(jnp.float64)}
        assert new_state == state


def test_lowering_is_passed_on():
    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, 8, 8, 1), np.float32))
    params, state = drawn(small("cnn")[0])
    results = {}
    for lowering, expected in [("lax", True), ("slices", False)]:
        model, _ = small("cnn", lowering=lowering)
        evaluate = jax.jit(
            lambda x, model=model: model.apply(params, state, x, train=False)[0].logits
        )
        assert ("stablehlo.convolution" in evaluate.lower(x).as_text()) is expected
        results[lowering] = evaluate(x)
    np.testing.assert_allclose(results["lax"], results["slices"], rtol=1e-4, atol=1e-5)


def test_dropout_needs_a_key_only_where_there_is_dropout():
    shape, _ = SMALL["mlp"]
    x = jnp.ones((2, *shape))
    model, _ = small("mlp", dropout_rate=0.5)
    params, state = drawn(model)
    with pytest.raises(ValueError, match="needs key="):
        model.apply(params, state, x, train=True)
    train = jax.jit(lambda key: model.apply(params, state, x, train=True, key=key)[0].logits)
    assert not np.array_equal(train(jax.random.key(0)), train(jax.random.key(1)))
    without, _ = small("mlp", dropout_rate=0.0)
    trained = without.apply(params, state, x, train=True)[0].logits
    np.testing.assert_array_equal(trained, without.apply(params, state, x, train=False)[0].logits)
    with pytest.raises(ValueError, match="needs key="):
        cnn, cnn_shape = small("cnn")
        cnn.apply(*drawn(cnn), jnp.ones((2, *cnn_shape)), train=True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "vgg",
            {},
            "Available: linear, mlp, cnn, cnn13, mnist_cnn, emnist_cnn, resnet18, "
            "resnet8_basic, wrn28",
        ),
        ("mlp", {"norm": "gn", "hidden": [64, 20]}, "divisible by 32, layer 'norm2' has 20"),
        ("mlp", {"hidden": ()}, "positive integers"),
        ("wrn28", {"norm": "gn"}, "divisible by 32, layer 'block1_1/norm1' has 16"),
        ("mnist_cnn", {"input_shape": (3, 8, 1)}, "4x4 or more"),
        ("emnist_cnn", {"input_shape": (5, 8, 1)}, "6x6 or more"),
        ("cnn", {"input_shape": (64,)}, "height, width, channels"),
        ("cnn", {"input_shape": (5, 8, 1)}, "6x6 or more"),
        ("cnn13", {"input_shape": (8, 8, 3)}, "does not fit"),
        ("resnet18", {"input_shape": (64,)}, "height, width, channels"),
        ("mlp", {"input_shape": ()}, "input_shape"),
    ],
)
def test_bad_builds(name, options, message):
    arguments = {"num_classes": 3, "input_shape": (16, 16, 1), **options}
    with pytest.raises(ValueError, match=message):
        models.build(name, **arguments)


def test_bad_inputs():
    model, _ = small("linear")
    params, state = drawn(model)
    with pytest.raises(ValueError, match=r"built for \[n, 5\]"):
        model.apply(params, state, jnp.ones((2, 6)), train=False)
    with pytest.raises(ValueError, match="floating point"):
        model.apply(params, state, jnp.ones((2, 5), jnp.uint8), train=False)
    with pytest.raises(ValueError, match="mask must have shape"):
        model.apply(params, state, jnp.ones((2, 5)), train=False, mask=jnp.ones(3, bool))


def test_logistic_regression_is_a_sigmoid_on_one_score():
    model = models.build("logistic", num_classes=2, input_shape=(5,))
    params, state = model.init(jax.random.key(0))
    assert {name: leaf.shape for name, leaf in params.items()} == {"kernel": (5, 1), "bias": (1,)}
    assert all(0 < np.abs(leaf).max() <= 5**-0.5 for leaf in params.values())
    x = np.random.default_rng(0).standard_normal((6, 5))
    y = np.array([0, 1, 1, 0, 1, 1])

    def loss(p):
        scores = model.apply(p, state, jnp.asarray(x, jnp.float32), train=True)[0].logits
        return -jnp.mean(jax.nn.log_softmax(scores)[np.arange(6), y])

    error = 1 / (1 + np.exp(-(x @ params["kernel"][:, 0] + params["bias"]))) - y
    slope = jax.grad(loss)(params)
    np.testing.assert_allclose(slope["kernel"][:, 0], x.T @ error / 6, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(slope["bias"], [error.mean()], rtol=1e-5)
    with pytest.raises(ValueError, match="'logistic' tells 2 classes apart, with one head, not 3"):
        models.build("logistic", num_classes=3, input_shape=(5,))
