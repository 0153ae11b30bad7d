"""What the engine makes of terms: forward passes, parameter groups, stages, averaging, messages
to and from clients.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import methods
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import (
    AtClient,
    AtServer,
    Broadcast,
    ParameterGroups,
    Recipe,
    Stage,
    Term,
    Training,
    View,
    build,
)
from fedjax_ssl.methods.parts.two_stages import labelled_stage
from fedjax_ssl.models import Model
from fedjax_ssl.objectives import batch_cross_entropy
from tests import toy

KEY = jax.random.key(0)
BATCH = 4
STEPS = 3


def view(name: str, offset: float = 0.0) -> View:
    return View(name, "labelled", lambda key, streams: streams["labelled"].inputs + offset)


def cross_entropy_term(name: str, *views: View, **fields: Any) -> Term:
    def loss(step):
        batch = step.streams["labelled"]
        losses = [
            batch_cross_entropy(step.outputs[v.name].logits, batch.observed, batch.mask)
            for v in views
        ]
        return sum(losses), step.local

    return Term(name, views, loss, **fields)


def one_stage(data, *terms: Term, model: Model | None = None, **options: Any):
    run = toy.setup(data, model=model or toy.linear_model(), **options)
    stage = Stage(Training(terms, toy.in_order("labelled", BATCH, STEPS)), labelled_quota="any")
    return build(Recipe(run, (stage,)))


def counting(model: Model) -> tuple[Model, list[tuple[int, bool]]]:
    """The model and a list of (rows, train) for every time its forward pass is traced."""
    calls: list[tuple[int, bool]] = []

    def apply(params, state, inputs, *, train, key=None, mask=None):
        calls.append((inputs.shape[0], train))
        return model.apply(params, state, inputs, train=train, key=key, mask=mask)

    return Model(model.init, apply), calls


def traced_rows(data, *terms: Term) -> set[tuple[int, bool]]:
    model, calls = counting(toy.linear_model())
    method = one_stage(data, *terms, model=model)
    state = method.init(KEY, data)
    jax.eval_shape(method.round, KEY, state, data)
    return set(calls)


def test_all_views_go_through_one_forward_pass_and_equal_names_share_one() -> None:
    data = toy.federation()
    weak = view("weak")
    strong = view("strong", 1.0)
    assert traced_rows(data, cross_entropy_term("one", weak)) == {(BATCH, True)}
    both = (cross_entropy_term("one", weak), cross_entropy_term("two", weak, strong))
    assert traced_rows(data, *both) == {(2 * BATCH, True)}


def test_every_view_gets_its_own_slice() -> None:
    data = toy.federation()
    seen: dict[str, Any] = {}

    def loss(step):
        seen.update(step.outputs)
        for name, offset in (("weak", 0.0), ("strong", 5.0)):
            expected = (step.streams["labelled"].inputs + offset) @ step.params["w"] + step.params[
                "b"
            ]
            error = jnp.sum((step.outputs[name].logits - expected) ** 2)
            seen[f"{name} error"] = error
        return seen["weak error"] + seen["strong error"], step.local

    method = one_stage(data, Term("check", (view("weak"), view("strong", 5.0)), loss))
    _, infos = toy.train(method, KEY, data, 1)
    assert infos[0]["loss"] == pytest.approx(0.0, abs=1e-8)
    assert seen["weak"].logits.shape == (BATCH, toy.NUM_CLASSES)


def test_weights_of_terms_scale_their_losses() -> None:
    data = toy.federation()
    weak = view("weak")
    double, _ = toy.train(
        one_stage(data, cross_entropy_term("one", weak, weight=2.0)), KEY, data, 1
    )
    terms = cross_entropy_term("one", weak), cross_entropy_term("two", weak)
    twice, _ = toy.train(one_stage(data, *terms), KEY, data, 1)
    chex.assert_trees_all_close(double.params, twice.params, rtol=1e-6)


def test_parameter_groups_move_in_turn_and_only_by_their_own_losses(float64) -> None:
    """FedMatch's decomposition: theta = sigma + psi, sigma moves first, psi sees the new sigma."""
    data = toy.federation()
    rate = 0.2
    weak = view("weak")

    def pull(step):  # 1/2 ||theta - 3||^2, so that its gradient is easy to write down
        return 0.5 * sum(
            jnp.sum((leaf - 3.0) ** 2) for leaf in jax.tree.leaves(step.params)
        ), step.local

    stage = Stage(
        Training(
            (
                cross_entropy_term("labels", weak, group="sigma"),
                Term("pull", (weak,), pull, group="psi"),
            ),
            toy.in_order("labelled", BATCH, STEPS),
        ),
        labelled_quota="any",
    )
    run = toy.setup(data, model=toy.linear_model(), learning_rate=rate)
    method = build(
        Recipe(
            run,
            (stage,),
            ParameterGroups(
                ("sigma", "psi"),
                split=lambda params: {
                    "sigma": params,
                    "psi": jax.tree.map(lambda leaf: 0.2 * leaf, params),
                },
                combine=lambda groups: jax.tree.map(jnp.add, groups["sigma"], groups["psi"]),
            ),
        )
    )
    start = method.init(KEY, data)
    state, _ = toy.run(jax.jit(method.round), KEY, start, data, 1)

    inputs = np.asarray(data.inputs)
    observed = np.asarray(data.observed)
    results = []
    for client, size in enumerate(np.asarray(data.num_examples)):
        sigma, psi = (
            jax.tree.map(np.asarray, dict(start.params[group])) for group in ("sigma", "psi")
        )
        rows_of = np.asarray(data.index)[client]
        for step in range(STEPS):
            rows = rows_of[(step * BATCH + np.arange(BATCH)) % size]
            x = inputs[rows]
            y = observed[rows]
            scores = x @ (sigma["w"] + psi["w"]) + sigma["b"] + psi["b"]
            probs = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
            wrong = (probs - np.eye(3)[np.maximum(y, 0)]) * (y >= 0)[:, None] / BATCH
            sigma = {"w": sigma["w"] - rate * x.T @ wrong, "b": sigma["b"] - rate * wrong.sum(0)}
            psi = {name: psi[name] - rate * (sigma[name] + psi[name] - 3.0) for name in psi}
        results.append({"sigma": sigma, "psi": psi})
    for group in ("sigma", "psi"):
        for name in ("w", "b"):
            mean = np.mean([result[group][name] for result in results], axis=0)
            np.testing.assert_allclose(state.params[group][name], mean, rtol=1e-10, atol=1e-12)


