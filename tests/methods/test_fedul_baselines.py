"""FedPL, FedLLP and FedLLP-VAT (notes on FedUL, sections 5, 13 and 14)."""

import dataclasses
from functools import partial
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import methods, presets
from fedjax_ssl.data import WeakLabels
from fedjax_ssl.federated import Client, Now, Stream
from fedjax_ssl.methods.fedllp import local_epochs_done, set_per_step
from fedjax_ssl.methods.fedpl import (
    Confidence,
    majority_labels,
    split_by_confidence,
    split_loss,
)
from fedjax_ssl.objectives import consistency_ramp, mixup
from tests import toy

KEY = jax.random.key(4)
LOGITS = [[2.0, 0.0, -1.0], [0.2, 0.1, 0.0], [0.1, 1.5, 0.3], [0.0, 0.05, 0.3]]


def stream(size: int, **changes: Any) -> Stream:
    nothing = jnp.full(size, -1, jnp.int32)
    plain = Stream(jnp.arange(size), jnp.ones(size, bool), nothing, jnp.zeros((size, 1)), nothing)
    return plain._replace(**changes)


def sets_of_one_client(
    labels: list[int], matrix: Any, padding: int = 0, from_sets: bool = True
) -> WeakLabels:
    matrix = np.asarray(matrix, float)
    counts = np.bincount([label for label in labels if label >= 0], minlength=len(matrix))
    one = toy.weak_labels(
        [labels + [-1] * padding],
        np.pad(matrix, ((0, padding), (0, 0)))[None],
        num_observations=[len(matrix)],
        from_sets=from_sets,
        share=np.pad(counts / counts.sum(), (0, padding))[None],
    )
    return jax.tree.map(lambda x: x[0], dataclasses.replace(one, prior=one.prior[None]))


def client_with(weak: WeakLabels) -> Client:
    size = weak.labels.shape[0]
    zero = jnp.zeros((), jnp.int32)
    rows = jnp.arange(size, dtype=jnp.int32)
    return Client(zero, rows, 0 * rows - 1, zero, weak.num_examples, {}, (), weak=weak)


@partial(jax.jit, static_argnames="skip_empty")
def split_and_loss(
    logits: jax.Array,
    batch: Stream,
    threshold: float = 0.4,
    mix_weight: float = 0.3,
    skip_empty: bool = False,
) -> tuple[Confidence, jax.Array]:
    split = split_by_confidence(logits, batch, threshold)
    mixed = mixup(logits[split.first], logits[split.second], 0.3)
    return split, split_loss(logits, mixed, split, 0.3, mix_weight, skip_empty)


def test_worked_batch_of_fedpl(float64) -> None:
    """Check 14."""
    logits = jnp.asarray(LOGITS)
    split, fixed = split_and_loss(logits, stream(4), mix_weight=0.0)
    np.testing.assert_array_equal(split.labels, [0, 0, 1, 2])
    np.testing.assert_array_equal(split.confident, [True, False, True, False])
    np.testing.assert_array_equal(split.paired, [True, True, False, False])
    np.testing.assert_array_equal(np.stack([split.first, split.second])[:, :2], [[0, 2], [1, 3]])
    assert float(fixed) == pytest.approx(0.3033374432, abs=1e-10)
    both = float(split_and_loss(logits, stream(4), mix_weight=1.0)[1])
    assert both - 0.3033374432 == pytest.approx(0.8276322038, abs=1e-10)
    assert float(split_and_loss(logits, stream(4))[1]) == pytest.approx(0.5516271043, abs=1e-10)


def test_padding_of_a_batch_and_class_labels_in_it(float64) -> None:
    logits = jnp.asarray([*LOGITS, *[[7.0] * 3] * 2])
    padded = stream(6, mask=jnp.asarray([True] * 4 + [False] * 2))
    assert float(split_and_loss(logits, padded)[1]) == pytest.approx(0.5516271043, abs=1e-10)
    labelled = stream(4, observed=jnp.asarray([-1, 2, -1, -1], jnp.int32))
    split, _ = split_and_loss(jnp.asarray(LOGITS), labelled)
    np.testing.assert_array_equal(split.labels, [0, 2, 1, 2])
    np.testing.assert_array_equal(split.confident, [True, True, True, False])


