"""FedRGD: the numbers of its worked examples, its limits, its variants, who is averaged with
whom.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import FederatedOptimizer, Recipe, Setup, Stage, Term, Training, build
from fedjax_ssl.federated.grouped import averaging, default_sizes, equal_sizes
from fedjax_ssl.methods.fedrgd import (
    MOMENTUM,
    FedRGD,
    cosine_factor,
    momentum_by_slot,
    with_step_schedule,
)
from fedjax_ssl.objectives import fixmatch_loss
from tests import toy

KEY = jax.random.key(5)
WEAK = np.array([[5.0, 0, 0], [1, 0.5, 0], [0, 0, 4]])
STRONG = np.array([[2.0, 1, 0], [0, 0, 3], [1, 0, 0.5]])


def advance(plan, models: np.ndarray, steps: np.ndarray | float = 0.0) -> np.ndarray:
    """Models of the groups and the global one after a round in which every slot moves by
    `steps`.
    """
    groups = plan.weights @ (models[plan.starts] + steps)
    return np.append(groups, groups.mean())


# The consistency loss.


def test_consistency_loss_of_the_worked_example(float64) -> None:
    mask = jnp.ones(3, bool)
    both = jax.jit(jax.value_and_grad(lambda views: fixmatch_loss(*views, mask, 0.95)))
    value, (weak, strong) = both((jnp.asarray(WEAK), jnp.asarray(STRONG)))
    assert float(value) == pytest.approx(0.5292918784, abs=1e-10)
    assert not np.any(weak) and not np.any(strong[1]) and np.all(strong[0] != 0)
    nothing, slopes = jax.jit(jax.value_and_grad(lambda views: fixmatch_loss(*views, mask, 1.5)))(
        (jnp.asarray(WEAK), jnp.asarray(STRONG))
    )
    assert float(nothing) == 0 and not np.any(slopes), "0 and not NaN"


# Who is averaged with whom.


def test_groups_and_their_replicas_of_the_worked_example() -> None:
    plan = averaging((2, 2), 2)
    np.testing.assert_array_equal(plan.starts, [0, 0, 1, 1, 2, 2])
    after = plan.weights @ np.array([1.0, 2, 5, 8, 3, 4])
    np.testing.assert_allclose([*after, after.mean()], [2, 17 / 3, 23 / 6], rtol=1e-12)
    alone = averaging((4,), 1)
    np.testing.assert_allclose(alone.weights @ np.array([1.0, 2, 5, 8, 3]), 3.8, rtol=1e-12)
    shared = averaging((2, 2), 1)  # one replica in both groups is two that are the same
    np.testing.assert_allclose(
        shared.weights @ np.array([1.0, 2, 5, 8, 3]), [2, 16 / 3], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("replicas", "gaps"),
    [(2, [6, 5, 4.1666666667, 3.4722222222]), (0, [6, 4.8, 3.84, 3.072])],
    ids=["server", "bridge"],
)
def test_how_fast_groups_mix(replicas: int, gaps: list[float]) -> None:
    models = np.array([0.0, 6, 3])
    seen = [6.0]
    for _ in range(3):
        models = advance(averaging((5, 5), replicas), models)
        seen.append(models[1] - models[0])
        assert models[2] == pytest.approx(3)
    np.testing.assert_allclose(seen, gaps, atol=1e-9)


def test_weights_add_up_and_equal_groups_with_the_global_model_are_fedavg_that_counts_the_server_twice() -> (
    None
):
    for sizes, replicas in (
        ((2, 3), 0),
        ((2, 3), 2),
        ((10, 10, 10, 10, 7), 5),
        ((3, 3, 3), 1),
        ((4,), 1),
    ):
        np.testing.assert_allclose(averaging(sizes, replicas).weights.sum(axis=1), 1, rtol=1e-12)
    plan = averaging((3, 3), 2, broadcast_global=True)
    steps = np.arange(8.0)
    assert set(plan.starts) == {2}
    assert advance(plan, np.array([9.0, 9, 1]), steps)[2] == pytest.approx(1 + steps.mean())


def test_sizes_of_groups() -> None:
    assert (
        default_sizes(10) == (5, 5)
        and default_sizes(20) == (10, 10)
        and default_sizes(30) == (10, 10, 10)
    )
    assert (
        default_sizes(47) == (10, 10, 10, 10, 7)
        and default_sizes(5) == (2, 3)
        and equal_sizes(7, 3) == (2, 2, 3)
    )
    for bad in (
        lambda: equal_sizes(3, 4),
        lambda: federated.grouped(()),
        lambda: federated.grouped((3, 0)),
    ):
        with pytest.raises(ValueError, match="group"):
            bad()
    with pytest.raises(ValueError, match="never mix"):
        averaging((3, 3, 3), 0)
    with pytest.raises(ValueError, match=r"groups of 4, 4 make 8 clients, but 6"):
        trained_by(toy.federation(), federated.grouped((4, 4)))


# The engine: slots, momentum, limits.


def run_of(data, optimizer: FederatedOptimizer, **changes) -> Setup:
    return toy.setup(data, model=toy.linear_model(), federated_optimizer=optimizer, **changes)


def method_of(run: Setup, **settings):
    return methods.build(
        "fedrgd", run, **{"lr_schedule": "run", "threshold": 0.5, "local_steps": 2, **settings}
    )


def trained_by(data, optimizer: FederatedOptimizer, rounds: int = 1, changes=None, **settings):
    """The state after some rounds and the metrics of the last."""
    state, infos = toy.train(
        method_of(run_of(data, optimizer, **(changes or {})), **settings), KEY, data, rounds
    )
    return state, infos[-1]


@pytest.mark.thorough
def test_one_group_is_fedavg_with_the_server_bit_for_bit() -> None:
    data = toy.weak_federation("server")
    one, plain = (
        trained_by(data, optimizer, 2)[0]
        for optimizer in (federated.grouped((6,)), federated.fedavg())
    )
    chex.assert_trees_all_equal(one, plain)


def test_places_in_the_cohort_are_those_of_ids_and_do_not_depend_on_who_is_absent() -> None:
    draw = jax.jit(federated.random_slots, static_argnums=3)
    ids = jnp.arange(6, dtype=jnp.int32)
    there = jnp.ones(6, bool)
    places = np.asarray(draw(KEY, ids, there, 6))
    assert sorted(places) == list(range(6)) and list(places) != list(range(6))
    without_two = draw(KEY, jnp.asarray([0, 1, 3, 4, 5, 6], jnp.int32), jnp.arange(6) < 5, 6)
    np.testing.assert_array_equal(without_two[:5], places[[0, 1, 3, 4, 5]])


@pytest.mark.thorough
def test_momentum_stays_with_the_slots(float64) -> None:
    """Two clients of which one is drawn per round: they go on with each other's momentum."""
    data = toy.federation(sizes=(4, 4), labelled=(4, 4))

    def pulled(keep_by: str, rounds: int, steps: int) -> float:
        term = Term("pull", (), lambda step: 0.5 * jnp.sum((step.params["b"] - 2.0) ** 2))
        momentum = federated.local_optimizer(momentum=0.9)
        run = run_of(data, federated.fedavg(), cohort_size=1, local_optimizer=momentum)
        terms = (term, momentum_by_slot(run)) if keep_by == "slot" else (term,)
        run = run._replace(keep_optimizer=keep_by == "client")
        stage = Stage(Training(terms, toy.in_order("all", 4, steps)), labelled_quota="any")
        method = build(Recipe(run, (stage,)))
        return float(toy.train(method, KEY, data, rounds)[0].params["model"]["b"][0])

    assert pulled("slot", 4, 2) == pytest.approx(pulled("nobody", 1, 8), rel=1e-12)
    assert abs(pulled("client", 4, 2) - pulled("slot", 4, 2)) > 1e-3


