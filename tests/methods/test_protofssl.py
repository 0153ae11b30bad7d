"""ProtoFSSL: whole rounds against a plain loop, helpers and bank over rounds, options, edge
cases.
"""

import dataclasses
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.protofssl import ProtoFSSL, episodes, query_loss
from fedjax_ssl.objectives import class_prototypes
from tests import toy

KEY = jax.random.key(3)
RATE = 0.05
WIDTH = 3
TERM = "protofssl"


def embedding_model() -> models.Model:
    """z = x W, without class scores."""

    def init(key: jax.Array) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        rng = np.random.default_rng(7)
        return {
            "w": jnp.asarray(rng.normal(size=(toy.NUM_FEATURES, WIDTH)), jnp.result_type(float))
        }, {}

    def apply(params, state, inputs, *, train, key=None, mask=None):
        features = inputs @ params["w"]
        return models.Outputs(
            jnp.zeros((inputs.shape[0], 0), features.dtype), features, None
        ), state

    return models.Model(init, apply, has_class_scores=False)


def build(data, *, run: dict[str, Any] | None = None, **options: Any):
    setup = toy.setup(
        data,
        **{"model": embedding_model(), "learning_rate": RATE, "local_epochs": 3, **(run or {})},
    )
    return methods.build("protofssl", setup, **{"num_unlabelled": 4, **options})


def balanced(sizes=(12, 10, 9), labelled=(9, 7, 6)):
    return toy.federation(sizes=sizes, labelled=labelled)


def rounds(method, data, number: int, key: jax.Array = KEY):
    """All states, from the start on, and the infos."""
    one_round = jax.jit(method.round)
    states = [jax.jit(method.init)(key, data)]
    infos = []
    for _ in range(number):
        state, info = one_round(key, states[-1], data)
        states.append(state)
        infos.append(toy.numbers(info))
    return states, infos


@pytest.fixture(scope="module")
def plain():
    """Three rounds with the defaults: (data, method, states, infos)."""
    data = balanced()
    method = build(data)
    return data, method, *rounds(method, data, 3)


@jax.jit
def log_probs(z, prototypes):
    """z [n, d], prototypes {class: [d]} -> log p [n, K], mean squared difference; -inf for
    absent classes.
    """
    far = [
        ((z - prototypes[k]) ** 2).mean(1) if k in prototypes else jnp.full(z.shape[0], jnp.inf)
        for k in range(toy.NUM_CLASSES)
    ]
    return jax.nn.log_softmax(-jnp.stack(far, 1))


def means(z, labels) -> dict[int, jax.Array]:
    z = z if isinstance(z, jax.core.Tracer) else np.asarray(z)  # NumPy compiles nothing
    return {int(k): z[np.flatnonzero(labels == k)].mean(0) for k in np.unique(labels)}


