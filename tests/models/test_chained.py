"""Convolutions with batch norm and leaky ReLU in them, interpreted: the results and gradients of one after another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.models import build, cnn13, lowerings
from fedjax_ssl.models.chained import Layer, conv_norms
from fedjax_ssl.models.separate import BY_COST, PLAIN_OR_SLICES, PRODUCTS
from tests.models.convolutions import arrays, primitives, traced_for_a_gpu

PADS = (((1, 1), (1, 1)), ((0, 0), (0, 0)), ((1, 0), (1, 1)))
EPSILON, SLOPE = 1e-5, 0.1
CLIENTS = 2


def one_after_another(inputs, layers, mask):
    """The definition, by XLA's own convolution and automatic derivatives."""
    moments = []
    for layer, pads in zip(layers, PADS, strict=True):
        values = lowerings.plain(inputs, layer.kernel, 1, pads) + layer.bias
        weight = jnp.ones(len(values)) if mask is None else mask.astype(values.dtype)
        pixels, weight = values.shape[1] * values.shape[2], weight[:, None, None, None]
        count = jnp.sum(weight) * pixels
        mean = jnp.sum(values * weight, (0, 1, 2)) / jnp.maximum(count, 1)
        var = jnp.sum(jnp.square(values - mean) * weight, (0, 1, 2)) / jnp.maximum(count, 1)
        moments.append((mean, var, count))
        outputs = (values - mean) / jnp.sqrt(var + EPSILON) * layer.scale + layer.shift
        inputs = jnp.where(outputs < 0, SLOPE * outputs, outputs)
    return inputs, moments


def together(make):
    def run(inputs, layers, mask):
        outputs, moments = conv_norms(inputs, layers, mask, PADS, EPSILON, SLOPE, make)
        return outputs, [tuple(batch) for batch in moments]

    return run


def clients(*more, channels=(3, 17, 20, 16)):
    """Images and layers of every client; the second convolution is 1x1."""
    front = (*more, CLIENTS)
    sides = (3, 1, 2)
    shapes = [(*front, 4, 6, 7, channels[0])]
    for side, inputs, filters in zip(sides, channels, channels[1:], strict=False):
        shapes += [(*front, side, side, inputs, filters)] + [(*front, filters)] * 4
    inputs, *rest = arrays(*shapes)
    return inputs, [Layer(*rest[first : first + 5]) for first in range(0, len(rest), 5)]


def everything(function):
    """Outputs, moments and gradients, with cosines of all outputs as the loss."""

    def run(inputs, layers, mask):
        outputs, pull, moments = jax.vjp(lambda x, w: function(x, w, mask), inputs, layers, has_aux=True)
        return outputs, moments, pull(jnp.cos(outputs))

    return run


def check(ours, theirs, atol=1e-10):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=atol)


def batch_of(mask):
    return None if mask is None else jnp.asarray(mask, bool)


MASKS = {"all count": None, "some do": [[1, 0, 1, 1], [1, 1, 1, 0]]}


@pytest.mark.parametrize("name", [pytest.param("all count", marks=pytest.mark.thorough), "some do"])
def test_equals_one_after_another_for_every_client(name):
    with jax.enable_x64(True):
        mask = batch_of(MASKS[name])
        axes = (0, 0, None if mask is None else 0)
        ours, theirs = (
            jax.jit(jax.vmap(everything(way), axes))(*clients(), mask)
            for way in (together(PRODUCTS), one_after_another)
        )
        check(ours, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [PRODUCTS, BY_COST, PLAIN_OR_SLICES])
def test_alone_and_with_seeds_around(make):
    with jax.enable_x64(True):
        inputs, layers = clients(2)
        ours, theirs = (
            jax.jit(jax.vmap(jax.vmap(lambda x, w, way=way: everything(way)(x, w, None))))(inputs, layers)
            for way in (together(make), one_after_another)
        )
        check(ours, theirs)
        first = jax.tree.map(lambda leaf: leaf[0, 0], (inputs, layers))
        check(jax.jit(everything(together(make)))(*first, None), jax.tree.map(lambda leaf: leaf[0, 0], theirs))


@pytest.mark.thorough
def test_shared_weights_and_shared_images():
    with jax.enable_x64(True):
        inputs, layers = clients()
        for axes in ((0, None), (None, 0)):
            given = tuple(
                part if axis == 0 else jax.tree.map(lambda leaf: leaf[0], part)
                for part, axis in zip((inputs, layers), axes, strict=True)
            )
            ours, theirs = (
                jax.jit(jax.vmap(lambda x, w, way=way: everything(way)(x, w, None), axes))(*given)
                for way in (together(PRODUCTS), one_after_another)
            )
            check(ours, theirs)


@pytest.mark.thorough
def test_second_derivatives():
    def slope(way, inputs, layers):
        def first(inputs):
            return jnp.sum(jnp.sin(way(inputs, layers, None)[0]))

        return jax.grad(lambda w: jnp.sum(jnp.square(jax.grad(first)(inputs + w[0].kernel[0, 0, 0, 0]))))(layers)

    with jax.enable_x64(True):
        inputs, layers = clients()
        ours, theirs = (
            jax.jit(jax.vmap(lambda x, w, way=way: slope(way, x, w)))(inputs, layers)
            for way in (together(PRODUCTS), one_after_another)
        )
        check(ours, theirs, atol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [PRODUCTS, BY_COST])
def test_a_batch_that_counts_no_image(make):
    with jax.enable_x64(True):
        given = *clients(), jnp.zeros((CLIENTS, 4), bool)

        def linear(function):
            def run(inputs, layers, mask):
                outputs, pull, moments = jax.vjp(lambda x, w: function(x, w, mask), inputs, layers, has_aux=True)
                return outputs, moments, pull(jnp.ones_like(outputs))

            return run

        ours, theirs = (jax.jit(jax.vmap(linear(way)))(*given) for way in (together(make), one_after_another))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-7), ours, theirs)
        assert all(not number.any() for _, _, number in ours[1])


