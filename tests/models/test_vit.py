"""Vision transformers: values of timm and torchvision from arrays by their names, sizes, bad
input.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import models
from fedjax_ssl.models.pretrained import vit_layers
from tests.models.torchvision_arrays import arrays_of

SMALL = {"num_classes": 3, "input_shape": (8, 8, 3), "patch": 4, "dim": 8, "depth": 2, "heads": 2}
# Computed once in float64, with the arrays of `arrays_of`, by timm 1.0.31, `VisionTransformer`, and
# torchvision 0.29.1, `VisionTransformer`, which gave the same digits.
FEATURES = [
    [1.2535113, 0.1376152, 1.3999431, -0.3019246, -1.2994556],
    [1.4928346, 0.0871136, 1.2560282, -0.1597334, -1.686164],
]
LOGITS = [[-0.0635006, -0.1241628, 0.5458769], [-0.5084091, 0.3158902, 0.3935174]]
TORCHVISION = {
    "blocks.": "encoder.layers.encoder_layer_",
    "patch_embed.proj.": "conv_proj.",
    "cls_token": "class_token",
    "pos_embed": "encoder.pos_embedding",
    ".norm": ".ln_",
    ".attn.qkv.": ".self_attention.in_proj_",
    ".attn.proj.": ".self_attention.out_proj.",
    ".mlp.fc1.": ".mlp.0.",
    ".mlp.fc2.": ".mlp.3.",
}


def in_torchvision(name):
    if name.startswith("head."):
        return f"heads.{name}"
    if name.startswith("norm."):
        return f"encoder.ln.{name.removeprefix('norm.')}"
    for of_timm, theirs in TORCHVISION.items():
        name = name.replace(of_timm, theirs)
    return name


@pytest.fixture(scope="module")
def arrays():
    return arrays_of(models.build("vit_s16", **SMALL), vit_layers())


def test_values_are_those_of_timm_and_torchvision(arrays, tmp_path):
    np.savez(tmp_path / "timm.npz", **arrays)
    theirs = {in_torchvision(name): values for name, values in arrays.items()}
    np.savez(tmp_path / "torchvision.npz", **theirs)
    first, second = (
        models.build("vit_s16", **SMALL, weights=str(tmp_path / f"{source}.npz"))
        for source in ("timm", "torchvision")
    )
    params, state = first.init(jax.random.key(0))
    x = np.random.RandomState(999).uniform(-2, 2, (2, 8, 8, 3)).astype(np.float32)
    outputs, _ = jax.jit(lambda p, x: first.apply(p, state, x, train=False))(params, x)
    np.testing.assert_allclose(outputs.features[:, :5], FEATURES, atol=1e-5)
    np.testing.assert_allclose(outputs.logits, LOGITS, atol=1e-5)
    same = second.init(jax.random.key(0))[0]
    assert jax.tree.all(jax.tree.map(np.array_equal, params, same))


@pytest.mark.thorough
def test_blocks_that_are_computed_again_have_the_same_gradients():
    x = jnp.ones((2, 8, 8, 3))
    found = []
    for recompute in (False, True):
        model = models.build("vit_s16", **SMALL, recompute=recompute, train="lora", lora_rank=2)
        bound = model.part.bind(model.part.start(jax.random.key(0)))
        params, state = model.init(jax.random.key(0))

        def loss(params, bound=bound, state=state):
            return bound.apply(params, state, x, train=True)[0].logits[:, 0].sum()

        found.append(jax.jit(jax.grad(loss))(params))
    chex.assert_trees_all_close(*found, rtol=1e-5, atol=1e-7)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(found[0]["lora"]))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "count"), [("vit_s16", 22_050_664), ("vit_b16", 86_567_656)])
def test_sizes_are_those_of_the_papers(name, count):
    model = models.build(name, num_classes=1000, input_shape=(32, 32, 3), side=224)
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    assert models.count_parameters(params) == count


def test_bad_builds(arrays, tmp_path):
    with pytest.raises(ValueError, match="images are 8 x 8, no multiples of patch=16"):
        models.build("vit_s16", num_classes=3, input_shape=(8, 8, 3))
    with pytest.raises(ValueError, match="dim=8 is no multiple of heads=3"):
        models.build("vit_s16", **SMALL | {"heads": 3})
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=r"12 arrays \(blocks\.2.* missing, 0 arrays left over"):
        models.build("vit_s16", **SMALL | {"depth": 3}, weights=str(tmp_path / "a.npz"))
    with pytest.raises(ValueError, match=r"12 arrays \(blocks\.1.* left over"):
        models.build("vit_s16", **SMALL | {"depth": 1}, weights=str(tmp_path / "a.npz"))
    with pytest.raises(
        ValueError, match="'pos_embed' has 5 positions, this network 10; bring images to 8 x 8"
    ):
        wide = SMALL | {"input_shape": (12, 12, 3)}
        models.build("vit_s16", **wide, weights=str(tmp_path / "a.npz"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["vit_small_patch16_224", "vit_base_patch16_224", "vit_b_16"])
def test_random_weights_of_the_libraries_give_their_outputs(name, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch, timm and torchvision")
    library = pytest.importorskip("torchvision.models" if name == "vit_b_16" else "timm")
    torch.manual_seed(0)
    make = library.vit_b_16 if name == "vit_b_16" else library.create_model
    network = make(num_classes=7) if name == "vit_b_16" else make(name, num_classes=7)
    path = tmp_path / "weights.npz"
    with torch.no_grad():
        for values in network.parameters():
            values.add_(0.02 * torch.randn_like(values))
        x = np.random.default_rng(0).standard_normal((2, 224, 224, 3), np.float32)
        expected = network.eval()(torch.tensor(x).permute(0, 3, 1, 2)).numpy()
        np.savez(path, **{key: value.numpy() for key, value in network.state_dict().items()})
    ours = "vit_s16" if "small" in name else "vit_b16"
    model = models.build(ours, num_classes=7, input_shape=(224, 224, 3), weights=str(path))
    outputs, _ = model.apply(*model.init(jax.random.key(0)), jnp.asarray(x), train=False)
    np.testing.assert_allclose(outputs.logits, expected, atol=1e-4)
