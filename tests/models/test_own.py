"""Networks of a user's own: those of docs/networks.md beside ours, and what is refused."""

import re
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import cli, models

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
KINDS = ("Linen", "Nnx", "Equinox")
QUICK = [pytest.param(kind, marks=() if kind == "Nnx" else pytest.mark.thorough) for kind in KINDS]
MORE = """
import functools


class Convolutions(nn.Module):
    num_classes: int
    slow: bool = False

    @nn.compact
    def __call__(self, x, train, mask):
        plain = (lambda *given, **more: jax.lax.conv_general_dilated(*given, **more)) if self.slow else None
        x = nn.relu(nn.Conv(16, (3, 3), conv_general_dilated=plain)(x))
        x = nn.relu(nn.Conv(8, (5, 3), strides=2, padding=((1, 1), (0, 2)), conv_general_dilated=plain)(x))
        x = nn.Conv(8, (3, 3), feature_group_count=8)(x)
        return nn.Dense(self.num_classes)(x.mean((1, 2))), x.reshape(len(x), -1)


class NnxConvolutions(nnx.Module):
    def __init__(self, num_classes, input_shape, rngs, slow: bool = False):
        plain = lambda *given, **more: jax.lax.conv_general_dilated(*given, **more)
        more = {"conv_general_dilated": plain} if slow else {}
        self.first = nnx.Conv(input_shape[-1], num_classes, (3, 3), rngs=rngs, **more)
        self.layers = nnx.List([nnx.Linear(num_classes, num_classes, rngs=rngs) for _ in range(2)])

    def __call__(self, x, deterministic):
        x = self.first(x).mean((1, 2))
        for layer in self.layers:
            x = layer(x)
        return x


def fixed(num_classes):
    return Nnx(num_classes, (8, 8, 1), nnx.Rngs(0))


def made(num_classes, input_shape, key):
    return eqx.nn.make_with_state(Equinox)(num_classes, input_shape, key)


network = Linen(num_classes=10)
part = functools.partial(Linen, width=5)


def other_classes(num_classes):
    return Linen(num_classes + 1)


class NotANumber(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        weights = self.param("weights", lambda key, shape: jnp.full(shape, jnp.nan), (64, self.num_classes))
        return x.reshape(len(x), -1) @ weights


class NeedsKey(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(self.num_classes)(x.reshape(len(x), -1)))


class AlwaysTraining(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(nn.Dense(self.num_classes)(x.reshape(len(x), -1)))


class AskedForMore(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x, temperature):
        return x


def nothing(num_classes):
    return num_classes


def no_parameters(num_classes):
    return (lambda key: ({}, {})), (lambda params, state, inputs: (inputs, state))


def init_with_inputs():
    return (lambda key, x: ({"w": jnp.ones(3)}, {})), (lambda params, state, inputs: (inputs, state))


def scores_alone():
    return (lambda key: ({"w": jnp.ones((64, 10))}, {})), (lambda params, state, x: x.reshape(len(x), -1) @ params["w"])
"""