@pytest.fixture(scope="module")
def trained():
    """Two rounds of two groups, labels at the server, with momentum in the slots."""
    data = toy.weak_federation("server")
    momentum = {
        "local_optimizer": federated.local_optimizer(momentum=0.9, nesterov=True),
        "keep_optimizer": True,
    }
    changes = {"augment": toy.jitter, **momentum}
    return trained_by(data, federated.grouped((3, 3)), 2, changes)


@pytest.mark.thorough
def test_the_global_model_is_the_mean_of_groups_that_differ(trained) -> None:
    state, info = trained
    (models,) = state.optimizer["model"]
    assert models.shape[0] == 2 and np.any(models[0] != models[1])
    leaves = np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.params)])
    np.testing.assert_allclose(leaves, models.mean(0), rtol=1e-6)
    assert int(info["clients"]) == 6
    assert all(
        np.any(table != 0) for table in jax.tree.leaves(state.terms[MOMENTUM]) if table.ndim > 1
    )
    assert jax.tree.leaves(state.server)[0].shape[0] == 2, (
        "a replica per group goes on with its momentum"
    )


def test_there_is_a_replica_for_every_group() -> None:
    data = toy.weak_federation("server")
    momentum = federated.local_optimizer(momentum=0.9)
    run = run_of(data, federated.grouped((3, 3)), local_optimizer=momentum, keep_optimizer=True)
    method = method_of(run)
    before = jax.eval_shape(method.init, KEY, data)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(before.server)} == {2}
    after, _ = jax.eval_shape(method.round, KEY, before, data)
    chex.assert_trees_all_equal_shapes_and_dtypes(after, before)


