"""Networks of which a part is trained: what is trained and what stays, of every kind of network."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.traverse_util import flatten_dict

from fedjax_ssl import models
from fedjax_ssl.models.layers import Dense
from fedjax_ssl.models.model import Outputs, from_linen
from fedjax_ssl.models.pretrained import started
from fedjax_ssl.models.trained_part import part_of
from fedjax_ssl.registry import Registry

KEY = jax.random.key(0)
MLP = {"num_classes": 3, "input_shape": (5,), "hidden": (8, 8), "norm": "bn"}
X = jax.random.normal(jax.random.key(1), (6, 5))


def built(train, name="mlp", **options):
    model = models.build(name, **{**MLP, **options}, train=train)
    return model, model.part.bind(model.part.start(KEY))


def places(tree):
    return {".".join(place) for place in flatten_dict(tree)}


@pytest.mark.parametrize(
    ("train", "options", "params", "state"),
    [
        ("head", {}, {"head.bias", "head.kernel"}, set()),
        ("head", {"aux_head": True}, None, set()),
        (
            "lora",
            {"lora_layers": "dense2"},
            {
                "head.bias",
                "head.kernel",
                "lora.dense2.kernel.left",
                "lora.dense2.kernel.right",
            },
            set(),
        ),
        (
            "dense2.kernel, norm2, h*",
            {},
            {"dense2.kernel", "norm2.bias", "norm2.scale", "head.bias", "head.kernel"},
            {"norm2.mean", "norm2.var"},
        ),
    ],
)
def test_what_is_trained_and_what_stays_make_the_network(train, options, params, state):
    plain = {name: value for name, value in options.items() if name != "lora_layers"}
    whole = models.build("mlp", **MLP, **plain)
    model, bound = built(train, **options)
    own, statistics = model.init(KEY)
    if params is not None:
        assert places(own) == params
    assert places(statistics) == state
    everything = whole.init(KEY)
    chex.assert_trees_all_equal(
        model.part.whole(model.part.start(KEY), own, statistics), everything
    )
    outputs, new = bound.apply(own, statistics, X, train=False)
    chex.assert_trees_all_close(outputs, whole.apply(*everything, X, train=False)[0])
    chex.assert_trees_all_equal(new, statistics)
    assert model.normalization() == {("norm2",)} if state else not model.normalization()


def test_batch_statistics_move_where_a_layer_is_trained_and_nowhere_else():
    model, bound = built("dense2,norm2,head")
    params, state = model.init(KEY)
    outputs, new = bound.apply(params, state, X, train=True)
    assert places(new) == {"norm2.mean", "norm2.var"} == places(model.batch_weights())
    assert not np.array_equal(new["norm2"]["mean"], state["norm2"]["mean"])
    # the first layer as it predicts, the second by the moments of the batch
    frozen = model.part.start(KEY)
    hidden = X @ frozen.params["dense1"]["kernel"].T + frozen.params["dense1"]["bias"]
    hidden = jax.nn.relu(hidden / np.sqrt(1 + 1e-5))
    hidden = hidden @ params["dense2"]["kernel"].T + params["dense2"]["bias"]
    hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5)
    np.testing.assert_allclose(outputs.features, jax.nn.relu(hidden), atol=1e-5)
    _, still = built("head")
    own, nothing = models.build("mlp", **MLP, train="head").init(KEY)
    quiet, _ = still.apply(own, nothing, X, train=True)
    chex.assert_trees_all_equal(quiet, still.apply(own, nothing, X, train=False)[0])


def test_a_pair_adds_its_product():
    model, bound = built("lora", lora_rank=2, lora_layers="dense1", lora_scale=0.5, norm="none")
    params, state = model.init(KEY)
    pair = params["lora"]["dense1"]["kernel"]
    pair["right"] = jnp.ones_like(pair["right"])
    merged, _ = model.part.whole(model.part.start(KEY), params, state)
    added = merged["dense1"]["kernel"] - model.part.start(KEY).params["dense1"]["kernel"]
    np.testing.assert_allclose(added, 0.5 * pair["left"] @ pair["right"], atol=1e-6)
    whole = models.build("mlp", **MLP | {"norm": "none"})
    expected, _ = whole.apply(merged, {}, X, train=False)
    chex.assert_trees_all_close(bound.apply(params, state, X, train=True)[0], expected, rtol=1e-5)


def test_weights_of_another_run_and_precision_go_to_the_whole_network():
    whole = models.build("mlp", **MLP)
    params, state = whole.init(jax.random.key(5))
    arrays = {f"params.{'.'.join(place)}": v for place, v in flatten_dict(params).items()}
    arrays |= {f"batch_stats.{'.'.join(place)}": v for place, v in flatten_dict(state).items()}
    arrays = {name: np.asarray(values) for name, values in arrays.items()}
    model = started(models.build("mlp", **MLP, train="lora"), arrays, "there")
    chex.assert_trees_all_equal(model.init(KEY)[0]["head"], params["head"])
    chex.assert_trees_all_equal(model.part.start(KEY).params["dense1"], params["dense1"])
    half = models.in_precision(model, "bf16")
    own, statistics = half.init(KEY)
    outputs, _ = half.part.bind(half.part.start(KEY)).apply(own, statistics, X, train=False)
    full, _ = model.part.bind(model.part.start(KEY)).apply(own, statistics, X, train=False)
    assert 0 < float(jnp.abs(outputs.logits - full.logits).max()) < 0.1


class Active(nn.Dense):
    @nn.compact
    def __call__(self, inputs):
        return nn.tanh(super().__call__(inputs))


class Step(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        return nn.tanh(nn.Dense(5)(x)), None


class Layers(nn.Module):
    @nn.compact
    def __call__(self, x, train, mask):
        split = {"params": True}
        scan = nn.scan(Step, {"params": 0}, split_rngs=split, length=2)
        blocks = [
            Dense(5)(inputs=x),
            nn.Dense(5)(x),
            nn.Dense(5)(inputs=x),
            Active(5)(x),
            nn.WeightNorm(nn.Dense(5))(x),
            scan()(x, None)[0],
        ]
        return Outputs(nn.Dense(3)(blocks[0]), jnp.stack(blocks), None)


LAYERS = ("ours by keyword", "dense", "dense by keyword", "subclass", "weight norm", "scan")


@pytest.fixture(scope="module")
def features():
    """Return layers' outputs with pairs as they are applied, in the kernels, and without pairs."""
    whole = from_linen(Layers(), (5,), needs_key=False)
    model = part_of(whole, (5,), "lora", rank=2)

    @jax.jit
    def compute():
        frozen = model.part.start(KEY)
        params, state = model.init(KEY)
        moved = jax.tree.map(lambda leaf: leaf + 1, params)
        merged = model.part.whole(frozen, moved, state)
        without = model.part.whole(frozen, params, state)
        bound = model.part.bind(frozen)
        outputs = (
            bound.apply(moved, state, X, train=True),
            *(whole.apply(*one, X, train=True) for one in (merged, without)),
        )
        return [one.features for one, _ in outputs]

    return compute()


