"""Networks of a user's own: those of docs/by_name.md beside ours, and what is refused."""

import re
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import cli, models

PAGE = Path(__file__).parents[2] / "docs" / "by_name.md"
QUICK = ["of_nnx", pytest.param("linen", marks=pytest.mark.thorough)]
MORE = """
class Convolutions(nn.Module):
    quick: bool

    @nn.compact
    def __call__(self, x):
        plain = lambda *given, **more: jax.lax.conv_general_dilated(*given, **more)
        ours = fs.models.conv_general_dilated if self.quick else plain
        x = nn.relu(nn.Conv(16, (3, 3), conv_general_dilated=ours)(x))
        x = nn.relu(nn.Conv(8, (5, 3), strides=2, padding=((1, 1), (0, 2)), conv_general_dilated=ours)(x))
        x = nn.Conv(8, (3, 3), feature_group_count=8, conv_general_dilated=ours)(x)
        return nn.Dense(3)(x.mean((1, 2)))


def convolutions(quick: bool = True):
    return fs.from_linen(Convolutions(quick), (8, 8, 1))


class Many(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(64 - i, 63 - i, rngs=rngs) for i in range(12)])
        self.norm = nnx.BatchNorm(52, rngs=rngs)
        self.head = nnx.Linear(52, 10, rngs=rngs)

    def __call__(self, x, train, mask):
        x = x.reshape(len(x), -1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x, use_running_average=not train, mask=mask[:, None]))


def many():
    return fs.from_nnx(Many)


def drawn_before():
    return fs.from_nnx(Many(nnx.Rngs(0)))


def other_classes(num_classes, input_shape):
    return linen(num_classes + 1, input_shape)


class NotANumber(nn.Module):
    @nn.compact
    def __call__(self, x):
        weights = self.param("weights", lambda key, shape: jnp.full(shape, jnp.nan), (64, 10))
        return x.reshape(len(x), -1) @ weights


class NeedsKey(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(10)(x.reshape(len(x), -1)))


class AlwaysTraining(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(10)(x.reshape(len(x), -1)))


class CountsPadding(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(10)(x.reshape(len(x), -1)))


class AskedForMore(nn.Module):
    @nn.compact
    def __call__(self, x, temperature):
        return x


def not_a_number():
    return fs.from_linen(NotANumber(), (8, 8, 1))


def needs_key():
    return fs.from_linen(NeedsKey(), (8, 8, 1))


def always_training():
    return fs.from_linen(AlwaysTraining(), (8, 8, 1))


def counts_padding():
    return fs.from_linen(CountsPadding(), (8, 8, 1))


def asked_for_more():
    return fs.from_linen(AskedForMore(), (8, 8, 1))


def a_module():
    return NeedsKey()


def no_parameters(num_classes):
    return (lambda key: ({}, {})), (lambda params, state, inputs: (inputs, state))


def scores_alone():
    return (lambda key: ({"w": jnp.ones((64, 10))}, {})), (lambda params, state, x, **more: x.reshape(len(x), -1) @ params["w"])
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    code = re.findall(
        r"<!-- tests/models/test_own_networks.py runs this block. -->\n```python\n(.*?)```",
        PAGE.read_text(),
        re.S,
    )
    assert len(code) == 1
    (tmp_path / "my_nets.py").write_text(code[0] + MORE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    with jax.numpy_dtype_promotion("standard"):  # equinox needs it
        yield
    del sys.modules["my_nets"]


def build(name, **options):
    return models.build(f"my_nets:{name}", num_classes=3, input_shape=(8, 8, 1), **options)


def with_weights_of(kind, params):
    """The parameters of a network of `docs/by_name.md`, from those of ours with the same
    layers.
    """
    first, norm = ("Dense_0", "BatchNorm_0") if kind == "linen" else ("hidden", "norm")

    def dense(layer):
        return {"kernel": layer["kernel"].T, "bias": layer["bias"]}

    return {first: dense(params["dense1"]), norm: params["norm1"], "head": dense(params["head"])}


@pytest.mark.parametrize("kind", QUICK)
def test_with_the_same_weights_they_are_our_network(nets, kind):
    ours = models.build("mlp", num_classes=3, input_shape=(8, 8, 1), hidden=(5,), norm="bn")
    theirs = build(kind, width=5, rate=0.0)
    params, state = ours.init(jax.random.key(0))
    named = with_weights_of(kind, params)
    their_state = theirs.init(jax.random.key(1))[1]
    x = jax.random.normal(jax.random.key(2), (6, 8, 8, 1)).at[1].set(77.0)  # padding
    mask = jnp.array([True, False, True, True, True, False])

    def loss(params, model, state):
        outputs, new = model.apply(params, state, x, train=True, mask=mask, key=jax.random.key(3))
        return jnp.sum(jnp.where(mask[:, None], outputs.logits, 0) ** 2), (outputs, new)

    slope = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    (_, (outputs, new)), gradient = slope(named, theirs, their_state)
    (_, (expected, ours_new)), ours_gradient = slope(params, ours, state)
    for one, other in zip(outputs[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one[mask], other[mask], rtol=1e-6, atol=1e-6)
    chex.assert_trees_all_close(
        gradient, with_weights_of(kind, ours_gradient), rtol=1e-5, atol=5e-6
    )
    means = [leaf for leaf in jax.tree.leaves(new) if leaf.shape == (5,)]
    np.testing.assert_allclose(means[0], ours_new["norm1"]["mean"], rtol=1e-6, atol=1e-7)
    evaluated, kept = theirs.apply(named, their_state, x, train=False)
    chex.assert_trees_all_close(
        tuple(evaluated[:2]), tuple(ours.apply(params, state, x, train=False)[0][:2]), rtol=1e-5
    )
    chex.assert_trees_all_equal(kept, their_state)
    nobody = theirs.apply(named, new, x, train=True, mask=jnp.zeros(6, bool), key=jax.random.key(3))
    chex.assert_trees_all_equal(nobody[1], new)
    chex.assert_tree_all_finite(nobody[0].logits)


@pytest.mark.parametrize("kind", QUICK)
def test_dropout_and_weights_follow_keys(nets, kind):
    model = build(kind, rate=0.5)
    both = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 2))
    assert all(jnp.any(x[0] != x[1]) for x in jax.tree.leaves(both[0]) if x.ndim == 3)
    params, state = jax.tree.map(lambda x: x[0], both)
    x = jax.random.normal(jax.random.key(2), (4, 8, 8, 1))
    train = jax.jit(lambda key: model.apply(params, state, x, train=True, key=key)[0].logits)
    one, again, other = (train(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)

    def evaluate(variables):
        return model.apply(*variables, x, train=False)[0].logits

    each = jax.jit(jax.vmap(evaluate))(both)
    alone = jax.jit(evaluate)((params, state))
    np.testing.assert_allclose(each[0], alone, rtol=1e-5, atol=1e-6)
    low = models.in_precision(model, "bf16")
    half = jax.jit(lambda: low.apply(params, state, x, train=True, key=jax.random.key(0)))()
    np.testing.assert_allclose(half[0].logits, one, atol=0.1)
    assert [leaf.dtype for leaf in jax.tree.leaves(half)] == [jnp.float32] * len(
        jax.tree.leaves(half)
    )


def test_weights_of_a_batch_in_running_statistics(nets):
    assert {*jax.tree.leaves(build("of_nnx").batch_weights())} == {0.1}


@pytest.mark.thorough
@pytest.mark.promise
def test_convolutions_of_flax_are_computed_as_ours(nets):
    quick = build("convolutions")
    slow = build("convolutions", quick=False)
    params, state = slow.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 1))

    def outputs(model):
        def loss(p):
            return jnp.sum(model.apply(p, state, x, train=False)[0].logits ** 2)

        return jax.jit(jax.value_and_grad(loss))(params)

    chex.assert_trees_all_close(outputs(quick), outputs(slow), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax_regression", "equinox", "many"])
def test_pairs_of_functions_and_many_layers(nets, name):
    model = models.build(f"my_nets:{name}", num_classes=10, input_shape=(8, 8, 1))
    params, state = model.init(jax.random.key(0))
    assert any(jnp.any(x) for x in jax.tree.leaves(params))
    outputs = model.apply(params, state, jnp.ones((2, 8, 8, 1)), train=False)[0]
    assert outputs.logits.shape == (2, 10)
    with pytest.raises(ValueError, match="features of the examples are needed"):
        outputs.features  # noqa: B018


def test_networks_are_built_and_tried_under_a_trace(nets):
    def built(_):
        return models.build("my_nets:of_nnx", num_classes=10, input_shape=(8, 8, 1))

    jax.eval_shape(lambda key: built(key).init(key), jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other_classes", r"of shape \(3, 11\) .*; \(3, 10\) has to come.*my_nets.py, line"),
        (
            "not_a_number",
            "NaN or infinity at initialization, as do its parameters weights .my_nets.py, line",
        ),
        (
            "needs_key",
            r"in evaluation, where it gets no key: .*\(my_nets.py, line \d+, in __call__: `return nn.Dropout",
        ),
        (
            "always_training",
            "changes with the rest of the batch: batch norm or dropout act as in training; let "
            "it take `train`",
        ),
        ("counts_padding", "batch statistics, and padding counts in them: let it take `mask`"),
        ("asked_for_more", "nobody gives the network its parameter 'temperature'; beside its"),
        ("a_module", r"it returned NeedsKey; it has to return a Model: .* \(my_nets.py, line"),
        ("drawn_before", "from_nnx takes a function of nnx.Rngs .* and was given Many"),
        ("no_parameters", "nested dicts of floating-point arrays, with parameters; none came"),
        ("scores_alone", r"mask\) has to return \(outputs, state\) .my_nets.py, line"),
    ],
)
def test_what_is_refused(nets, name, message, capsys):
    assert (
        cli.main(
            ["run", "digits_fedavg", f"--model.name=my_nets:{name}", "--rounds=1", "--workdir=run"]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: config.model: "), error
    assert re.search(message, error), error


def test_a_method_that_needs_features_says_so(nets, capsys):
    arguments = [
        "--model.name=my_nets:softmax_regression",
        "--rounds=2",
        "--method.warmup_rounds=1",
        "--workdir=run",
    ]
    assert cli.main(["run", "digits_xclp", *arguments]) == 2
    assert "error: config.model: features of the examples are needed" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.promise
@pytest.mark.parametrize("kind", ["linen", "of_nnx", "equinox"])
@pytest.mark.parametrize("method", ["fedavg", "fixmatch"])
def test_they_train(nets, kind, method, tmp_path):
    assert (
        cli.main(
            [
                "run",
                f"digits:{method}",
                f"--model.name=my_nets:{kind}",
                "--rounds=5",
                "--workdir=run",
            ]
        )
        == 0
    )