def test_a_batch_without_a_pair(float64) -> None:
    """Section 13: without doubtful rows the pairs are left out; without confident ones nothing
    is left.
    """
    logits = jnp.asarray(LOGITS)
    sure = np.exp(LOGITS).max(axis=1) / np.exp(LOGITS).sum(axis=1)
    _, value = split_and_loss(logits, stream(4), threshold=0.0)
    assert float(value) == pytest.approx(-np.log(sure).mean(), abs=1e-12)
    assert float(split_and_loss(logits, stream(4), threshold=0.0, skip_empty=True)[1]) == 0
    value, slope = jax.jit(
        jax.value_and_grad(lambda z: split_and_loss(z, stream(4), threshold=0.99)[1])
    )(logits)
    assert float(value) == 0 and not np.asarray(slope).any()


def test_majority_labels() -> None:
    shares = [[0.1, 0.5, 0.4], [0.4, 0.2, 0.4], [0.2, 0.2, 0.6]]
    weak = sets_of_one_client([0, 1, 2], shares)
    batch = stream(5, weak=jnp.asarray([0, 1, 2, -1, 2]), observed=jnp.asarray([-1, -1, -1, -1, 0]))
    # of equal ones the first
    labels = jax.jit(majority_labels)
    np.testing.assert_array_equal(labels(batch, weak), [1, 0, 2, -1, 0])
    coarse = dataclasses.replace(weak, from_sets=jnp.asarray(False))
    np.testing.assert_array_equal(labels(batch, coarse), [-1, -1, -1, -1, 0])
    np.testing.assert_array_equal(majority_labels(batch, None), batch.observed)


@pytest.mark.thorough
def test_the_first_rounds_of_fedpl_on_pure_sets_are_federated_averaging() -> None:
    """The class of every unlabelled example is its set."""
    data = toy.weak_federation("sets")
    labels = jnp.where(data.weak.labels >= 0, data.labels[data.index], -1)
    matrix = jnp.broadcast_to(jnp.eye(3), data.weak.matrix.shape)
    pure = dataclasses.replace(data.weak, labels=labels, matrix=matrix)
    data = dataclasses.replace(data, weak=pure)
    labelled = toy.federation(labelled=toy.SIZES)
    expected, _ = toy.train(methods.build("fedavg", toy.setup(labelled)), KEY, labelled, 2)
    state, _ = toy.train(methods.build("fedpl", toy.setup(data)), KEY, data, 2)
    chex.assert_trees_all_equal(state.params, expected.params)


@pytest.mark.thorough
def test_mixing_inputs_of_a_linear_model_is_mixing_its_scores() -> None:
    data = toy.weak_federation("sets")
    run = toy.setup(data, model=toy.linear_model())
    settings = {"warmup_rounds": 0, "threshold": 0.6}
    one, other = (
        toy.train(methods.build("fedpl", run, mix=mix, **settings), KEY, data, 2)[0].params
        for mix in ("inputs", "logits")
    )
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-6)


def drawn(weak: WeakLabels, epochs: int, **bound: int) -> list[list[int]]:
    """The examples of every step."""
    schedule = jax.jit(set_per_step(epochs, **bound).schedule)(KEY, client_with(weak), toy.NOW)
    places, masks = (np.asarray(one["set"]) for one in (schedule.positions, schedule.masks))
    steps = zip(places, masks, strict=True)
    return [chosen[mask].tolist() for chosen, mask in steps][: int(schedule.num_steps)]


def test_every_set_is_one_step_of_every_epoch() -> None:
    labels = [0, 3, 1, 0, -1, 3, 0, 1]  # set 2 is empty
    steps = drawn(sets_of_one_client(labels, np.full((4, 3), 1 / 3)), 3)
    assert len(steps) == 9
    orders = set()
    for epoch in (steps[:3], steps[3:6], steps[6:]):
        assert sorted(map(sorted, epoch)) == [[0, 3, 6], [1, 5], [2, 7]]
        orders.add(tuple(labels[step[0]] for step in epoch))
    assert len(orders) > 1


def test_of_a_set_larger_than_the_bound_another_part_is_taken_every_time() -> None:
    steps = drawn(sets_of_one_client([0] * 9 + [1] * 2, np.eye(3)[:2]), 6, set_size=4)
    assert len(steps) == 12
    large = [sorted(step) for step in steps if step[0] < 9]
    assert sorted(map(sorted, (step for step in steps if step[0] >= 9))) == [[9, 10]] * 6
    assert all(len({*step}) == 4 and max(step) < 9 for step in large)
    assert len(set(map(tuple, large))) > 2


def test_a_client_with_coarse_labels_takes_no_step() -> None:
    assert drawn(sets_of_one_client([0, 1, 0], np.eye(3)[:2], from_sets=False), 2) == []