@pytest.mark.parametrize("layer", LAYERS)
def test_a_pair_of_a_layer_of_linen_is_as_if_added_to_its_kernel(features, layer):
    found, expected, without = (np.asarray(one[LAYERS.index(layer)]) for one in features)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(found - without).max() > 0.1


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for _ in range(2):
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x)))
        return nn.Dense(3)(x)


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(5, 8, rngs=rngs)
        self.norm1 = nnx.BatchNorm(8, rngs=rngs)
        self.second = nnx.Linear(8, 8, rngs=rngs)
        self.norm2 = nnx.BatchNorm(8, rngs=rngs)
        self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm1(self.first(x)))
        return self.last(nnx.relu(self.norm2(self.second(x))))


@pytest.fixture
def own(monkeypatch):
    networks: Registry = models.MODELS
    monkeypatch.setattr(networks, "_builders", dict(networks._builders))
    monkeypatch.setattr(networks, "_lines", dict(networks._lines))
    networks.register("linen", Linen, "a")
    networks.register("nnx", Nnx, "b")

    def make(name, train, **options):
        return models.build(name, num_classes=3, input_shape=(5,), train=train, **options)

    return make


@pytest.mark.thorough
def test_heads_and_pairs_of_networks_of_ones_own(own):
    assert places(own("linen", "head").init(KEY)[0]) == {"Dense_2.kernel", "Dense_2.bias"}
    model = own("nnx", "lora", lora_layers="second")
    params, state = model.init(KEY)
    pair = {"lora.second.kernel.left", "lora.second.kernel.right"}
    assert (places(params), state) == ({"last.kernel", "last.bias", *pair}, {})
    mixed = own("linen", "Dense_1,BatchNorm_1,Dense_2")
    params, state = mixed.init(KEY)
    _, new = mixed.part.bind(mixed.part.start(KEY)).apply(params, state, X, train=True)
    assert places(new) == {"batch_stats.BatchNorm_1.mean", "batch_stats.BatchNorm_1.var"}
    with pytest.raises(ValueError, match="some layers with batch norm and leaves others out"):
        own("nnx", "norm2,last")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "block7.*,head"}, "model.train names 'block7.*', which matches none of dense1,"),
        ({"train": " "}, "model.train is empty"),
        (
            {"train": "lora", "lora_rank": 6},
            "lora_rank is 6, but layer 'dense1' is a matrix of 8 x 5",
        ),
        ({"train": "lora", "lora_layers": "qkv"}, "lora_layers names 'qkv', which matches none"),
        ({"train": "lora", "lora_rank": 0}, "lora_rank"),
    ],
)
def test_bad_parts(options, message):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        models.build("mlp", **MLP, **options)


def test_networks_without_a_head_or_other_layers():
    with pytest.raises(ValueError, match="has no kernels but its head's"):
        models.build("linear", num_classes=3, input_shape=(5,), train="lora")
    with pytest.raises(
        ValueError, match=r"this network has no head.*Name what is trained, of block1"
    ):
        models.build("resnet8", num_classes=3, input_shape=(8, 8, 1), train="head")
    model = models.build("mlp", **MLP, train="head")
    with pytest.raises(ValueError, match="the rest of the network is not there"):
        model.apply(*model.init(KEY), X, train=False)