@pytest.mark.thorough
def test_learning_rate_starts_again_in_every_stage() -> None:
    data = toy.federation()
    run = toy.setup(data)._replace(learning_rate=lambda number: jnp.where(number == 0, 0.1, 0.0))
    method = methods.build("network_pseudo_label", run, warmup_rounds=2)
    one_round = jax.jit(method.round)
    state = jax.jit(method.init)(KEY, data)
    moved = []
    accuracies = []
    for _ in range(4):
        after, info = one_round(KEY, state, data)
        moved.append(float(optax.tree.norm(optax.tree.sub(after.params, state.params))) > 0)
        accuracies.append(float(info["pseudo_label_accuracy"]))
        state = after
    assert moved == [True, False, True, False]
    assert np.isnan(accuracies).tolist() == [True, True, False, False]


def test_what_is_predicted_may_be_normalized_otherwise_than_in_training() -> None:
    data = toy.federation()
    same, other = (
        methods.build("fedavg", toy.setup(data, model=toy.linear_model(), normalize_test=test))
        for test in (None, lambda raw: 2.0 * raw)
    )
    state = same.init(jax.random.key(0), data)
    rows = data.inputs[:4]
    np.testing.assert_array_equal(other.predict(state, rows), same.predict(state, 2.0 * rows))
    np.testing.assert_array_equal(other.embed(state, rows), 2.0 * rows)


@pytest.mark.parametrize(
    "weighting",
    ["examples", *(pytest.param(x, marks=pytest.mark.thorough) for x in ("uniform", "labelled"))],
)
def test_a_round_is_the_weighted_mean_of_what_each_client_makes_alone(weighting: str) -> None:
    """Parameters and running batch statistics, of a network with batch normalization."""
    data = toy.federation()
    run = toy.setup(data, model_options={"norm": "bn"}, weighting=weighting)
    method = build(Recipe(run, (labelled_stage(run, None),)))
    one_round = jax.jit(method.round)
    start = jax.jit(method.init)(KEY, data)
    together, info = one_round(KEY, start, data)
    labelled = [client for client in range(6) if toy.LABELLED[client]]
    alone = [one_round(KEY, start, toy.only(data, client))[0] for client in labelled]
    weights = {
        "uniform": np.ones(len(labelled)),
        "examples": np.array([toy.SIZES[client] for client in labelled]),
        "labelled": np.array([toy.LABELLED[client] for client in labelled]),
    }[weighting]
    assert float(info["clients"]) == len(labelled)
    for field in ("params", "model_state"):
        mean = jax.tree.map(
            lambda *leaves: np.average(leaves, axis=0, weights=weights),
            *(getattr(state, field) for state in alone),
        )
        chex.assert_trees_all_close(getattr(together, field), mean, rtol=1e-5, atol=1e-6)
        changed = optax.tree.norm(optax.tree.sub(getattr(together, field), getattr(start, field)))
        assert float(changed) > 1e-3