def at_step(round_number: int, number: int, num_sets: int = 10) -> Any:
    weak = sets_of_one_client(list(range(num_sets)), np.full((num_sets, 3), 1 / 3), padding=2)
    now = Now(jnp.int32(round_number))
    return SimpleNamespace(client=client_with(weak), now=now, number=jnp.int32(number))


def test_the_ramp_starts_anew_in_every_epoch_of_the_released_code_and_goes_on_here(float64) -> None:
    """Check 14: ten sets, T = 200 steps; here the weight is full after 20 local epochs of the
    run.
    """

    def weight(step: Any, rampup: str, local_epochs: int = 1) -> float:
        return float(consistency_ramp(local_epochs_done(step, local_epochs, rampup), 1.0, 20))

    assert weight(at_step(7, 0), "per_epoch") == pytest.approx(0.0067379470, abs=1e-10)
    assert weight(at_step(7, 9), "per_epoch") == pytest.approx(0.0104607513, abs=1e-10)
    assert weight(at_step(7, 19), "per_epoch", 2) == pytest.approx(0.0104607513, abs=1e-10)
    assert weight(at_step(0, 0), "run") == pytest.approx(np.exp(-5), abs=1e-12)
    assert weight(at_step(3, 14), "run", 2) == pytest.approx(
        np.exp(-5 * (1 - 74 / 200) ** 2), abs=1e-12
    )
    assert weight(at_step(20, 0), "run") == weight(at_step(50, 0), "run") == 1.0


@pytest.mark.thorough
def test_perturbed_passes_leave_the_running_batch_statistics_alone() -> None:
    """With weight 0 nothing is left of the passes, wherever they look."""
    data = toy.weak_federation("sets")
    run = toy.setup(data, model_options={"norm": "bn"}, local_epochs=1)
    start = jax.jit(methods.build("fedllp_vat", run).init)(KEY, data)

    @jax.jit
    def one_round(weight: jax.Array, radius: jax.Array) -> tuple[Any, Any]:
        method = methods.build("fedllp_vat", run, vat_weight=weight, vat_radius=radius)
        state, _ = method.round(KEY, start, data)
        return state.params, state.model_state

    (params, statistics), far = (
        one_round(jnp.asarray(0.0), jnp.asarray(radius)) for radius in (0.0, 30.0)
    )
    chex.assert_trees_all_equal((params, statistics), far)
    assert jax.tree.leaves(statistics)
    moved, _ = one_round(jnp.asarray(50.0), jnp.asarray(30.0))
    assert float(optax.tree.norm(optax.tree.sub(moved, params))) > 1e-4


@pytest.mark.thorough
def test_padding_does_not_move_the_perturbation_in_a_network_with_batch_norm() -> None:
    """The weight is large, so that a wrong direction would show."""
    data = toy.weak_federation("sets")
    ends = []
    for federation in (data, toy.padded(data, clients=0, columns=5)):
        run = toy.setup(federation, model_options={"norm": "bn"}, local_epochs=1)
        method = methods.build("fedllp_vat", run, vat_weight=50.0, vat_radius=3.0, ramp_epochs=1)
        ends.append(toy.train(method, KEY, federation, 1)[0])
    chex.assert_trees_all_close(ends[0].params, ends[1].params, rtol=0, atol=1e-3)


def test_learning_from_proportions_needs_sets() -> None:
    data = toy.federation()
    method = methods.build("fedllp", toy.setup(data))
    with pytest.raises(ValueError, match="this federation has none; use supervision 'sets'"):
        state = jax.eval_shape(method.init, KEY, data)
        jax.eval_shape(method.round, KEY, state, data)


@pytest.mark.parametrize("argument", ["ten", "1", "10,dirichlet", "10,iid,xclp", "10,iid,fedul,5"])
def test_the_argument_of_its_configs_is_checked(argument: str) -> None:
    with pytest.raises(
        configs.ConfigError,
        match=f"'{argument}' of this config; give SETS,SPLIT,METHOD. sets: a whole number of at",
    ):
        presets.variants(presets.unlabelled_sets)(argument)


@pytest.mark.parametrize(
    ("given", "partition", "supervision", "knows"),
    [
        ((20, "noniid", "fedllp"), "majority", "sets", 20),
        ((40, "iid", "fedavg"), "iid", "fraction", 0.1),
        ((), "iid", "sets", 10),
    ],
)
def test_its_configs_name_split_sets_and_method(given, partition, supervision, knows) -> None:
    config = presets.unlabelled_sets(*given)
    assert (config.partition.name, config.supervision.name) == (partition, supervision)
    assert config.supervision["sets" if supervision == "sets" else "fraction"] == knows
