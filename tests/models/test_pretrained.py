"""State dicts in general on a small network, and EfficientNet-B0: sizes, torchvision's values, stochastic depth."""

import math
import zipfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.models.efficientnet import STAGES, InvertedResidual, StochasticDepth
from fedjax_ssl.models.pretrained import LEAVES, Layer, efficientnet_b0_layers, pretrained

# the layers of model "mlp" with batch norm, under made-up names
LAYERS = (Layer("dense", ("dense1",), "fc"), Layer("norm", ("norm1",), "bn"), Layer("dense", ("head",), "classifier.1"))
RNG = np.random.default_rng(0)
ARRAYS = {
    "fc.weight": RNG.standard_normal((4, 6), np.float32),
    "fc.bias": RNG.standard_normal(4, np.float32),
    "bn.weight": RNG.standard_normal(4, np.float32),
    "bn.bias": RNG.standard_normal(4, np.float32),
    "bn.running_mean": RNG.standard_normal(4, np.float32),
    "bn.running_var": RNG.uniform(0.5, 2, 4).astype(np.float32),
    "bn.num_batches_tracked": np.int64(3),
    "classifier.1.weight": RNG.standard_normal((3, 4), np.float32),
    "classifier.1.bias": RNG.standard_normal(3, np.float32),
}


@pytest.fixture
def load(tmp_path):
    def load(num_classes=3, **changes):
        arrays = {name: values for name, values in {**ARRAYS, **changes}.items() if values is not None}
        path = tmp_path / "weights.npz"
        np.savez(path, **arrays)
        model = models.build("mlp", num_classes=num_classes, input_shape=(6,), hidden=(4,), norm="bn")
        return pretrained(model, path, LAYERS)

    return load


def test_arrays_go_to_their_places(load):
    params, state = load().init(jax.random.key(0))
    np.testing.assert_array_equal(params["dense1"]["kernel"], ARRAYS["fc.weight"])
    np.testing.assert_array_equal(params["head"]["bias"], ARRAYS["classifier.1.bias"])
    expected = {"mean": ARRAYS["bn.running_mean"], "var": ARRAYS["bn.running_var"]}
    chex.assert_trees_all_equal(state, {"norm1": expected})
    model = load()
    x = RNG.standard_normal((5, 6), np.float32)
    outputs, _ = model.apply(params, state, x, train=False)
    hidden = x @ ARRAYS["fc.weight"].T + ARRAYS["fc.bias"] - expected["mean"]
    hidden = hidden / np.sqrt(expected["var"] + 1e-5) * ARRAYS["bn.weight"] + ARRAYS["bn.bias"]
    logits = np.maximum(hidden, 0) @ ARRAYS["classifier.1.weight"].T + ARRAYS["classifier.1.bias"]
    np.testing.assert_allclose(outputs.logits, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"num_classes": 5}, {"classifier.1.weight": None, "classifier.1.bias": None}])
def test_classifier_of_other_classes_or_none_starts_at_random(load, changes):
    model = load(**changes)
    params = [model.init(jax.random.key(seed))[0] for seed in (0, 1)]
    assert params[0]["head"]["kernel"].shape == (changes.get("num_classes", 3), 4)
    assert not np.array_equal(params[0]["head"]["kernel"], params[1]["head"]["kernel"])
    np.testing.assert_array_equal(params[0]["dense1"]["kernel"], ARRAYS["fc.weight"])


def test_init_is_pure_and_gives_new_buffers(load):
    model = load()
    first, second = model.init(jax.random.key(0))[0], model.init(jax.random.key(7))[0]
    first["dense1"]["kernel"].delete()  # what donating it to a jitted function does
    np.testing.assert_array_equal(second["dense1"]["kernel"], ARRAYS["fc.weight"])
    np.testing.assert_array_equal(model.init(jax.random.key(0))[0]["dense1"]["kernel"], ARRAYS["fc.weight"])
    both, _ = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 2))
    np.testing.assert_array_equal(both["dense1"]["bias"], np.stack([ARRAYS["fc.bias"]] * 2))
    with jax.enable_x64(True):
        assert jax.eval_shape(load().init, jax.random.key(0))[0]["dense1"]["bias"].dtype == jnp.float64


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("fc.weight", None, r"array 'fc\.weight' is missing; the file has 7 arrays .*state_dict"),
        ("classifier.1.weight", None, r"array 'classifier\.1\.weight' is missing"),
        ("fc2.bias", np.zeros(2, np.float32), r"array 'fc2\.bias' belongs to no layer of this network \(1 such"),
        ("fc.weight", np.zeros((6, 4), np.float32), r"'fc\.weight' has shape \(6, 4\), this network needs \(4, 6\)"),
        ("fc.bias", np.zeros(4, np.int32), r"array 'fc\.bias' has dtype int32; allowed is floating point"),
        ("bn.bias", np.array([0, np.nan, 0, 0], np.float32), r"array 'bn\.bias' holds NaN"),
        ("fc.bias", np.array([None] * 4), r"\(array 'fc\.bias'\) is not a readable \.npz"),
    ],
)
def test_arrays_that_do_not_fit_are_named(load, name, values, message):
    with pytest.raises(ValueError, match=message):
        load(**{name: values})


