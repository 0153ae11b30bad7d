"""SemiFL: numbers of the specification's checks, limits and edge cases."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.federated import Client, Recipe, ServerState
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    CONFIDENT,
    ConfidentLabels,
    confident_epochs,
)
from fedjax_ssl.methods.parts.static_batch_norm import (
    Part,
    batch_statistics,
    with_static_batch_norm,
)
from tests import toy

KEY = jax.random.key(3)


# Whole clients are one batch, so that no order of examples is left.


def returned(optimizer, state, anchor, *clients):
    """The server's step after clients returned these parameters; None: the client trained
    nothing.
    """
    trained = []
    for client in clients:
        params = anchor if client is None else jnp.asarray(client, jnp.float32)
        weight = jnp.asarray(0.0 if client is None else 1.0)
        trained.append(
            toy.local(
                {"model": anchor},
                {"model": params},
                {"model": weight},
                jnp.ones((), int),
                weight,
                (),
                (),
            )
        )
    summed, _ = toy.added_up(optimizer, *trained)
    params, state = optimizer.apply(state, {"model": anchor}, summed, toy.context(len(clients)))
    return params["model"], state


def test_global_momentum():
    """Check 1."""
    optimizer = federated.fedopt(optax.sgd(1.0, 0.5))
    anchor = jnp.asarray([1.0, -2.0])
    state = optimizer.init({"model": anchor})
    first, state = returned(optimizer, state, anchor, [0.5, -1.8], [0.7, -2.0])
    np.testing.assert_allclose(first, [0.6, -1.9], rtol=1e-6)
    moved_by_server = jnp.asarray([0.7, -1.8])
    unchanged, kept = returned(optimizer, state, moved_by_server, None, None)
    np.testing.assert_array_equal(unchanged, moved_by_server)
    chex.assert_trees_all_equal(kept, state)
    second, _ = returned(optimizer, kept, moved_by_server, [0.5, -1.5])
    np.testing.assert_allclose(second, [0.3, -1.45], rtol=1e-6)


def test_who_was_not_confident_does_not_count():
    """Check 7."""
    anchor = jnp.asarray([1.0, 1.0])
    mean, _ = returned(federated.fedavg(), (), anchor, [2.0, 0.0], None, [0.0, 4.0])
    np.testing.assert_allclose(mean, [1.0, 2.0])


def one_channel() -> models.Model:
    """A batch norm layer and nothing else."""
    layer = models.normalization.Norm("bn")

    def init(key):
        variables = layer.init(key, jnp.zeros((1, 1)), False, None)
        return variables["params"], variables["batch_stats"]

    def apply(params, state, inputs, *, train, key=None, mask=None):
        variables = {"params": params, "batch_stats": state}
        logits, updates = layer.apply(variables, inputs, train, mask, mutable=["batch_stats"])
        return models.Outputs(logits, inputs, None), updates["batch_stats"]

    return models.Model(
        init, apply, batch_weights=lambda: {"mean": layer.momentum, "var": layer.momentum}
    )


def test_static_batch_norm_averages_batches():
    """Check 3; a single example at the end, padding and a value that is not finite change
    nothing.
    """
    model = one_channel()
    params, state = model.init(KEY)
    values = jnp.asarray([0.0, 1.0, 2.0, 3.0, 10.0, 12.0, 99.0, jnp.nan, 50.0])[:, None]
    rows = jnp.asarray([0, 1, 2, 3, 4, 5, 6, 7, 8], jnp.int32)
    statistics = jax.jit(
        lambda count: batch_statistics(
            model, lambda x: x, params, state, values, Part(rows, count, 3)
        )
    )
    for count in (6, 7, 8):
        result = statistics(jnp.asarray(count))
        np.testing.assert_allclose(result["mean"], [4.66666667], rtol=1e-6)
        np.testing.assert_allclose(result["var"], [11.66666667], rtol=1e-6)
    chex.assert_trees_all_equal(statistics(jnp.asarray(1)), state)


@pytest.mark.thorough
@pytest.mark.parametrize("norm", ["bn", "sbn"])
def test_static_batch_norm_takes_every_layers_own_weight_of_a_batch(norm):
    """In `resnet9` a batch weighs 0.01 ("bn") or 1 ("sbn"), elsewhere 0.1; the statistics are
    those of the batches.
    """
    model = models.build("resnet9", num_classes=3, input_shape=(8, 8, 1), norm=norm)
    params, state = jax.tree.map(
        lambda x: jnp.full(x.shape, 0.1, x.dtype), jax.eval_shape(model.init, KEY)
    )
    inputs = jax.random.normal(KEY, (7, 8, 8, 1))
    rows = jnp.arange(7, dtype=jnp.int32)
    found = batch_statistics(
        model, lambda x: x, params, state, inputs, Part(rows, jnp.asarray(7), 4)
    )
    layer = params["block1"]["conv"]
    responses = models.conv2d(inputs, layer["kernel"]) + layer["bias"]
    batches = [
        np.asarray(batch, np.float64).reshape(-1, 64) for batch in (responses[:4], responses[4:])
    ]
    first = found["block1"]["norm"]
    np.testing.assert_allclose(
        first["mean"], np.mean([batch.mean(0) for batch in batches], 0), rtol=1e-4
    )
    np.testing.assert_allclose(
        first["var"], np.mean([batch.var(0, ddof=1) for batch in batches], 0), rtol=1e-4
    )
    weights = {0.01} if norm == "bn" else {1.0}
    assert set(jax.tree.leaves(model.batch_weights())) == weights


def test_batches_of_two_sizes_count_equally():
    """(FL)^2: the server's examples, class by class, in batches of their own."""
    model = one_channel()
    params, state = model.init(KEY)
    values = jnp.asarray([0.0, 1.0, 2.0, 3.0, 10.0, 12.0])[:, None]
    parts = [
        Part(jnp.asarray(rows), jnp.asarray(len(rows)), len(rows))
        for rows in ([0, 1], [2, 3, 4, 5])
    ]
    found = jax.jit(lambda: batch_statistics(model, lambda x: x, params, state, values, *parts))()
    np.testing.assert_allclose(found["mean"], [(0.5 + 6.75) / 2], rtol=1e-6)
    np.testing.assert_allclose(
        found["var"], [(0.5 + np.var([2, 3, 10, 12], ddof=1)) / 2], rtol=1e-6
    )


