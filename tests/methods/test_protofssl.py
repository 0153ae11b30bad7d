"""ProtoFSSL: helpers and bank over rounds, options, costs, edge cases."""

import dataclasses
import itertools
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods, models
from fedjax_ssl.methods.protofssl import ProtoFSSL, query_loss
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


def rounds(data, number: int, **options):
    """All states, from the start on, and the infos."""
    return toy.every_state(build(data, **options), KEY, data, number)


@pytest.mark.thorough
def test_without_weight_it_is_a_supervised_prototypical_network() -> None:
    """As if the unlabelled loss never began; nothing is sent down, and there are no
    pseudo-labels.
    """
    data = balanced()
    never, infos = rounds(data, 3, unlabelled_weight=0.0)
    later, others = rounds(data, 3, unlabel_round=9)
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
    _, infos = rounds(data, 2, run=counted)
    for info, rows in zip(infos, (27, 39), strict=True):
        assert info["examples"] == 2 * rows
        assert (info["as_run_forward_gflop"], info["as_run_gflop"]) == (rows + 9, 3 * rows + 9)
        assert info["analytic_gflop"] == pytest.approx(18 + 9 + WIDTH * 5 * 3 * 9 / 1e9)
        numbers = WIDTH * (2 * toy.NUM_FEATURES + 6 * 3)
        assert info["analytic_megabytes"] == pytest.approx(4 * numbers / 1e6)


@pytest.mark.thorough
def test_bytes_are_those_of_model_and_prototypes() -> None:
    """2 Theta + C (1 + H) K per client, here with 3 helpers and one class that a client does not
    have.
    """
    data = toy.federation(sizes=(12, 10, 9), labelled=(9, 7, 2))
    _, infos = rounds(data, 2)
    model = 3 * 4 * toy.NUM_FEATURES * WIDTH
    prototype = 4 * WIDTH
    assert [info["bytes_up"] for info in infos] == [model + 8 * prototype] * 2
    assert [info["bytes_down"] for info in infos] == [model, model + 3 * 9 * prototype]
    assert "as_run_gflop" not in infos[0]


@pytest.mark.thorough
def test_fewer_helpers_are_drawn_anew_in_every_round() -> None:
    data = toy.federation(sizes=(9,) * 6, labelled=(6,) * 6)
    states, _ = rounds(data, 5, num_helpers=2)
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
    states, infos = rounds(data, 4, helper_interval=2)
    helpers = [state.terms[TERM].helpers for state in states[1:]]
    assert not bool(helpers[0].present.any()) and np.isnan(infos[0]["pseudo_label_accuracy"])
    chex.assert_trees_all_equal(helpers[1], helpers[2])
    assert not np.array_equal(helpers[2].centers, helpers[3].centers)


@pytest.mark.thorough
def test_prototypes_of_more_rounds_help() -> None:
    data = balanced()
    states, _ = rounds(data, 3, keep_proto_rounds=2, num_helpers=6)
    bank = states[2].terms[TERM].bank.sets
    helpers = states[3].terms[TERM].helpers
    assert bank.centers.shape == (3, 3, 3, WIDTH)
    np.testing.assert_array_equal(helpers.centers, bank.centers[:2].reshape(6, 3, WIDTH))


@pytest.mark.thorough
def test_noise_is_added_to_what_is_shared_and_to_nothing_else() -> None:
    without, with_noise = (rounds(balanced(), 1, proto_noise_std=std)[0][-1] for std in (0.0, 0.5))
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


@pytest.mark.parametrize(
    ("labelled", "settings", "said"),
    [
        ((9, 9), {}, ()),
        (
            *((9, 5, 0), {}),
            (
                *("1 of 3 clients have no class labels", "asks for 3 labels"),
                *("of 6 classes at clients with labels, 3 have fewer", "0 have none"),
                "1 a single one",
            ),
        ),
        ((9, 2), {}, ("(probability 0 there; absent_classes='stop' holds pseudo-labels fixed",)),
        (
            *((9, 2), {"absent_classes": "flow"}),
            ("(probability 0 there; absent_classes='flow' drives embeddings off them",),
        ),
        ((9, 2), {"unlabelled_weight": 0.0}, ("(probability 0 there) and",)),
        ((3, 3), {"proto_source": "global"}, ("6 a single one",)),
    ],
)
def test_labels_that_an_episode_misses_are_said_before_training(labelled, settings, said) -> None:
    data = toy.federation(sizes=(18,) * len(labelled), labelled=labelled)
    check = build(data, **settings).recipe.check
    notes = " ".join(check(data))
    assert all(part in notes for part in said) and bool(notes) == bool(said)


def test_episodes_without_a_query_are_refused() -> None:
    data = toy.federation(sizes=(18, 18), labelled=(3, 3))
    with pytest.raises(ValueError, match=r"no client has two labels of one class.*client 3 labels"):
        build(data).recipe.check(data)


@pytest.mark.thorough
def test_clients_without_labels_train_only_towards_global_prototypes() -> None:
    data = toy.federation(sizes=(9, 9, 9), labelled=(6, 0, 6))
    _, infos = rounds(data, 2)
    assert [info["clients"] for info in infos] == [2.0, 2.0]
    states, infos = rounds(data, 2, proto_source="global")
    assert [info["local_steps"] for info in infos] == [6.0, 9.0]
    assert not bool(states[-1].terms[TERM].bank.sets.present[0, 1].any())
    chex.assert_tree_all_finite(states[-1])


@pytest.mark.thorough
def test_a_client_without_unlabelled_examples_learns_from_its_labels() -> None:
    data = toy.federation(sizes=(9, 6), labelled=(6, 6))
    states, infos = rounds(data, 3)
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
