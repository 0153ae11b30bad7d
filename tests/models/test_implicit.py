"""Convolutions of many clients by the GPU's kernels, interpreted: the plain convolution's results and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import backend
from fedjax_ssl.models import conv2d, implicit, lowerings, separate, ways
from fedjax_ssl.models.convolution import resolve_padding
from fedjax_ssl.models.implicit_parts import (
    ActivationGradient,
    BiasReLU,
    Moments,
    Normalized,
    NormGradient,
    Values,
)
from tests.models.convolutions import arrays, operations, primitives, run, traced_for_a_gpu

# images, kernel, stride, padding. Fewer than 16 channels have a way of their own; 18 and 40 fill no whole tile.
GEOMETRIES = {
    "few channels": ((4, 7, 9, 3), (3, 3, 3, 5), 1, "SAME"),
    "more than a tile of rows, stride 2": ((2, 17, 15, 18), (3, 3, 18, 40), 2, 1),
    "valid, oblong": ((2, 6, 7, 17), (2, 4, 17, 3), 1, "VALID"),
    "even, one before": ((2, 6, 6, 16), (2, 2, 16, 16), 1, "SAME"),
    "5x5, stride 2": ((2, 9, 11, 1), (5, 5, 1, 4), 2, 2),
    "1x1, stride 2": ((3, 5, 4, 20), (1, 1, 20, 3), 2, 0),
    "stride over the edge": ((2, 8, 8, 1), (2, 2, 1, 2), 3, "VALID"),
    "more filters than a tile has": ((1, 4, 3, 130), (3, 3, 130, 140), 1, "SAME"),
}


def check(ours, theirs, atol=1e-11):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert one.dtype == jnp.float64
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=atol)


@pytest.mark.parametrize(
    "name", [name if n == 0 else pytest.param(name, marks=pytest.mark.thorough) for n, name in enumerate(GEOMETRIES)]
)
def test_equals_the_plain_convolution_for_every_client(name):
    images, kernel, stride, padding = GEOMETRIES[name]
    pads = resolve_padding(images[1:3], kernel[:2], stride, padding)

    @jax.jit
    def both(x, k):
        ways = (separate.products, lowerings.plain)
        return [jax.vmap(lambda x, k, way=way: run(lambda x, k: way(x, k, stride, pads), x, k))(x, k) for way in ways]

    with jax.enable_x64(True):
        check(*both(*arrays((2, *images), (2, *kernel))))


@pytest.mark.thorough
def test_kernels_lie_in_both_orders(monkeypatch):
    images, kernel, pads = (2, 5, 6, 33), (3, 3, 33, 20), ((1, 1), (1, 0))
    with jax.enable_x64(True):
        x, k = arrays((2, *images), (2, *kernel))
        for turned in (True, False):
            monkeypatch.setattr(implicit, "turns", lambda *_, turned=turned: turned)
            ours, _ = implicit.convolve(Values(x), k, 1, pads)
            check(ours, jax.vmap(lambda x, k: lowerings.plain(x, k, 1, pads))(x, k))


@pytest.mark.thorough
def test_bias_and_relu_are_part_of_it():
    pads = ((1, 1), (1, 1))

    @jax.jit
    def both(*given):
        def ours(x, k, b):
            return separate.products(x, k, 1, pads, b)

        def theirs(x, k, b):
            return jax.nn.relu(lowerings.plain(x, k, 1, pads) + b)

        return [jax.vmap(lambda *given, way=way: run(way, *given))(*given) for way in (ours, theirs)]

    with jax.enable_x64(True):
        check(*both(*arrays((2, 3, 5, 6, 3), (2, 3, 3, 3, 5), (2, 5))))


@pytest.mark.thorough
def test_alone_under_one_kernel_and_with_seeds_around():
    pads = ((1, 1), (1, 1))

    def convolve(x, k):
        return separate.products(x, k, 1, pads)

    with jax.enable_x64(True):
        x, k = arrays((2, 3, 2, 4, 5, 2), (2, 3, 3, 3, 2, 3))
        plain = jax.vmap(jax.vmap(lambda x, k: run(lambda x, k: lowerings.plain(x, k, 1, pads), x, k)))(x, k)
        check(jax.jit(jax.vmap(jax.vmap(lambda x, k: run(convolve, x, k))))(x, k), plain)
        check(run(convolve, x[0, 0], k[0, 0]), [one[0, 0] for one in plain])
        shared = jax.vmap(lambda x: convolve(x, k[0, 0]))(x[0])
        check(shared, jax.vmap(lambda x: lowerings.plain(x, k[0, 0], 1, pads))(x[0]))


@pytest.mark.thorough
def test_a_clients_bits_do_not_depend_on_the_others():
    x, k = (a.astype(jnp.float32) for a in arrays((3, 4, 9, 9, 16), (3, 3, 3, 16, 16)))
    one = jax.jit(jax.vmap(lambda x, k: run(lambda x, k: separate.products(x, k, 1, ((1, 1), (1, 1))), x, k)))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1:2], b), one(x, k), one(x[1:2], k[1:2]))


@pytest.mark.thorough
def test_second_derivatives():
    pads = ((1, 1), (1, 1))

    def slope(way, x, k):
        return jax.grad(lambda k: jnp.sum(jnp.sin(jax.grad(lambda x: jnp.sum(way(x, k, 1, pads) ** 3))(x))))(k)

    with jax.enable_x64(True):
        x, k = arrays((2, 2, 4, 4, 2), (2, 3, 3, 2, 3))
        ours, theirs = (jax.vmap(lambda x, k, w=w: slope(w, x, k))(x, k) for w in (separate.products, lowerings.plain))
        check(ours, theirs, atol=1e-9)


def test_a_gpu_takes_the_kernels_for_a_large_layer_and_nothing_as_large_as_patches():
    x, k = jax.ShapeDtypeStruct((5, 100, 32, 32, 128), "float32"), jax.ShapeDtypeStruct((5, 3, 3, 128, 128), "float32")

    def step(lowering):
        return jax.vmap(lambda x, k: run(lambda x, k: conv2d(x, k, lowering=lowering), x, k))

    assert primitives(step("auto"), x, k).count("pallas_call") == 3
    assert "pallas_call" not in primitives(step("xla"), x, k)
    # One client, or images of all under one kernel: XLA's own convolution.
    assert "pallas_call" not in primitives(lambda x, k: jax.vmap(lambda x: conv2d(x, k[0]))(x), x, k)


@pytest.mark.thorough
def test_a_tpu_takes_grouped_convolutions_with_the_same_results(monkeypatch):
    monkeypatch.setattr(ways, "backend", lambda: "tpu")
    pads = ((1, 1), (1, 1))
    with jax.enable_x64(True):
        x, k = arrays((2, 3, 4, 5, 128), (2, 3, 3, 128, 128))
        ours, theirs = (
            jax.vmap(lambda x, k, way=way: run(lambda x, k: way(x, k, 1, pads), x, k))(x, k)
            for way in (separate.by_cost, lowerings.plain)
        )
        check(ours, theirs)
    traced = str(jax.make_jaxpr(jax.vmap(lambda x, k: separate.by_cost(x, k, 1, pads)))(x, k))
    assert "feature_group_count=2" in traced


def sizes(images=(100, 32, 32, 128), window=(3, 3), filters=128, stride=1, itemsize=4):
    result = images[1] // stride, images[2] // stride
    return ways.Sizes(images, window, filters, result, stride, itemsize)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (sizes(), "implicit"),
        (sizes(itemsize=2), "implicit"),
        (sizes(images=(20, 26, 26, 32), filters=64), "implicit"),
        (sizes(window=(1, 1)), "slices"),  # no patches are made
        (sizes(images=(100, 32, 32, 30)), "slices"),  # no 16 bytes at a time
        (sizes(itemsize=8), "slices"),  # no matrix units
    ],
)
def test_bytes_launches_and_arithmetic_decide(layer, expected, monkeypatch):
    monkeypatch.setattr(ways, "compiles_kernels", lambda: True)
    assert ways.fastest(layer, "forward") == expected
    monkeypatch.setattr(ways, "compiles_kernels", lambda: False)
    assert ways.fastest(layer, "forward") == "slices"


@pytest.mark.parametrize(
    ("layer", "inputs", "kernel"),
    [
        (sizes(), "implicit", "implicit"),
        (sizes(itemsize=2), "implicit", "implicit"),
        (sizes(stride=2), "implicit", "implicit"),
        # Between results that lie apart there are zeros, which are multiplied too: four times the operations.
        (sizes(images=(100, 8, 8, 512), filters=512, stride=2), "slices", "implicit"),
    ],
)
def test_each_pass_is_decided_by_itself(layer, inputs, kernel, monkeypatch):
    monkeypatch.setattr(ways, "compiles_kernels", lambda: True)
    assert ways.fastest(layer, "inputs") == inputs and ways.fastest(layer, "kernel") == kernel


@pytest.mark.parametrize(
    ("capability", "refused", "word"),
    [
        ("7.5", None, "they need 8.0"),
        ("gfx90a", None, "none of NVIDIA's"),
        ("9.0", "jax 0.11.1: RuntimeError: no supported GPU", "no supported GPU"),
        ("9.0", None, None),
    ],
)
def test_only_gpus_for_which_jax_compiles_the_kernels(capability, refused, word, monkeypatch):
    class Device:
        device_kind = "some GPU"
        compute_capability = capability

    monkeypatch.setattr(jax, "devices", lambda: [Device])
    monkeypatch.setattr(backend, "_why_not_lowered", lambda: refused)
    why = backend.why_no_kernels.__wrapped__()
    assert why is None if word is None else word in why
    monkeypatch.setattr(backend, "why_no_kernels", lambda: why)
    assert not backend.compiles_kernels()  # on a CPU
    monkeypatch.setattr(backend, "backend", lambda: "gpu")
    assert backend.compiles_kernels() is (word is None)


def test_what_jax_does_not_lower_is_not_taken(monkeypatch):
    monkeypatch.setattr(backend, "backend", lambda: "gpu")  # JAX itself has a CPU, which takes no kernels of Triton
    assert f"jax {jax.__version__}: " in backend._why_not_lowered()
    monkeypatch.setattr(backend, "triton_options", lambda warps: {"interpret": True})
    assert backend._why_not_lowered() is None


def test_kernels_are_cut_into_sums_by_their_own_size():
    assert implicit.parts(102_400, 9, 128, 128, 4) == 8
    assert implicit.parts(2_080, 9, 512, 512, 4) == 1
    assert implicit.parts(100, 9, 16, 16, 4) == 1


def numbers(*shape):
    return jnp.ones(shape, jnp.float32)


IMAGES, CHANNELS = numbers(1, 1, 4, 4, 16), numbers(1, 16)
SOURCES = {
    "values": Values(IMAGES),
    "normalized": Normalized(IMAGES, CHANNELS, CHANNELS, 0.1),
    "gradient of a norm layer": NormGradient(IMAGES, IMAGES, CHANNELS, CHANNELS, CHANNELS, None),
}
FINISHES = {
    "bias and ReLU": BiasReLU(CHANNELS),
    "moments": Moments(CHANNELS, CHANNELS, None),
    "gradient of an activation": ActivationGradient(IMAGES, CHANNELS, CHANNELS, CHANNELS, 0.1),
}


@pytest.mark.parametrize("finish", FINISHES.values(), ids=FINISHES)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_nan_stays_nan_in_a_kernel_for_a_gpu(source, finish):
    """Triton's maximum takes the other number in place of NaN, and would hide that a run diverges."""

    def one(source, kernels, finish):
        return implicit.convolve(source, kernels, 1, ((1, 1), (1, 1)), finish)

    inside = [
        operation.primitive.name
        for call in traced_for_a_gpu(one, source, numbers(1, 3, 3, 16, 16), finish)
        if call.primitive.name == "pallas_call"
        for operation in operations(call.params["jaxpr"])
    ]
    assert "dot_general" in inside and "max" not in inside


@pytest.mark.parametrize("lowering", ["auto", "winograd", "slices", "rows", "xla"])
def test_no_images_have_no_results_and_no_gradient(lowering):
    images, kernel = jnp.zeros((0, 8, 8, 16)), jnp.ones((3, 3, 16, 4))

    def total(kernel):
        return jnp.sum(conv2d(images, kernel, lowering=lowering))

    assert conv2d(images, kernel, lowering=lowering).shape == (0, 8, 8, 4)
    assert not jax.grad(total)(kernel).any()


def test_the_gradient_of_no_images_of_many_clients_is_traced_for_a_gpu():
    kernels = jnp.ones((2, 3, 3, 8, 16))
    gradient = jax.vmap(jax.grad(lambda kernel, images: jnp.sum(conv2d(images, kernel))))
    traced = traced_for_a_gpu(gradient, kernels, jnp.zeros((2, 0, 8, 8, 8)))
    assert kernels.shape in [out.aval.shape for one in traced for out in one.outvars]