def test_unreadable_files(tmp_path, load):
    path = tmp_path / "weights.npz"
    load()
    model = models.build("linear", num_classes=3, input_shape=(6,))
    content = path.read_bytes()
    start = content.index(ARRAYS["fc.weight"].tobytes())
    path.write_bytes(content[:start] + b"damaged!" + content[start + 8 :])
    with pytest.raises(ValueError, match=r"\(array 'fc\.weight'\) is not a readable \.npz file .* damaged"):
        pretrained(model, path, LAYERS)
    for broken in (content[: len(content) // 2], b"", b"text"):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"not a readable \.npz file"):
            pretrained(model, path, LAYERS)
    np.save(tmp_path / "bare.npy", ARRAYS["fc.weight"])
    with pytest.raises(ValueError, match="it holds one bare array"):
        pretrained(model, tmp_path / "bare.npy", LAYERS)
    with pytest.raises(ValueError, match=r"is not a file; make it where PyTorch is installed"):
        pretrained(model, tmp_path, LAYERS)


def test_pytorchs_own_file_is_refused(tmp_path):
    path = tmp_path / "model.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    model = models.build("linear", num_classes=3, input_shape=(6,))
    with pytest.raises(ValueError, match=r"`\.pth` file cannot be read directly.*np\.savez"):
        pretrained(model, path, LAYERS)


# A made-up state dict with the names and shapes of torchvision, the same on every machine.


def draw_array(seed, name, shape):
    """Values that neither blow the signal up nor let it die; RandomState, because its stream never changes."""
    low, high = -0.3, 0.3
    if name.endswith("running_var"):
        low, high = 0.5, 2.0
    elif len(shape) > 1:
        high = 1.6 * math.sqrt(3 / math.prod(shape[1:]))
        low = -high
    elif name.endswith("weight"):
        low, high = 0.5, 1.5
    return np.random.RandomState(seed).uniform(low, high, shape).astype(np.float32)


def efficientnet_b0_arrays(num_classes):
    model = models.build("efficientnet_b0", num_classes=num_classes, input_shape=(32, 32, 3))
    trees = dict(zip(("params", "state"), jax.eval_shape(model.init, jax.random.key(0)), strict=True))
    shapes = {}
    for layer in efficientnet_b0_layers():
        for leaf in LEAVES[layer.kind]:
            tree = trees[leaf.tree]
            for step in layer.ours:
                tree = tree[step]
            ours = tree[leaf.ours].shape
            shapes[f"{layer.theirs}.{leaf.theirs}"] = tuple(ours[leaf.axes.index(i)] for i in range(len(ours)))
    arrays = {name: draw_array(seed, name, shape) for seed, (name, shape) in enumerate(sorted(shapes.items()))}
    counts = {name.replace("running_mean", "num_batches_tracked"): np.int64(7) for name in shapes if "_mean" in name}
    return {**arrays, **counts}


# EfficientNet-B0.


# Computed once in float64 by torchvision 0.28.0's efficientnet_b0 in evaluation mode, with the arrays of
# efficientnet_b0_arrays(3) and the images of the test: the first five features of each image and the class scores.
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
    assert models.count_parameters({name: tree for name, tree in params.items() if name != "head"}) == 4_007_548
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
    first, second = model.init(jax.random.key(0)), model.init(jax.random.key(1))
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(lambda leaf: leaf.shape, template)
    differ = jax.tree.map(lambda a, b: not np.array_equal(a, b), *(params for params, _ in (first, second)))
    assert {name for name, tree in differ.items() if any(jax.tree.leaves(tree))} == {"head", "aux_head"}
    chex.assert_trees_all_equal(first[1], second[1])
    chex.assert_trees_all_equal(first, model.init(jax.random.key(0)))


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
        lambda leaf: np.abs(np.random.default_rng(1).standard_normal(leaf.shape, np.float32)), template
    )

    @jax.jit
    def train(x):
        mask = jnp.arange(16) < 12
        return block.apply(variables, x, True, mask, rngs={"dropout": jax.random.key(1)}, mutable=["batch_stats"])

    outputs, new = train(x)
    others, other = train(np.where(np.arange(16).reshape(-1, 1, 1, 1) < 12, x, 1e3))
    np.testing.assert_array_equal(outputs[:12], others[:12])
    chex.assert_trees_all_equal(new, other)
    kept_as_they_were = (np.asarray(outputs) == x).all((1, 2, 3))
    assert 0 < kept_as_they_were.sum() < 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stochastic_depth": 1.0}, r"stochastic_depth is 1.0; it must be a number in \[0, 1\)"),
        ({"norm": "gn"}, "no option 'norm'"),
        ({"weights": "nowhere.npz"}, "weights nowhere.npz is not there"),
    ],
)
def test_bad_builds(options, message):
    with pytest.raises(ValueError, match=message):
        models.build("efficientnet_b0", **{"num_classes": 3, "input_shape": (32, 32, 3), **options})