@pytest.mark.thorough
def test_the_servers_batches_are_in_the_order_of_classes():
    data = toy.weak_federation("server")
    data = toy.changed(data, inputs=np.arange(data.inputs.size).reshape(data.inputs.shape) % 97)
    model = one_channel()
    params, start = model.init(KEY)
    state = ServerState((), {"model": params}, start, (), {}, (), ())
    setup = toy.setup(data, model=model)._replace(normalize=lambda x: x[:, :1])
    found = with_static_batch_norm(Recipe(setup, ()), batch_size=100, server_batch_size=3)
    mean = found.init(state, data).model_state["mean"]
    first = np.asarray(data.inputs)[:, 0]
    server = np.asarray(data.server_index)
    by_class = server[np.argsort(np.asarray(data.labels)[server], kind="stable")]
    means = [first[batch].mean() for batch in (*np.split(by_class, 3), np.arange(sum(toy.SIZES)))]
    np.testing.assert_allclose(mean, [np.mean(means)], rtol=1e-6)


def client_with(confident: list[bool], size: int = 9) -> Client:
    """A client of the first `len(confident)` examples, the rest is padding."""
    sure = jnp.asarray(confident + [True] * (size - len(confident)))
    rows = jnp.arange(size, dtype=jnp.int32)
    zero = jnp.zeros((), jnp.int32)
    sent = {CONFIDENT: ConfidentLabels(0 * rows, sure, jnp.ones(size))}
    return Client(zero, rows, 0 * rows - 1, zero, jnp.int32(len(confident)), sent, ())


