"""FedRGD: the numbers of its worked examples, its limits, who is averaged with whom."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods
from fedjax_ssl.federated import FederatedOptimizer, Recipe, Setup, Stage, Term, Training, build
from fedjax_ssl.federated.grouped import averaging, default_sizes, equal_sizes
from fedjax_ssl.methods.fedrgd import (
    FedRGD,
    cosine_factor,
    momentum_by_slot,
    with_step_schedule,
)
from tests import toy

KEY = jax.random.key(5)


def advance(plan, models: np.ndarray, steps: np.ndarray | float = 0.0) -> np.ndarray:
    """Models of the groups and the global one after a round in which every slot moves by
    `steps`.
    """
    groups = plan.weights @ (models[plan.starts] + steps)
    return np.append(groups, groups.mean())


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


@pytest.mark.parametrize(
    ("clients", "sizes"),
    [(10, (5, 5)), (20, (10, 10)), (30, (10,) * 3), (47, (10, 10, 10, 10, 7)), (5, (2, 3))],
)
def test_sizes_of_groups(clients: int, sizes: tuple[int, ...]) -> None:
    assert default_sizes(clients) == sizes


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: equal_sizes(3, 4), "group"),
        (lambda: federated.grouped(()), "group"),
        (lambda: federated.grouped((3, 0)), "group"),
        (lambda: averaging((3, 3, 3), 0), "never mix"),
        (
            lambda: trained_by(toy.federation(), federated.grouped((4, 4))),
            "groups of 4, 4 make 8 clients, but 6",
        ),
        (lambda: on_labels(labels="clients"), "labels is 'clients'. Did you mean 'client'"),
        (lambda: on_labels(lr_schedule="plain"), "give the setup its rounds"),
    ],
)
def test_refusals(ask, message: str) -> None:
    assert equal_sizes(7, 3) == (2, 2, 3)
    with pytest.raises(ValueError, match=message):
        ask()


def on_labels(**settings):
    return method_of(run_of(toy.federation(), federated.fedavg()), **settings)


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


def test_there_is_a_replica_for_every_group() -> None:
    data = toy.weak_federation("server")
    momentum = federated.local_optimizer(momentum=0.9)
    run = run_of(data, federated.grouped((3, 3)), local_optimizer=momentum, keep_optimizer=True)
    before = jax.eval_shape(method_of(run).init, KEY, data)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(before.server)} == {2}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("one", "other", "losses", "rtol"),
    [
        (federated.grouped((6,)), federated.fedavg(), ("crl", "crl"), 0),
        # where both views are the same
        (federated.fedavg(), federated.fedavg(), ("self_training", "crl"), 1e-12),
    ],
    ids=["one_group", "self_training"],
)
def test_limits(float64, one, other, losses, rtol: float) -> None:
    """One group is FedAvg with the server, bit for bit, and self-training is consistency."""
    data = toy.weak_federation("server")
    first, second = (
        trained_by(data, optimizer, 2, user_loss=loss)[0]
        for optimizer, loss in zip((one, other), losses, strict=True)
    )
    chex.assert_trees_all_close(first.params, second.params, rtol=rtol, atol=0)


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


def test_a_threshold_that_nothing_reaches_is_allowed_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="users learn nothing"):
        method_of(run_of(toy.federation(), federated.fedavg()), threshold=1.5)