@pytest.fixture
def nets(tmp_path, monkeypatch):
    code = re.findall(
        r"<!-- tests/models/test_own.py runs this block. -->\n```python\n(.*?)```",
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
    """The parameters of a network of `docs/networks.md`, from those of ours with the same
    layers.
    """
    first, last = ("Dense_0", "Dense_1") if kind == "Linen" else ("hidden", "head")
    norm = "BatchNorm_0" if kind == "Linen" else "norm"
    weight, scale = ("weight", "weight") if kind == "Equinox" else ("kernel", "scale")
    turned = (lambda x: x) if kind == "Equinox" else jnp.transpose

    def dense(layer):
        return {weight: turned(layer["kernel"]), "bias": layer["bias"]}

    return {
        first: dense(params["dense1"]),
        norm: {scale: params["norm1"]["scale"], "bias": params["norm1"]["bias"]},
        last: dense(params["head"]),
    }


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


@pytest.mark.parametrize("kind", ["Linen", "Nnx"])
def test_weights_of_a_batch_in_running_statistics(nets, kind):
    assert {*jax.tree.leaves(build(kind).batch_weights())} == {0.1}
    with pytest.raises(
        ValueError,
        match=r"config\.model: this method works out batch statistics, which equinox keeps",
    ):
        build("Equinox").batch_weights()


@pytest.mark.parametrize(
    ("kind", "width"),
    [pytest.param("Convolutions", 96, marks=pytest.mark.thorough), ("NnxConvolutions", 3)],
)
def test_convolutions_of_flax_are_computed_as_ours(nets, kind, width):
    quick = build(kind)
    slow = build(kind, slow=True)
    params, state = slow.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 8, 8, 1))

    def outputs(model):
        def loss(p):
            return jnp.sum(model.apply(p, state, x, train=False)[0].logits ** 2)

        return jax.jit(jax.value_and_grad(loss))(params)

    chex.assert_trees_all_close(outputs(quick), outputs(slow), rtol=1e-4, atol=1e-6)

    def apply(model):
        return str(
            jax.make_jaxpr(lambda p: model.apply(p, state, x, train=False)[0].logits)(params)
        )

    # the grouped one
    assert apply(quick).count("conv_general_dilated[") == (kind == "Convolutions")
    assert apply(slow).count("conv_general_dilated[") == (3 if kind == "Convolutions" else 1)
    assert quick.apply(params, state, x, train=False)[0].features.shape == (4, width)


@pytest.mark.parametrize("name", ["softmax_regression", "made", "fixed", "network", "part"])
def test_functions_pairs_and_networks(nets, name, recwarn):
    model = models.build(f"my_nets:{name}", num_classes=10, input_shape=(8, 8, 1))
    params, state = model.init(jax.random.key(0))
    assert model.apply(params, state, jnp.ones((2, 8, 8, 1)), train=False)[0].logits.shape == (
        2,
        10,
    )
    notes = [str(one.message) for one in recwarn]
    assert [re.sub(r"line \d+", "line N", note) for note in notes] == (
        ["every seed starts from the same weights: my_nets.py, line N takes neither of rngs, key"]
        * (name == "fixed")
    )


@pytest.mark.parametrize("name", ["network", "Linen"])
def test_networks_are_built_and_tried_under_a_trace(nets, name):
    def built(_):
        return models.build(f"my_nets:{name}", num_classes=10, input_shape=(8, 8, 1))

    jax.eval_shape(lambda key: built(key).init(key), jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other_classes", r"of shape \(3, 11\) .*; \(3, 10\) has to come.*my_nets.py, line"),
        (
            "NotANumber",
            "NaN or infinity at initialization, as do its parameters weights .my_nets.py, line",
        ),
        (
            "NeedsKey",
            r"in evaluation, where it gets no key: .*\(my_nets.py, line \d+, in __call__: `return nn.Dropout",
        ),
        (
            "AlwaysTraining",
            "changes with the rest of the batch: batch norm or dropout act as in training; let "
            "it take",
        ),
        (
            "AskedForMore",
            "nobody gives the network its parameter 'temperature'; it may take, beside inputs, "
            "train",
        ),
        (
            "nothing",
            r"it returned int; it has to return a module of flax or equinox, or a pair .* \(my_nets.py, line",
        ),
        (
            "no_parameters",
            "a network needs parameters of floating point, got none .my_nets.py, line",
        ),
        (
            "init_with_inputs",
            r"init\(key\) has to return \(params, state\): missing .*'x' .my_nets.py, line",
        ),
        (
            "scores_alone",
            r"\.\.\.\) has to return \(scores, state\); an array came .my_nets.py, line",
        ),
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
@pytest.mark.parametrize("kind", [*KINDS, "softmax_regression"])
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
    assert cli.main(["predict", "run", "--export", "exported"]) == 0
