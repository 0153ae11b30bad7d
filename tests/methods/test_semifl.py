"""SemiFL: numbers of the specification's checks, limits and edge cases."""

import dataclasses
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Client, Recipe, ServerState, build
from fedjax_ssl.federated.contract import Metrics
from fedjax_ssl.methods.parts.confident_pseudo_labels import (
    CONFIDENT,
    ConfidentLabels,
    above,
    confident_epochs,
    confident_term,
    mix_term,
)
from fedjax_ssl.methods.parts.static_batch_norm import (
    Part,
    batch_statistics,
    with_static_batch_norm,
)
from tests import toy


def key() -> jax.Array:
    return jax.random.key(3)


# Whole clients are one batch, so that no order of examples is left.
CHANGES = {
    "batch_size": max(toy.SIZES),
    "federated_optimizer": federated.fedopt(optax.sgd(1.0, 0.5)),
}


def one_round(data: FederatedData, name: str) -> tuple[ServerState, ServerState, Metrics]:
    """State before and after the first round of a method with a linear model, and its info."""
    method = methods.build(name, toy.setup(data, model=toy.linear_model(), **CHANGES))
    start = jax.jit(method.init)(key(), data)
    end, info = jax.jit(method.round)(key(), start, data)
    return start, end, info


@pytest.fixture(scope="module")
def semifl_round() -> Callable[..., tuple[ServerState, ServerState, Metrics]]:
    """As `one_round`; settings are arguments of one program. The strong view is the inputs
    themselves.
    """
    model = toy.linear_model()

    @jax.jit
    def train(
        data: FederatedData, settings: dict[str, jax.Array]
    ) -> tuple[ServerState, ServerState, Metrics]:
        run = toy.setup(data, model=model, **CHANGES)._replace(strong_augment=toy.same)
        method = methods.build("semifl", run, **settings)
        start = method.init(key(), data)
        return start, *method.round(key(), start, data)

    def call(data: FederatedData, **changed: float) -> tuple[ServerState, ServerState, Metrics]:
        settings = {"threshold": 0.95, "mix_weight": 1.0, **changed}
        return train(data, {name: jnp.asarray(value) for name, value in settings.items()})

    return call


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
    params, state = model.init(key())
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
        lambda x: jnp.full(x.shape, 0.1, x.dtype), jax.eval_shape(model.init, key())
    )
    inputs = jax.random.normal(key(), (7, 8, 8, 1))
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


