"""Whole rounds of FedMatch: labels at the server, what is kept and sent, its limits and its
ablations.
"""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import methods
from fedjax_ssl.models import Model, count_parameters, in_precision
from tests import toy

KEY = jax.random.key(2)
DELTA = 0.02
fedmatch = functools.partial(methods.build, "fedmatch")
SETTINGS = {"supervised_weight": 1.0, "l2_weight": 1.0, "threshold": 0.4, "helper_interval": 2}


def with_validation(data, count: int = 20):
    """The last test examples are validation examples."""
    rows = np.asarray(data.test_index)
    changes = {
        "test_index": rows[:-count],
        "test_client": np.full(len(rows) - count, -1),
        "num_test": len(rows) - count,
    }
    return toy.changed(data, **changes, valid_index=rows[-count:], num_valid=count)


def run_of(data, **changes):
    return toy.setup(
        data, **{"model": toy.linear_model(), "batch_size": 4, "local_epochs": 1, **changes}
    )


@pytest.fixture(scope="module")
def at_server():
    """Three rounds with labels at the server; in the second one helpers are sent."""
    data = with_validation(toy.weak_federation("server"))
    method = fedmatch(
        run_of(data),
        **SETTINGS,
        delta_threshold=DELTA,
        unlabelled_batch_size=4,
        server_batch_size=3,
        patience=1,
    )
    return toy.every_state(method, KEY, data, 3)