@pytest.mark.thorough
def test_every_epoch_goes_once_through_the_confident_examples():
    """Check 9: padding changes nothing; partners are drawn anew from all of the client's
    examples.
    """
    draw = jax.jit(confident_epochs(batch_size=2, local_epochs=3).schedule)
    confident = [True, False, True, True, False, True, True]
    schedule, wider = (draw(KEY, client_with(confident, size), toy.NOW) for size in (9, 12))
    assert int(schedule.num_steps) == 9
    used = slice(0, 9)
    mask = np.asarray(schedule.masks["fix"])[used]
    fix = np.asarray(schedule.positions["fix"])[used]
    for steps in (slice(0, 3), slice(3, 6), slice(6, 9)):
        assert sorted(fix[steps][mask[steps]]) == [0, 2, 3, 5, 6]
    assert (fix[:3] != fix[3:6]).any()
    partners = np.asarray(schedule.positions["mix"])[used][mask]
    assert partners.min() >= 0 and partners.max() < 7 and {1, 4} & set(partners.tolist())
    assert not np.asarray(schedule.masks["fix"])[9:].any()
    for name in ("fix", "mix"):
        kept = np.asarray(wider.masks[name])[used]
        np.testing.assert_array_equal(kept, mask)
        found, expected = (np.asarray(one.positions[name])[used] for one in (wider, schedule))
        np.testing.assert_array_equal(found[kept], expected[mask])
    assert int(draw(KEY, client_with([False] * 7), toy.NOW).num_steps) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("other", "settings"),
    [("fedavg", {"mix_weight": 0.0, "threshold": 0.0}), ("single", {"threshold": 1.0})],
)
def test_limits(other: str, settings: dict):
    """Check 8: all labels and no mixing are federated averaging; where nobody is confident the
    server trains alone, and also the momentum stays. Whole clients are one batch, so that no
    order of examples is left.
    """
    everything = {"labelled": toy.SIZES, "server": 0} if other == "fedavg" else {}
    data = toy.weak_federation("server", **everything)
    run = toy.setup(
        data,
        model=toy.linear_model(),
        batch_size=max(toy.SIZES),
        federated_optimizer=federated.fedopt(optax.sgd(1.0, 0.5)),
    )
    mine, (info,) = toy.train(methods.build("semifl", run, **settings), KEY, data, 1)
    plain, (expected,) = toy.train(methods.build(other, run), KEY, data, 1)
    chex.assert_trees_all_close(mine.params, plain.params, rtol=1e-5, atol=1e-6)
    assert info["local_steps"] == expected["local_steps"] > 0
    if other == "single":
        assert info["pseudo_label_coverage"] == 0 and info["server_loss"] > 0
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(mine.optimizer))


@pytest.mark.thorough
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    ("name", "views"), [("semifl", ("strong", "weak")), ("fedmt", ("strong", "weak", "weak"))]
)
def test_separate_passes_are_those_of_each_view_by_hand(name, views, separate):
    """One step with batch norm on one batch of labels 0. An augmented batch is always the same,
    and so is a mixture of two.
    """
    data = toy.federation(sizes=(8,), labelled=(8,))
    data = toy.changed(data, observed=np.where(data.observed >= 0, 0, -1))
    normal = np.random.default_rng(8).normal(size=(2, 8, toy.NUM_FEATURES)).astype(np.float32)
    seen = {"weak": jnp.asarray(normal[0]), "strong": jnp.asarray(3.0 - normal[1])}
    augment, strong_augment = (
        lambda key, inputs, batch=seen[kind]: jnp.broadcast_to(batch[: len(inputs)], inputs.shape)
        for kind in ("weak", "strong")
    )
    run = toy.setup(
        data,
        model_options={"norm": "bn"},
        augment=augment,
        strong_augment=strong_augment,
        batch_size=8,
        local_epochs=1,
    )

    def loss(params, state):
        inputs = [seen[view] for view in views]
        batches = inputs if separate else [jnp.concatenate(inputs)]
        scores = [run.model.apply(params, state, batch, train=True)[0].logits for batch in batches]
        return -sum(jnp.sum(jax.nn.log_softmax(one)[:, 0]) for one in scores) / 8

    method = methods.build(name, run, static_batch_norm=False, separate_passes=separate)
    (start, end), (info,) = toy.every_state(method, KEY, data, 1)
    assert info["local_steps"] == 1
    step = jax.jit(jax.grad(loss))(start.params["model"], start.model_state)
    expected = jax.tree.map(lambda w, g: w - 0.1 * g, start.params["model"], step)
    chex.assert_trees_all_close(end.params["model"], expected, rtol=1e-4, atol=1e-5)