@pytest.mark.thorough
def test_static_batch_norm_is_that_of_the_new_model_and_the_order_of_examples_is_server_first():
    data = toy.weak_federation("server")
    run = toy.setup(data, model="mlp", model_options={"norm": "bn"})
    method = methods.build("single", run, server_epochs=1)
    after, _ = jax.jit(method.round)(key(), method.init(key(), data), data)
    rows = [np.asarray(data.server_index)]
    rows += [
        np.asarray(data.index[c, :size]) for c, size in enumerate(np.asarray(data.num_examples))
    ]
    rows = jnp.asarray(np.concatenate(rows))
    expected = batch_statistics(
        run.model,
        run.normalize,
        after.params["model"],
        after.model_state,
        data.inputs,
        Part(rows, rows.size, 250),
    )
    chex.assert_trees_all_close(after.model_state, expected, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_equal_shapes_and_dtypes(
        after.model_state, method.init(key(), data).model_state
    )


def test_batches_of_two_sizes_count_equally():
    """(FL)^2: the server's examples, class by class, in batches of their own."""
    model = one_channel()
    params, state = model.init(key())
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
    params, start = model.init(key())
    state = ServerState((), {"model": params}, start, (), {}, (), ())
    setup = toy.setup(data, model=model)._replace(normalize=lambda x: x[:, :1])
    found = with_static_batch_norm(Recipe(setup, ()), batch_size=100, server_batch_size=3)
    mean = found.init(state, data).model_state["mean"]
    first = np.asarray(data.inputs)[:, 0]
    server = np.asarray(data.server_index)
    by_class = server[np.argsort(np.asarray(data.labels)[server], kind="stable")]
    means = [first[batch].mean() for batch in (*np.split(by_class, 3), np.arange(sum(toy.SIZES)))]
    np.testing.assert_allclose(mean, [np.mean(means)], rtol=1e-6)


def test_without_batch_norm_static_statistics_cost_nothing():
    data = toy.weak_federation("server")
    recipe = methods.recipe("single", toy.setup(data))
    wrapped = with_static_batch_norm(recipe)
    chex.assert_trees_all_equal(build(wrapped).init(key(), data), build(recipe).init(key(), data))


def client_with(confident: list[bool], size: int = 9) -> Client:
    """A client of the first `len(confident)` examples, the rest is padding."""
    padding = size - len(confident)
    sure = jnp.asarray(confident + [True] * padding)
    labels = jnp.zeros(size, jnp.int32)
    index = jnp.arange(size, dtype=jnp.int32)
    count = jnp.asarray(len(confident))
    nothing = jnp.zeros((), jnp.int32)
    sent = {CONFIDENT: ConfidentLabels(labels, sure, jnp.ones(size))}
    return Client(nothing, index, labels - 1, nothing, count.astype(jnp.int32), sent, ())


@pytest.mark.thorough
def test_every_epoch_goes_once_through_the_confident_examples():
    """Check 9: padding changes nothing; partners are drawn anew from all of the client's
    examples.
    """
    sampler = confident_epochs(batch_size=2, local_epochs=3)
    confident = [True, False, True, True, False, True, True]
    schedule = jax.jit(sampler.schedule)(key(), client_with(confident), toy.NOW)
    assert int(schedule.num_steps) == 9
    fix = np.asarray(schedule.positions["fix"])[:9]
    mask = np.asarray(schedule.masks["fix"])[:9]
    epochs = [sorted(fix[at : at + 3][mask[at : at + 3]]) for at in (0, 3, 6)]
    assert epochs == [[0, 2, 3, 5, 6]] * 3
    assert (fix[:3] != fix[3:6]).any()
    partners = np.asarray(schedule.positions["mix"])[:9][mask]
    assert partners.min() >= 0 and partners.max() < 7 and {1, 4} & set(partners.tolist())
    assert not np.asarray(schedule.masks["fix"])[9:].any()
    wider = jax.jit(sampler.schedule)(key(), client_with(confident, size=12), toy.NOW)
    for name in ("fix", "mix"):
        kept = wider.masks[name][:9]
        np.testing.assert_array_equal(kept, mask)
        np.testing.assert_array_equal(
            wider.positions[name][:9][kept], schedule.positions[name][:9][mask]
        )
    assert int(jax.jit(sampler.schedule)(key(), client_with([False] * 7), toy.NOW).num_steps) == 0


@pytest.mark.thorough
def test_all_labels_full_batches_and_no_mixing_are_federated_averaging(semifl_round):
    """Check 8, first limit."""
    data = toy.weak_federation("server", labelled=toy.SIZES)
    data = dataclasses.replace(data, num_server=jnp.zeros_like(data.num_server))
    _, mine, info = semifl_round(data, mix_weight=0.0, threshold=0.0)
    _, plain, expected = one_round(data, "fedavg")
    chex.assert_trees_all_close(mine.params, plain.params, rtol=1e-5, atol=1e-6)
    assert info["local_steps"] == expected["local_steps"] > 0


@pytest.mark.thorough
def test_nobody_confident_leaves_training_at_the_server(semifl_round):
    """Check 8, second limit: also the momentum stays as it is."""
    data = toy.weak_federation("server")
    start, mine, info = semifl_round(data, threshold=1.0)
    _, alone, expected = one_round(data, "single")
    chex.assert_trees_all_close(mine.params, alone.params, rtol=1e-6, atol=1e-7)
    chex.assert_trees_all_equal(mine.optimizer, start.optimizer)
    assert info["local_steps"] == expected["local_steps"], "the server's alone"
    assert info["pseudo_label_coverage"] == 0 and info["server_loss"] > 0
    assert float(optax.tree.norm(optax.tree.sub(mine.params, start.params))) > 1e-3


@pytest.mark.thorough
def test_inputs_and_targets_are_mixed_in_the_same_share():
    """Check 5 in a run: confident examples are 1 and of class 0, the others are 0 and taken for
    class 2.
    """
    data = toy.federation()
    seen = data.observed >= 0
    data = dataclasses.replace(
        data,
        inputs=jnp.broadcast_to(seen.astype(data.inputs.dtype)[:, None], data.inputs.shape),
        observed=jnp.where(seen, 0, -1),
    )
    run = toy.setup(data, model=toy.linear_model(), learning_rate=0.0)
    term = mix_term(run, 1.0, 0.75)
    logits = jnp.asarray([0.5, -0.5, 1.0])
    ours, theirs = (float(-jax.nn.log_softmax(logits)[label]) for label in (0, 2))
    np.testing.assert_allclose(0.3 * ours + 0.7 * theirs, 0.7541306053, rtol=1e-6)

    def difference(step):
        rows = step.streams["fix"].mask
        scores = jnp.broadcast_to(logits, (rows.size, toy.NUM_CLASSES))
        loss = term.loss(step._replace(outputs={"mix": models.Outputs(scores, scores, None)}))
        share = jnp.mean(step.inputs["mix"][:, 0], where=rows)  # of class 0 in the targets
        return jnp.abs(loss - (share * ours + (1.0 - share) * theirs))

    terms = (confident_term(run, above(1.1)), term._replace(loss=difference))
    method = federated.build(
        federated.Recipe(run, (federated.Stage(federated.Training(terms, confident_epochs(4, 2))),))
    )
    start = jax.jit(method.init)(key(), data)
    third = {"w": jnp.zeros_like(start.params["model"]["w"]), "b": jnp.asarray([0.0, 0.0, 5.0])}
    _, info = jax.jit(method.round)(key(), start._replace(params={"model": third}), data)
    assert info["local_steps"] > 5 and info["loss"] < 1e-6


NORMAL = np.random.default_rng(8).normal(size=(2, 8, toy.NUM_FEATURES)).astype(np.float32)
SEEN = {"weak": jnp.asarray(NORMAL[0]), "strong": jnp.asarray(3.0 - NORMAL[1])}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "views", "norms"),
    [
        ("semifl", ("strong", "weak"), ("bn", "none")),
        pytest.param("fedmt", ("strong", "weak", "weak"), ("bn",), marks=pytest.mark.thorough),
    ],
)
def test_separate_passes_are_those_of_each_view_by_hand(name, views, norms):
    """One step on one batch of labels 0. An augmented batch is always the same, and so is a
    mixture of two.
    """
    data = toy.federation(sizes=(8,), labelled=(8,))
    data = dataclasses.replace(data, observed=jnp.where(data.observed >= 0, 0, -1))
    always = {
        kind: lambda key, inputs, seen=seen: jnp.broadcast_to(seen[: len(inputs)], inputs.shape)
        for kind, seen in SEEN.items()
    }
    moved = {}
    for norm in norms:
        run = toy.setup(
            data, model_options={"norm": norm}, augment=always["weak"], batch_size=8, local_epochs=1
        )
        run = run._replace(strong_augment=always["strong"])

        def loss(params, state, separate, run=run):
            inputs = [SEEN[view] for view in views]
            batches = inputs if separate else [jnp.concatenate(inputs)]
            scores = [
                run.model.apply(params, state, batch, train=True)[0].logits for batch in batches
            ]
            return -sum(jnp.sum(jax.nn.log_softmax(one)[:, 0]) for one in scores) / 8

        slope = jax.jit(jax.grad(loss), static_argnums=2)
        for separate in (False, True):
            method = methods.build(name, run, static_batch_norm=False, separate_passes=separate)
            start = method.init(key(), data)
            end, info = jax.jit(method.round)(key(), start, data)
            assert info["local_steps"] == 1
            step = slope(start.params["model"], start.model_state, separate)
            expected = jax.tree.map(lambda w, g: w - 0.1 * g, start.params["model"], step)
            chex.assert_trees_all_close(end.params["model"], expected, rtol=1e-4, atol=1e-5)
            moved[norm, separate] = end.params
    differences = {
        norm: optax.tree.norm(optax.tree.sub(moved[norm, True], moved[norm, False]))
        for norm in norms
    }
    assert differences["bn"] > 1e-2 and differences.get("none", 0.0) < 1e-5
