"""Reading state dicts, on a small network: values and their order of axes, purity, every kind of
bad file.
"""

import zipfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.models.pretrained import LAYERS as NAMED
from fedjax_ssl.models.pretrained import layers_of, pretrained, resnet18_layers
from tests.models.torchvision_arrays import arrays_of

# the layers of model "mlp" with batch norm, under made-up names
LAYERS = {("dense1",): "fc", ("norm1",): "bn", ("head",): "classifier.1"}
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
        arrays = {
            name: values for name, values in {**ARRAYS, **changes}.items() if values is not None
        }
        path = tmp_path / "weights.npz"
        np.savez(path, **arrays)
        model = models.build(
            "mlp", num_classes=num_classes, input_shape=(6,), hidden=(4,), norm="bn"
        )
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


def test_of_several_namings_the_file_decides(load, tmp_path):
    load()
    others = {place: f"net.{name}" for place, name in LAYERS.items()}
    model = models.build("mlp", num_classes=3, input_shape=(6,), hidden=(4,), norm="bn")
    for namings in ((LAYERS, others), (others, LAYERS)):
        params, _ = pretrained(model, tmp_path / "weights.npz", *namings).init(jax.random.key(0))
        np.testing.assert_array_equal(params["dense1"]["kernel"], ARRAYS["fc.weight"])


@pytest.mark.parametrize("network", sorted(NAMED))
def test_every_layer_has_a_name_of_its_own(network):
    for layers in layers_of(network):
        assert len({*layers.values()}) == len(layers)


@pytest.mark.parametrize(
    "changes", [{"num_classes": 5}, {"classifier.1.weight": None, "classifier.1.bias": None}]
)
def test_classifier_of_other_classes_or_none_starts_at_random(load, changes):
    model = load(**changes)
    params = [model.init(jax.random.key(seed))[0] for seed in (0, 1)]
    assert params[0]["head"]["kernel"].shape == (changes.get("num_classes", 3), 4)
    assert not np.array_equal(params[0]["head"]["kernel"], params[1]["head"]["kernel"])
    np.testing.assert_array_equal(params[0]["dense1"]["kernel"], ARRAYS["fc.weight"])


def test_init_is_pure_and_gives_new_buffers(load):
    model = load()
    first = model.init(jax.random.key(0))[0]
    second = model.init(jax.random.key(7))[0]
    first["dense1"]["kernel"].delete()  # what donating it to a jitted function does
    np.testing.assert_array_equal(second["dense1"]["kernel"], ARRAYS["fc.weight"])
    np.testing.assert_array_equal(
        model.init(jax.random.key(0))[0]["dense1"]["kernel"], ARRAYS["fc.weight"]
    )
    both, _ = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 2))
    np.testing.assert_array_equal(both["dense1"]["bias"], np.stack([ARRAYS["fc.bias"]] * 2))
    with jax.enable_x64(True):
        assert (
            jax.eval_shape(load().init, jax.random.key(0))[0]["dense1"]["bias"].dtype == jnp.float64
        )


def test_half_precision_is_widened(load):
    params, _ = load(**{"fc.bias": ARRAYS["fc.bias"].astype(np.float16)}).init(jax.random.key(0))
    assert params["dense1"]["bias"].dtype == jnp.float32
    np.testing.assert_array_equal(params["dense1"]["bias"], ARRAYS["fc.bias"].astype(np.float16))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "fc.weight",
            None,
            r"architecture: 1 array \(fc\.weight\) missing, 0 arrays left over. .*state_dict",
        ),
        ("bn.running_var", None, r"1 array \(bn\.running_var\) missing"),
        ("classifier.1.bias", None, r"1 array \(classifier\.1\.bias\) missing"),
        ("fc2.bias", np.zeros(2, np.float32), r"0 arrays missing, 1 array \(fc2\.bias\) left over"),
        (
            "fc.weight",
            np.zeros((6, 4), np.float32),
            r"'fc\.weight' has shape \(6, 4\), this network needs \(4, 6\)",
        ),
        (
            "fc.bias",
            np.zeros(4, np.int32),
            r"array 'fc\.bias' has dtype int32; allowed is floating point",
        ),
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
    with pytest.raises(
        ValueError, match=r"\(array 'fc\.weight'\) is not a readable \.npz file .* damaged"
    ):
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
    with pytest.raises(ValueError, match=r"need the package torch.*np.savez|no plain state dict"):
        pretrained(model, path, LAYERS)


def torchvisions_resnet18(a, x):
    """The network of torchvision's `resnet18` in evaluation, by the names of its state dict; x
    is [n, c, h, w].
    """

    def conv(x, name, stride, padding):
        return jax.lax.conv_general_dilated(
            x, a[f"{name}.weight"], (stride, stride), [(padding, padding)] * 2
        )

    def norm(x, name):
        mean, var, weight, bias = (
            a[f"{name}.{of}"][:, None, None]
            for of in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / np.sqrt(var + 1e-5) * weight + bias

    x = jax.nn.relu(norm(conv(x, "conv1", 2, 3), "bn1"))
    edges = ((0, 0), (0, 0), (1, 1), (1, 1))
    x = jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), edges)
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = jax.nn.relu(norm(conv(x, f"{name}.conv1", stride, 1), f"{name}.bn1"))
            y = norm(conv(y, f"{name}.conv2", 1, 1), f"{name}.bn2")
            if f"{name}.downsample.0.weight" in a:
                x = norm(conv(x, f"{name}.downsample.0", stride, 0), f"{name}.downsample.1")
            x = jax.nn.relu(x + y)
    return x.mean((2, 3)) @ a["fc.weight"].T + a["fc.bias"]


@pytest.mark.thorough
@pytest.mark.promise
def test_resnet18_computes_what_torchvisions_does(tmp_path):
    options = {
        "num_classes": 3,
        "input_shape": (40, 33, 3),
        "stem": "imagenet",
        "width_factor": 1 / 16,
    }
    arrays = arrays_of(models.build("resnet18", **options), resnet18_layers())
    path = tmp_path / "resnet18.npz"
    assert len(arrays) == 122  # entries of torchvision's state dict
    np.savez(path, **arrays)
    model = models.build("resnet18", **options, weights=str(path))
    x = RNG.uniform(-2, 2, (2, 40, 33, 3)).astype(np.float32)
    outputs = jax.jit(lambda p, s: model.apply(p, s, x, train=False)[0])(
        *model.init(jax.random.key(0))
    )
    np.testing.assert_allclose(
        outputs.logits, torchvisions_resnet18(arrays, x.transpose(0, 3, 1, 2)), rtol=1e-3, atol=1e-4
    )
    with pytest.raises(
        ValueError,
        match=r"'conv1\.weight' has shape \(4, 3, 7, 7\), this network needs \(4, 3, 3, 3\)",
    ):
        models.build("resnet18", **options | {"stem": "cifar"}, weights=str(path))
    with pytest.raises(ValueError, match=r"0 arrays missing, 40 arrays \(bn1\.running_mean"):
        models.build("resnet18", **options | {"norm": "gn", "width_factor": 0.5}, weights=str(path))