def messages_term() -> Term:
    """Sends every client its own id and gets back ids, sizes and the mean input; keeps a table
    of all of them.
    """

    def prepare(state, context):
        return Broadcast(own={"id": context.clients.id}, shared={"of": context.number}), state

    def loss(step):
        wrong = (step.sent["id"] != step.client.id) | (step.shared["of"] != step.now.number)
        wrong = wrong.astype(jnp.float32)
        return wrong + 0.0 * sum(
            jnp.sum(leaf) for leaf in jax.tree.leaves(step.params)
        ), step.local + 1.0

    def collect(trained):
        real = jnp.arange(trained.client.rows.shape[0]) < trained.client.num_examples
        rows = trained.inputs[trained.client.rows]
        return {"id": trained.client.id, "mean": jnp.mean(rows, axis=0, where=real[:, None])}

    def server_update(state, outcome):
        means = jnp.where(outcome.context.valid[:, None], outcome.uploads["mean"], -1.0)
        return {
            "mean": state["mean"].at[outcome.uploads["id"]].set(means),
            "steps": outcome.mean_or(state["steps"]),
        }

    return Term(
        "messages",
        (view("weak"),),
        loss,
        server=AtServer(
            init=lambda key, params, state, everyone: {
                "mean": jnp.zeros((everyone.id.shape[0], toy.NUM_FEATURES)),
                "steps": jnp.zeros(()),
            },
            prepare=prepare,
            server_update=server_update,
        ),
        client=AtClient(
            start=lambda state, params, model_state, kept: jnp.zeros(()),
            collect=collect,
            average=lambda trained: trained.local["messages"],
        ),
    )


def test_what_is_sent_and_uploaded_belongs_to_the_client() -> None:
    data = toy.federation()
    method = toy.executed(one_stage(data, messages_term()), placement="chunked", chunk_size=4)
    state, infos = toy.train(method, KEY, data, 1)
    assert infos[0]["loss"] == 0.0
    inputs = np.asarray(data.inputs)
    index = np.asarray(data.index)
    means = [inputs[index[client, :size]].mean(0) for client, size in enumerate(toy.SIZES)]
    np.testing.assert_allclose(state.terms["messages"]["mean"], means, rtol=1e-5)
    assert float(state.terms["messages"]["steps"]) == STEPS  # the local state's mean


def test_a_single_infinite_update_is_dropped() -> None:
    data = toy.federation()
    huge = dataclasses.replace(data, inputs=data.inputs.at[data.index[1, 0]].set(1e30))
    state, infos = toy.train(
        one_stage(data, cross_entropy_term("labels", view("weak"))), KEY, huge, 2
    )
    chex.assert_tree_all_finite(state.params)
    assert [info["dropped_clients"] for info in infos] == [1.0, 1.0]


def test_if_every_update_is_dropped_the_model_stays() -> None:
    data = toy.federation()
    broken = dataclasses.replace(data, inputs=jnp.full_like(data.inputs, jnp.nan))
    method = one_stage(data, cross_entropy_term("labels", view("weak")))
    start = method.init(KEY, data)
    state, infos = toy.run(jax.jit(method.round), KEY, start, broken, 1)
    chex.assert_trees_all_equal(state.params, start.params)
    assert infos[0]["dropped_clients"] == 6.0


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda step: step.outputs["weak"].logits[:, 0], r"returned float32\[4\]; return one fl"),
        (lambda step: jnp.ones((), int), r"returned int32\[\]; return one floating-point number"),
        (lambda step: None, "returned None; return one floating-point number"),
        (lambda step: (0.0, step.local, {}), "returned tuple; return one"),
        (
            lambda step: (0.0, jnp.ones(3)),
            r"returned \(loss, local state\): the local state changed: expected nothing, got fl",
        ),
    ],
)
def test_a_loss_that_cannot_be_differentiated_is_refused_by_the_name_of_its_term(
    returned, message: str
) -> None:
    data = toy.federation()
    method = one_stage(data, Term("mine", (view("weak"),), returned))
    with pytest.raises(ConfigError, match=r"term 'mine' \(.*, line \d+\) " + message):
        jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)


def with_server(stage: Stage, when: tuple[str, ...]) -> Stage:
    return stage._replace(server=stage.clients, when=when)


def twice(stage: Stage) -> Stage:
    return stage.with_terms(*stage.client_terms)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stage: {"weighting": "size"}, "weighting is 'size'.*uniform, examples, labelled"),
        (
            lambda stage: {"stages": (stage, stage)},
            "every stage but the last needs a number of rounds",
        ),
        (lambda stage: {"stages": (twice(stage),)}, "different names"),
        (lambda stage: {"stages": (with_server(stage, ("later",)),)}, "when is 'later'.*before"),
        (lambda stage: {"stages": (with_server(stage, ()),)}, "the server never trains"),
    ],
)
def test_bad_compositions_are_refused(change, message: str) -> None:
    run = toy.setup(toy.federation())
    stage = labelled_stage(run, None)
    changes = change(stage)
    stages = changes.pop("stages", (stage,))
    with pytest.raises(ValueError, match=message):
        build(Recipe(run._replace(**changes), stages))