def in_order(rows) -> np.ndarray:
    """Classes of rows that come class after class, each as often."""
    return np.repeat(np.arange(toy.NUM_CLASSES), len(rows) // toy.NUM_CLASSES)


class Oracle:
    """One client after another, one step after another, in NumPy's words; batches are those of
    the sampler.
    """

    def __init__(self, data, weight: float, shared: bool):
        self.data = data
        self.weight = weight
        self.shared = shared
        self.w = embedding_model().init(KEY)[0]["w"]
        self.bank: list[list[dict[int, jax.Array]]] = []
        self.slope = jax.jit(jax.value_and_grad(self.loss))

    def client(self, client: int, number: int):
        data = self.data
        everyone = federated.all_clients(data)
        one = jax.tree.map(lambda x: x[client], everyone)
        helpers = self.bank[-1] if self.bank else []
        learns = bool(number > 0 and helpers and self.weight)
        run = toy.setup(data, local_epochs=3)
        settings = ProtoFSSL(num_unlabelled=4)
        sampler = episodes(run, settings, lambda now: jnp.asarray(learns))
        key = jax.random.fold_in(
            named_key(jax.random.fold_in(named_key(KEY, "round"), number), "client"), client
        )
        schedule = jax.tree.map(
            np.asarray, sampler.schedule(named_key(key, "batches"), one, toy.NOW)
        )
        w = self.w
        losses = []
        truth = np.asarray(data.labels)
        for step in range(3):
            rows = {
                name: np.asarray(one.rows)[
                    schedule.positions[name][step][schedule.masks[name][step]]
                ]
                for name in schedule.masks
            }
            # every class has enough labels, so that classes are in order
            for stream in ("support", "query"):
                np.testing.assert_array_equal(truth[rows[stream]], in_order(rows[stream]))
            value, slope = self.slope(
                w, {name: data.inputs[found] for name, found in rows.items()}, helpers
            )
            losses.append(float(value))
            w = w - RATE * slope
        mine = np.asarray(one.rows)[: int(one.num_labelled)]
        return w, losses, means(data.inputs[mine] @ w, truth[mine])

    def loss(self, w, x, helpers):
        local = means(x["support"] @ w, in_order(x["support"]))
        queries = x["query"]
        targets = in_order(queries)
        if self.shared and helpers:
            local = {
                k: jnp.stack([own[k] for own in helpers]).mean(0) for k in range(toy.NUM_CLASSES)
            }
            queries = jnp.concatenate([x["support"], queries])
            targets = np.concatenate([in_order(x["support"]), targets])
        supervised = -log_probs(queries @ w, local)[np.arange(len(queries)), targets].mean()
        if not len(x["unlabelled"]):
            return supervised
        z = x["unlabelled"] @ w
        averaged = jnp.stack([jnp.exp(log_probs(z, own)) for own in helpers]).mean(0)
        targets = averaged**2 / (averaged**2).sum(1, keepdims=True)
        clipped = jnp.clip(jnp.exp(log_probs(z, local)), 1e-7, 1 - 1e-7)
        return supervised + self.weight * -(targets * jnp.log(clipped)).sum(1).mean()

    def round(self, number: int) -> float:
        trained = [self.client(client, number) for client in range(self.data.num_clients)]
        self.w = jnp.stack([w for w, _, _ in trained]).mean(0)
        self.bank.append([prototypes for _, _, prototypes in trained])
        return float(np.mean([losses for _, losses, _ in trained]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "source",
    ["local_support", "global"],
)
def test_three_rounds_follow_the_formulas(float64, source: str) -> None:
    """Episodes, both losses, what is uploaded, and who helps with it in the next round."""
    data = toy.federation(sizes=(15, 15), labelled=(9, 9))
    method = build(data, proto_source=source)
    oracle = Oracle(data, 0.3, source == "global")
    states, infos = rounds(method, data, 3)
    for number, (state, info) in enumerate(zip(states[1:], infos, strict=True)):
        assert info["loss"] == pytest.approx(oracle.round(number), rel=1e-9)
        np.testing.assert_allclose(state.params["model"]["w"], oracle.w, rtol=1e-8)
        bank = state.terms[TERM].bank.sets
        for client, prototypes in enumerate(oracle.bank[-1]):
            for k, centre in prototypes.items():
                np.testing.assert_allclose(bank.centers[0, client, k], centre, rtol=1e-8)
    # Predictions: probabilities averaged over the sets of two rounds, under the averaged network.
    z = data.inputs @ oracle.w
    sets = [own for uploads in oracle.bank[-2:] for own in uploads]
    expected = jnp.stack([jnp.exp(log_probs(z, own)) for own in sets]).mean(0)
    found = jax.jit(method.predict)(states[-1], data.inputs)
    np.testing.assert_allclose(jnp.exp(found), expected, rtol=1e-7)


@pytest.mark.thorough
def test_before_the_first_round_predictions_are_uniform(plain) -> None:
    data, method, states, _ = plain
    found = jax.jit(method.predict)(states[0], data.inputs)
    np.testing.assert_allclose(found, -np.log(3.0), rtol=1e-6)


@pytest.mark.thorough
def test_without_weight_it_is_a_supervised_prototypical_network() -> None:
    """As if the unlabelled loss never began; nothing is sent down, and there are no
    pseudo-labels.
    """
    data = balanced()
    never, infos = rounds(build(data, unlabelled_weight=0.0), data, 3)
    later, others = rounds(build(data, unlabel_round=9), data, 3)
    for one, other in zip(never[1:], later[1:], strict=True):
        chex.assert_trees_all_close(one.params, other.params, rtol=1e-6)
    assert [info["examples"] for info in infos] == [info["examples"] for info in others]
    model = 4 * toy.NUM_FEATURES * WIDTH
    assert {info["bytes_down"] for info in infos + others} == {3 * model}
    assert "pseudo_label_accuracy" not in infos[-1]


@pytest.mark.thorough
def test_examples_count_queries_support_and_unlabelled_ones() -> None:
    """E (K (n_S + n_Q) + n_U) per client, and what they cost.

    With 10^9 operations per example, GFLOP are examples.
    """
    data = toy.federation(sizes=(18, 18), labelled=(9, 9))
    counted = {"model": embedding_model()._replace(forward_operations=lambda: 10**9)}
    _, infos = rounds(build(data, run=counted), data, 2)
    assert [info["examples"] for info in infos] == [2 * 3 * 9, 2 * 3 * 13]
    for info, rows in zip(infos, (27, 39), strict=True):
        assert (info["as_run_forward_gflop"], info["as_run_gflop"]) == (rows + 9, 3 * rows + 9)
        assert info["analytic_gflop"] == pytest.approx(18 + 9 + WIDTH * 5 * 3 * 9 / 1e9)
        assert info["analytic_megabytes"] == pytest.approx(
            4 * WIDTH * (2 * toy.NUM_FEATURES + 6 * 3) / 1e6
        )
    _, infos = rounds(build(data), data, 1)
    assert "as_run_gflop" not in infos[0]


@pytest.mark.thorough
def test_bytes_are_those_of_model_and_prototypes() -> None:
    """2 Theta + C (1 + H) K per client, here with 3 helpers and one class that a client does not
    have.
    """
    data = toy.federation(sizes=(12, 10, 9), labelled=(9, 7, 2))
    _, infos = rounds(build(data), data, 2)
    model = 4 * toy.NUM_FEATURES * WIDTH
    prototype = 4 * WIDTH
    assert [info["bytes_up"] for info in infos] == [3 * model + 8 * prototype] * 2
    assert [info["bytes_down"] for info in infos] == [3 * model, 3 * model + 3 * 9 * prototype]


@pytest.mark.thorough
def test_fewer_helpers_are_drawn_anew_in_every_round() -> None:
    data = toy.federation(sizes=(9,) * 6, labelled=(6,) * 6)
    states, _ = rounds(build(data, num_helpers=2), data, 5)
    seen = set()
    for before, after in itertools.pairwise(states[1:]):
        uploads = before.terms[TERM].bank.sets.centers[0]
        helpers = after.terms[TERM].helpers
        assert helpers.centers.shape == (2, 3, WIDTH) and bool(helpers.present.all())
        chosen = [
            int(np.flatnonzero([np.array_equal(own, upload) for upload in uploads])[0])
            for own in helpers.centers
        ]
        assert len(set(chosen)) == 2
        seen.add(tuple(chosen))
    assert len(seen) > 1  # all four draws equal: probability below 0.001


@pytest.mark.thorough
def test_a_longer_interval_keeps_helpers() -> None:
    """Chosen in rounds 1, 3, 5, ...: where (r - 1) mod 2 = 0."""
    data = balanced()
    states, infos = rounds(build(data, helper_interval=2), data, 4)
    helpers = [state.terms[TERM].helpers for state in states[1:]]
    assert not bool(helpers[0].present.any()) and np.isnan(infos[0]["pseudo_label_accuracy"])
    chex.assert_trees_all_equal(helpers[1], helpers[2])
    assert not np.array_equal(helpers[2].centers, helpers[3].centers)


@pytest.mark.thorough
def test_prototypes_of_more_rounds_help() -> None:
    data = balanced()
    states, _ = rounds(build(data, keep_proto_rounds=2, num_helpers=6), data, 3)
    bank = states[2].terms[TERM].bank.sets
    helpers = states[3].terms[TERM].helpers
    assert bank.centers.shape == (3, 3, 3, WIDTH)
    np.testing.assert_array_equal(helpers.centers, bank.centers[:2].reshape(6, 3, WIDTH))


@pytest.mark.thorough
def test_noise_is_added_to_what_is_shared_and_to_nothing_else(plain) -> None:
    data, _, states, _ = plain
    without = states[1]
    with_noise = rounds(build(data, proto_noise_std=0.5), data, 1)[0][-1]
    chex.assert_trees_all_equal(without.params, with_noise.params)  # round 0 has no helpers
    difference = (
        with_noise.terms[TERM].bank.sets.centers[0] - without.terms[TERM].bank.sets.centers[0]
    )
    assert 0.3 < float(jnp.std(difference)) < 0.7  # 27 draws, standard deviation of it 0.07
    assert len(np.unique(np.round(difference, 6))) == difference.size


@pytest.mark.thorough
def test_a_client_whose_prototypes_alone_are_not_finite_is_dropped_and_counted() -> None:
    """As if it had not been there: neither in the average nor in the bank."""

    def apply(params, state, inputs, *, train, key=None, mask=None):
        outputs, state = embedding_model().apply(params, state, inputs, train=train)
        bad = (inputs[:, :1] > 100) & (not train)
        return outputs._replace(features=jnp.where(bad, jnp.nan, outputs.features)), state

    data = balanced()
    absent = balanced(labelled=(0, 7, 6))
    method = build(data, run={"model": embedding_model()._replace(apply=apply)})
    inputs = np.array(data.inputs)
    inputs[np.asarray(data.index[0, :9]), 0] = 1000.0
    one_round = jax.jit(method.round)
    state, info = one_round(
        KEY, method.init(KEY, data), dataclasses.replace(data, inputs=jnp.asarray(inputs))
    )
    expected, _ = one_round(KEY, method.init(KEY, absent), absent)
    assert info["dropped_clients"] == 1
    chex.assert_trees_all_equal(state.params, expected.params)
    present = np.asarray(state.terms[TERM].bank.sets.present[0]).any(axis=1)
    assert sorted(np.asarray(state.terms[TERM].bank.owner[0])[present]) == [1, 2]


def test_labels_that_an_episode_misses_are_said_before_training() -> None:
    data = toy.federation(sizes=(18, 18, 18), labelled=(9, 5, 0))
    method = build(data)
    assert method.recipe.check is not None
    without, fewer = method.recipe.check(data)
    assert without.startswith("1 of 3 clients have no class labels")
    assert (
        "asks for 3 labels" in fewer
        and "of 6 classes at clients with labels, 3 have fewer" in fewer
    )
    assert "0 have none" in fewer and "1 a single one" in fewer
    assert method.recipe.check(toy.federation(sizes=(18, 18), labelled=(9, 9))) == []
    lacking = toy.federation(sizes=(18, 18), labelled=(9, 2))
    for settings, said in (
        ({}, "(probability 0 there; absent_classes='stop' holds pseudo-labels fixed"),
        (
            {"absent_classes": "flow"},
            "(probability 0 there; absent_classes='flow' drives embeddings off them",
        ),
        ({"unlabelled_weight": 0.0}, "(probability 0 there) and"),
    ):
        check = build(lacking, **settings).recipe.check
        assert check is not None and said in check(lacking)[0]
    single = toy.federation(sizes=(18, 18), labelled=(3, 3))
    with pytest.raises(ValueError, match=r"no client has two labels of one class.*client 3 labels"):
        method.recipe.check(single)
    towards_helpers = build(single, proto_source="global")
    assert "6 a single one" in towards_helpers.recipe.check(single)[0]


@pytest.mark.thorough
def test_clients_without_labels_train_only_towards_global_prototypes() -> None:
    data = toy.federation(sizes=(9, 9, 9), labelled=(6, 0, 6))
    _, infos = rounds(build(data), data, 2)
    assert [info["clients"] for info in infos] == [2.0, 2.0]
    states, infos = rounds(build(data, proto_source="global"), data, 2)
    assert [info["local_steps"] for info in infos] == [6.0, 9.0]
    assert not bool(states[-1].terms[TERM].bank.sets.present[0, 1].any())
    chex.assert_tree_all_finite(states[-1])


@pytest.mark.thorough
def test_a_client_without_unlabelled_examples_learns_from_its_labels() -> None:
    data = toy.federation(sizes=(9, 6), labelled=(6, 6))
    states, infos = rounds(build(data), data, 3)
    chex.assert_tree_all_finite(states[-1])
    assert infos[1]["examples"] == 2 * 3 * 6 + 3 * 3


@pytest.mark.thorough
def test_unlabelled_examples_do_not_enter_batch_statistics_before_they_are_used() -> None:
    """Statistics mix what is in the batch, and in round 0 that is labelled examples alone."""
    data = balanced()
    changed = jnp.zeros(data.labels.shape, bool).at[data.index[0, 9:12]].set(True)
    other = dataclasses.replace(
        data, inputs=jnp.where(changed[:, None], data.inputs + 5.0, data.inputs)
    )
    run = toy.setup(data, model="mlp", model_options={"norm": "bn"}, local_epochs=2)
    method = methods.build("protofssl", run, num_unlabelled=4)
    one_round = jax.jit(method.round)
    results = []
    for federation in (data, other):
        first, _ = one_round(KEY, method.init(KEY, federation), federation)
        second, _ = one_round(KEY, first, federation)
        results.append((first, second))
    chex.assert_trees_all_equal(results[0][0].model_state, results[1][0].model_state)
    assert not np.allclose(*(second.model_state["norm1"]["mean"] for _, second in results))


@pytest.mark.thorough
def test_the_loss_of_a_fresh_resnet8_is_the_logarithm_of_the_number_of_classes() -> None:
    """Distances of 0.002 to 0.012, so that the loss starts near ln 10."""
    model = models.build("resnet8", num_classes=10, input_shape=(32, 32, 3), lowering="lax")
    blocks = np.random.default_rng(0).uniform(size=(30, 8, 8, 3)).astype(np.float32)
    images = jnp.asarray(blocks.repeat(4, 1).repeat(4, 2))
    params, _ = jax.jit(model.init)(jax.random.key(0))
    z = jax.jit(lambda p, x: model.apply(p, {}, x, train=True)[0].features)(params, images)
    labels = jnp.arange(30, dtype=jnp.int32) % 10
    centers, present = class_prototypes(z[:10], labels[:10], 10)
    assert float(query_loss(z[10:], labels[10:], centers, present, ProtoFSSL())) == pytest.approx(
        np.log(10), abs=0.01
    )