@pytest.mark.thorough
def test_images_that_do_not_count_may_hold_anything():
    with jax.enable_x64(True):
        inputs, layers = clients()
        mask = batch_of(MASKS["some do"])
        run = jax.jit(jax.vmap(together(PRODUCTS)))
        clean, moments = run(inputs, layers, mask)
        found = run(jnp.where(mask[:, :, None, None, None], inputs, jnp.nan), layers, mask)
        check((found[0][mask], found[1]), (clean[mask], moments))


@pytest.mark.thorough
def test_several_blocks_of_columns_and_of_rows_and_a_client_by_itself():
    with jax.enable_x64(True):
        inputs, layers = clients(channels=(140, 17, 130, 16))
        inputs = jnp.concatenate([inputs] * 2, 1)
        ways = together(PRODUCTS), one_after_another
        ours, theirs = (
            jax.jit(jax.vmap(lambda x, w, way=way: everything(way)(x, w, None)))(inputs, layers) for way in ways
        )
        check(ours, theirs)
        second = jax.tree.map(lambda leaf: leaf[1:], (inputs, layers))
        alone = jax.jit(jax.vmap(lambda x, w: everything(ways[0])(x, w, None)))(*second)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1:], b), ours, alone)


def groups_of_convolutions(function, *arguments):
    """Of every convolution of XLA's, as traced for a GPU."""
    traced = traced_for_a_gpu(function, *arguments)
    return [one.params["feature_group_count"] for one in traced if one.primitive.name == "conv_general_dilated"]


@pytest.mark.thorough
def test_under_seeds_a_network_that_clients_share_has_no_grouped_convolution():
    inputs, layers = jax.eval_shape(lambda: clients(2, channels=(3, 16, 32, 32)))
    shared = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], *leaf.shape[2:]), leaf.dtype), layers)
    run = jax.vmap(jax.vmap(lambda x, w: together(BY_COST)(x, w, None), (0, None)))
    assert groups_of_convolutions(run, inputs, shared) == []
    assert primitives(run, inputs, shared).count("pallas_call") == 2  # of three layers, one of them 1x1


@pytest.mark.thorough
def test_one_client_alone_takes_a_product_for_1x1():
    shapes = jax.eval_shape(clients)
    inputs, layers = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), shapes)
    groups = groups_of_convolutions(lambda x, w: together(BY_COST)(x, w, None), inputs, layers)
    assert groups == [1, 1]  # of three layers


@pytest.mark.thorough
def test_half_precision_is_near_single():
    def run(dtype):
        inputs, layers = clients()
        inputs = inputs.astype(dtype)
        layers = [one._replace(kernel=one.kernel.astype(dtype), bias=one.bias.astype(dtype)) for one in layers]
        return jax.vmap(lambda x, w: everything(together(PRODUCTS))(x, w, None))(inputs, layers)

    half, single = run(jnp.bfloat16), run(jnp.float32)
    assert half[0].dtype == jnp.bfloat16 and half[1][0][0].dtype == jnp.float32
    for one, other in zip(half[1], single[1], strict=True):
        np.testing.assert_allclose(one[1], other[1], rtol=0.05)
    far = np.abs(np.asarray(half[0], np.float32) - np.asarray(single[0]))
    assert np.quantile(far, 0.99) < 0.1


@pytest.mark.thorough
def test_a_network_learns_the_same_with_the_norm_in_the_convolutions(monkeypatch):
    monkeypatch.setattr(cnn13, "_STAGES", (((16, 3, 1), (20, 3, 1)), ((17, 3, 1),), ((20, 3, 0), (16, 1, 0))))

    def step(lowering):
        model = build("cnn13", num_classes=3, input_shape=(12, 12, 3), lowering=lowering, dropout_rate=0.0)

        @jax.jit
        @jax.vmap
        def run(key, images, mask):
            params, state = model.init(key)

            def loss(params):
                outputs, new_state = model.apply(params, state, images, train=True, mask=mask)
                return jnp.sum(jnp.sin(outputs.logits) * mask[:, None].astype(float)), new_state

            return jax.value_and_grad(loss, has_aux=True)(params)

        keys = jax.random.split(jax.random.key(0), CLIENTS)
        images = jnp.asarray(np.random.default_rng(1).standard_normal((CLIENTS, 3, 12, 12, 3)))
        return run(keys, images, jnp.asarray([[1, 1, 0], [1, 1, 1]], bool))

    with jax.enable_x64(True):
        ours, theirs = step("implicit"), step("lax")
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        check(ours, theirs, atol=1e-8)


@pytest.mark.thorough
def test_a_gpu_takes_kernels_for_all_but_1x1():
    model = build("cnn13", num_classes=10, input_shape=(32, 32, 3))
    shapes = jax.eval_shape(lambda key: jax.vmap(model.init)(jax.random.split(key, 5)), jax.random.key(0))

    def step(params, state, images):
        def loss(params):
            outputs, new_state = model.apply(params, state, images, train=True, key=jax.random.key(0), mask=None)
            return jnp.sum(outputs.logits), new_state

        return jax.grad(loss, has_aux=True)(params)

    images = jax.ShapeDtypeStruct((5, 100, 32, 32, 3), "float32")
    names = primitives(jax.vmap(step), *shapes, images)
    # Seven layers forward and both gradients; two more are 1x1, which is one product by itself.
    assert names.count("pallas_call") == 3 * 7
