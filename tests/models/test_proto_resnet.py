"""ResNet8 and ResNet9 of ProtoFSSL: the table of their layers, pools, Keras' norm layers."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods, models
from fedjax_ssl.models.proto_resnet import ConvBlock, ResNet8, Trunk
from tests import toy

MULTIPLICATIONS = {  # 32x32: side of the convolution's output, multiply-accumulates
    1: (32, 1_769_472),
    2: (32, 75_497_472),
    3: (16, 37_748_736),
    4: (16, 37_748_736),
    5: (16, 75_497_472),
    6: (8, 75_497_472),
    7: (4, 37_748_736),
    8: (4, 37_748_736),
}


def shapes(name, shape=(32, 32, 3), **options):
    model = models.build(name, num_classes=10, input_shape=shape, **options)
    return jax.eval_shape(model.init, jax.random.key(0))


def maps(side, channels=3):
    """Shapes of what every convolution returns."""
    module = Trunk("none", "lax")

    def convolutions(x):
        variables = module.init(jax.random.key(0), x, False, None)
        kept = {
            "capture_intermediates": lambda layer, _: layer.name == "conv",
            "mutable": ["intermediates"],
        }
        features, seen = module.apply(variables, x, False, None, **kept)
        return features, seen["intermediates"]

    features, seen = jax.eval_shape(
        convolutions, jax.ShapeDtypeStruct((1, side, side, channels), jnp.float32)
    )
    assert features.shape == (1, 512)
    return {number: seen[f"block{number}"]["conv"]["__call__"][0].shape for number in range(1, 9)}


@pytest.mark.parametrize(
    ("name", "options", "count", "statistics"),
    [
        ("resnet8", {}, 6_565_760, 0),
        ("resnet9", {}, 6_570_890, 0),
        ("resnet8", {"norm": "sbn"}, 6_570_240, 4_480),
        ("resnet8", {"shape": (28, 28, 1)}, 6_565_760 - 2 * 9 * 64, 0),
        ("resnet17", {"norm": "sbn"}, 10_991_104 + 7_808, 7_808),
        ("proto_resnet18", {}, 10_996_234, 0),
    ],
)
def test_parameter_counts(name, options, count, statistics):
    params, state = shapes(name, **options)
    assert models.count_parameters(params) == count
    assert models.count_parameters(state) == statistics


def test_kernels_alone_are_the_papers_totals():
    for name, total in (("resnet8", 6_563_520), ("resnet9", 6_568_640), ("resnet17", 10_987_200)):
        leaves = jax.tree_util.tree_leaves_with_path(shapes(name)[0])
        assert (
            sum(math.prod(leaf.shape) for path, leaf in leaves if path[-1].key == "kernel") == total
        )


def test_maps_and_multiplications_of_the_table():
    channels = 3
    for number, shape in maps(32).items():
        side, expected = MULTIPLICATIONS[number]
        assert shape[1:3] == (side, side)
        assert math.prod(shape[1:]) * 9 * channels == expected
        channels = shape[3]
    assert sum(expected for _, expected in MULTIPLICATIONS.values()) == 379_256_832


@pytest.mark.parametrize(
    ("name", "side", "expected"),
    [
        ("resnet8", 32, 759_169_024),
        ("resnet9", 32, 759_179_324),
        ("resnet8", 96, 3_357_900_800),
        # products, biases, pools, residual sums
        ("resnet17", 32, 2 * 718_995_456 + 729_088 + 237_568 + 245_760),
    ],
)
def test_operations_of_a_forward_pass_are_those_of_the_cost_tables(name, side, expected):
    model = models.build(name, num_classes=10, input_shape=(side, side, 3))
    assert model.forward_operations() == expected


@pytest.mark.parametrize(
    ("side", "expected"),
    [(96, (96, 96, 32, 16, 4)), (28, (28, 28, 14, 7, 3)), (8, (8, 8, 4, 2, 1))],
)
def test_pools_for_other_sizes(side, expected):
    """96x96 as in the paper: 96 -> 32 -> 16 -> 4 -> 1."""
    found = maps(side)
    assert tuple(found[number][1] for number in (1, 2, 4, 6, 8)) == expected


def eight(step, x):
    z = step(step(x, 1), 2, 2)
    z = z + step(step(z, 3), 4)
    z = step(step(z, 5, 2), 6, 2)
    return z + step(step(z, 7), 8)


def seventeen(step, x):
    z = step(x, 1)
    z = z + step(step(z, 2), 3)
    z = z + step(step(z, 4), 5)
    for number in (6, 10, 14):
        z = step(z, number, 2)
        z = z + step(z, number + 1)
        z = z + step(step(z, number + 2), number + 3)
    return z


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "head", "loop"),
    [
        ("resnet8", "resnet9", eight),
        ("resnet17", "proto_resnet18", seventeen),
    ],
)
def test_embeddings_follow_the_layers_one_by_one(name, head, loop):
    """Against a plain loop; embeddings are not negative, and there are no class scores without a
    head.
    """
    model = models.build(name, num_classes=3, input_shape=(8, 8, 1), lowering="lax")
    with_head = models.build(head, num_classes=3, input_shape=(8, 8, 1), lowering="lax")
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: jnp.asarray(
            rng.normal(size=x.shape) / np.sqrt(max(np.prod(x.shape[:-1]), 1)), jnp.float32
        ),
        jax.eval_shape(with_head.init, jax.random.key(0))[0],
    )
    x = jnp.asarray(rng.normal(size=(3, 8, 8, 1)), jnp.float32)

    def layer(params, inputs, number, pool=1):
        weights = params[f"block{number}"]["conv"]
        z = jnp.maximum(
            models.conv2d(inputs, weights["kernel"], padding="SAME", lowering="lax")
            + weights["bias"],
            0.0,
        )
        n, side, _, filters = z.shape
        return z.reshape(n, side // pool, pool, side // pool, pool, filters).max((2, 4))

    @jax.jit
    def layers(params, x):
        return loop(functools.partial(layer, params), x).max((1, 2))

    z = layers(params, x)
    own = {name: value for name, value in params.items() if name != "head"}
    outputs, state = jax.jit(lambda p, x: model.apply(p, {}, x, train=True))(own, x)
    np.testing.assert_allclose(outputs.features, z, rtol=1e-4, atol=1e-5)
    assert outputs.logits.shape == (3, 0) and outputs.aux_logits is None and state == {}
    assert float(outputs.features.min()) >= 0
    scored, _ = jax.jit(lambda p, x: with_head.apply(p, {}, x, train=False))(params, x)
    expected = z @ params["head"]["kernel"].T + params["head"]["bias"]
    np.testing.assert_allclose(scored.logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("norm", "weight"), [pytest.param("bn", 0.01, marks=pytest.mark.thorough), ("sbn", 1.0)]
)
def test_running_statistics_follow_keras(norm, weight):
    """Momentum 0.99 and epsilon 1e-3; with "sbn", momentum 0, they are those of the last batch."""
    block = ConvBlock(2, norm, 1, "lax")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2, 2, 1)), jnp.float32)
    variables = block.init(jax.random.key(0), x, False, None)
    outputs, updates = block.apply(variables, x, True, jnp.ones(4, bool), mutable=["batch_stats"])
    weights = variables["params"]["conv"]
    z = models.conv2d(x, weights["kernel"], padding="SAME", lowering="lax") + weights["bias"]
    found = updates["batch_stats"]["norm"]
    np.testing.assert_allclose(found["mean"], weight * z.mean((0, 1, 2)), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(
        found["var"], 1 - weight + weight * z.var((0, 1, 2), ddof=1), rtol=1e-5
    )
    normalized = (z - z.mean((0, 1, 2))) / np.sqrt(z.var((0, 1, 2)) + 1e-3)
    np.testing.assert_allclose(outputs, np.maximum(normalized, 0.0), rtol=1e-3, atol=1e-5)


@pytest.mark.thorough
def test_start_of_the_weights():
    """Variance 1 / fan-in, truncated at two standard deviations of the untruncated normal;
    biases 0.
    """
    module = ResNet8(num_classes=10, lowering="lax")
    params = jax.jit(module.init, static_argnums=2)(
        jax.random.key(0), jnp.zeros((1, 8, 8, 3)), False, None
    )["params"]
    kernel = params["block6"]["conv"]["kernel"]
    assert float(jnp.std(kernel)) == pytest.approx(1 / math.sqrt(9 * 256), rel=0.01)
    assert float(jnp.abs(kernel).max()) <= 2 / 0.87962566 / math.sqrt(9 * 256) + 1e-6
    assert all(not np.any(params[f"block{number}"]["conv"]["bias"]) for number in range(1, 9))


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("resnet8", (7, 7, 3), {}, r"8x8 or more, got \(7, 7, 3\)"),
        ("resnet9", (32, 16, 3), {}, "square images"),
        ("resnet8", (64,), {}, "square images"),
        ("resnet8", (8, 8, 1), {"aux_head": True}, "resnet9"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, num_classes=10, input_shape=shape, **options)


def test_methods_that_read_class_scores_refuse_a_network_without_any():
    model = models.build("resnet8", num_classes=3, input_shape=(8, 8, 1))
    assert not model.has_class_scores
    run = toy.setup(toy.federation(), model=model)
    with pytest.raises(ValueError, match=r"no class scores.*resnet9"):
        methods.build("fedavg", run)
    methods.build("protofssl", run)