@pytest.mark.thorough
def test_labels_at_clients_bridge_the_groups(float64) -> None:
    data = toy.federation()
    changes = {"augment": toy.jitter}
    state, info = trained_by(data, federated.grouped((3, 3)), 1, changes, labels="client")
    (models,) = state.optimizer["model"]
    leaves = np.concatenate([np.ravel(x) for x in jax.tree.leaves(state.params)])
    np.testing.assert_allclose(leaves, models.mean(0), rtol=1e-12)
    assert state.server == {} and int(info["local_steps"]) == 2 * 6


@pytest.mark.thorough
def test_self_training_is_consistency_where_views_are_the_same(float64) -> None:
    data = toy.weak_federation("server")
    one, other = (
        trained_by(data, federated.fedavg(), user_loss=loss)[0] for loss in ("self_training", "crl")
    )
    chex.assert_trees_all_close(one.params, other.params, rtol=1e-12)


@pytest.mark.thorough
def test_running_statistics_are_those_of_the_server() -> None:
    """Other inputs at the users do not change them."""
    data = toy.weak_federation("server")
    rows = np.asarray(data.index[0])
    moved = toy.changed(
        data, inputs=np.where(np.isin(np.arange(len(data.inputs)), rows)[:, None], 3.0, data.inputs)
    )

    method = method_of(toy.setup(data, model_options={"norm": "bn"}))
    found = [toy.train(method, KEY, federation, 1)[0].model_state for federation in (data, moved)]
    chex.assert_trees_all_equal(*found)


def test_the_supervised_reference_trains_on_the_labels_of_clients_and_server() -> None:
    data = toy.federation(server=toy.NUM_SERVER)
    method = method_of(run_of(data, federated.grouped((3, 3))), user_loss="supervised")
    assert method.recipe.needs.kinds == ("labels", "server") and method.recipe.needs.every_one
    _, info = jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)
    assert "pseudo_label_accuracy" not in info


# Schedules, optimizer.


def test_schedules_of_the_worked_examples(float64) -> None:
    factor = jax.jit(cosine_factor, static_argnums=(1, 2))
    plain = [float(factor(jnp.asarray(step), 10, 110)) for step in (0.0, 5.0, 10.0, 60.0, 110.0)]
    np.testing.assert_allclose(
        plain, [0, 0.5, 1, np.cos(7 * np.pi / 32), np.cos(7 * np.pi / 16)], rtol=1e-12
    )
    run = with_step_schedule(
        toy.setup(toy.federation(), learning_rate=2.0, rounds=10),
        FedRGD(warmup_steps=32),
    )
    rates = [float(run.learning_rate(jnp.asarray(n))) for n in (0, 1, 2, 9)]
    np.testing.assert_allclose(
        rates, [2 * 15 / 32, 2 * 31 / 32, 2, 2 * np.cos(7 * np.pi / 16 * 112 / 128)], rtol=1e-12
    )


def test_nesterov_momentum_of_the_worked_example(float64) -> None:
    optimizer = federated.local_optimizer(momentum=0.9, nesterov=True, weight_decay=1e-4)
    x = jnp.asarray(1.0)
    seen = []
    state = optimizer.init(x)
    for _ in range(3):
        added, state = optimizer.update(x, state, x, jnp.asarray(0.1))
        x = x + added
        seen.append(float(x))
    np.testing.assert_allclose(seen, [0.809981, 0.5750611204, 0.3272662695], atol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": "clients"}, "labels is 'clients'. Did you mean 'client'"),
        ({"lr_schedule": "plain"}, "give the setup its rounds"),
    ],
)
def test_refusals(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        method_of(run_of(toy.federation(), federated.fedavg()), **settings)


def test_a_threshold_that_nothing_reaches_is_allowed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="users learn nothing"):
        method_of(run_of(toy.federation(), federated.fedavg()), threshold=1.5)