@pytest.mark.thorough
def test_bytes_are_those_of_what_was_sent(at_server) -> None:
    """Both parts whole in round 0, then what differs from the last upload; each message in the
    shortest form.
    """
    states, infos = at_server
    size = count_parameters(states[0].params["psi"])

    def shortest(entries: int) -> int:
        return min(4 * size, -(-size // 8) + 4 * entries, 8 * entries)

    assert infos[0]["bytes_down"] == 6 * 2 * size * 4 and infos[0]["s2c"] == 2.0
    for (before, after), info in zip(itertools.pairwise(states), infos, strict=True):
        uploads = after.terms["fedmatch"].uploads["psi"]
        sent = [
            sum(int((uploads[name][c] != before.params["psi"][name]).sum()) for name in uploads)
            for c in range(6)
        ]
        assert info["bytes_up"] == sum(map(shortest, sent))
        assert info["c2s"] == pytest.approx(sum(sent) / size / 6)
        assert "c2s_sigma" not in info and 0.3 < info["c2s"] < 1
    held = states[1].terms["fedmatch"].uploads
    now = states[2]
    differ = [
        sum(
            int((jnp.abs(table[c] - new) > DELTA).sum())
            for table, new in zip(
                jax.tree.leaves(held[part]), jax.tree.leaves(new_part), strict=True
            )
        )
        for part, new_part in (("sigma", now.params["sigma"]), ("psi", states[1].params["psi"]))
        for c in range(6)
    ]
    assert infos[1]["helpers"] == 2 and infos[2]["helpers"] == 0
    helpers = infos[1]["bytes_down"] - sum(map(shortest, differ))
    assert 0 < helpers <= 8 * round(6 * size * infos[1]["s2c_helpers"])


def test_every_client_has_a_learning_rate_of_its_own(at_server) -> None:
    states, infos = at_server
    kept = jax.device_get(states[-1].clients.terms["fedmatch"])
    assert kept.plateau.factor.shape == (6,) and (kept.plateau.best < 10).all()
    np.testing.assert_allclose(np.log(kept.plateau.factor) / np.log(3) % 1, 0, atol=1e-5)
    assert infos[-1]["client_validation_accuracy"] == pytest.approx(
        np.mean(kept.accuracy), rel=1e-6
    )
    assert float(states[-1].terms["supervised"].best) < 10, "the server has one, too"


def scaled(model: Model, factor: float) -> Model:
    return model._replace(
        init=lambda key: (jax.tree.map(lambda w: factor * w, model.init(key)[0]), {})
    )


@pytest.mark.thorough
def test_without_unsupervised_weights_it_is_federated_averaging_on_labels(float64) -> None:
    """Check 18a: psi never moves, sigma + psi is FedAvg's model."""
    data = toy.federation(sizes=(8, 8, 8), labelled=(4, 4, 4))
    zero = dict.fromkeys(
        ("agreement_weight", "kl_weight", "l2_weight", "l1_weight", "delta_threshold"), 0.0
    )
    method = fedmatch(
        run_of(data), supervised_weight=1.0, lr_schedule="none", helper_interval=2, **zero
    )
    state, _ = toy.train(method, KEY, data, 3)
    expected, _ = toy.train(
        methods.build("fedavg", run_of(data, model=scaled(toy.linear_model(), 1.2))), KEY, data, 3
    )
    total = jax.tree.map(jnp.add, state.params["sigma"], state.params["psi"])
    chex.assert_trees_all_close(total, expected.params["model"], rtol=1e-12)
    first = jax.tree.map(lambda w: 0.2 * w, toy.linear_model().init(KEY)[0])
    chex.assert_trees_all_equal(state.params["psi"], first)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("decomposition", "part"),
    [("none", "sigma"), ("without_sigma", "psi"), ("without_psi", "sigma")],
)
def test_ablations(decomposition: str, part: str) -> None:
    """One part, the same function at the start, and it learns; both losses move it."""
    data = toy.federation()
    given = {
        **SETTINGS,
        "l2_weight": 0.05,
        "supervised_weight": 5.0,
        "lr_schedule": "none",
        "decomposition": decomposition,
    }
    method = fedmatch(run_of(data), **given)
    start = jax.jit(method.init)(KEY, data)
    assert list(start.params) == [part]
    first = jax.tree.map(lambda w: jnp.float32(1.2) * w, toy.linear_model().init(KEY)[0])
    chex.assert_trees_all_close(start.params[part], first, rtol=1e-6)
    state, infos = toy.run(jax.jit(method.round), KEY, start, data, 12)
    chosen = np.argmax(method.predict(state, data.inputs), axis=1)[data.test_index]
    assert np.mean(chosen == data.labels[data.test_index]) > 0.8
    assert infos[0]["s2c"] == 1.0 and 0 < infos[1]["c2s"] <= 1.0 and infos[1]["s2c"] <= 3.0


@pytest.mark.thorough
def test_no_inter_client_loss_and_a_stream() -> None:
    """H = 0, the ablation; unlabelled examples in four parts, a round each."""
    data = dataclasses.replace(toy.federation(sizes=(12, 12, 3), labelled=(4, 4, 3)), num_parts=4)
    run = run_of(data, rounds=4)
    state, infos = toy.train(
        fedmatch(run, **{**SETTINGS, "num_helpers": 0, "threshold": 0.0, "lr_schedule": "none"}),
        KEY,
        data,
        4,
    )
    chex.assert_tree_all_finite(state)
    assert [info["helpers"] for info in infos] == [0] * 4
    # Every client uses its labelled examples, and the two unlabelled ones of the part: all that it
    # has then.
    assert [info["examples"] for info in infos] == [4 + 2 + 4 + 2 + 3] * 4
    assert [info["pseudo_label_coverage"] for info in infos] == [1.0] * 4


@pytest.mark.thorough
def test_in_half_precision_parameters_and_costs_stay_whole() -> None:
    """A step of 1e-7 is far below the spacing of bfloat16; here thresholds of 1e-5 still tell."""
    data = toy.federation()
    run = run_of(data, model=in_precision(toy.setup(data).model, "bf16"), learning_rate=1e-6)
    state, infos = toy.train(
        fedmatch(run, **SETTINGS, lr_schedule="none", delta_threshold=1e-9), KEY, data, 1
    )
    assert {leaf.dtype.name for leaf in jax.tree.leaves(state.params)} == {"float32"}
    assert infos[0]["c2s_psi"] > 0.3
