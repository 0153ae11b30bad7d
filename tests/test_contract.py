"""The contract (docs/architecture.md): one suite over every registered method.

Every method trains the toy federation of the kind that it learns from, with one round of its first
stage if it has two, so that both stages run in one compiled program. A test that needs other data
takes data of the same shapes, and no new compilation. What is special about a method is said in
`tests/methods/cases.py`. `make test` compiles one method for each mechanism of the engine and
traces all the others, which `make thorough` compiles.
"""

import functools
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import FederatedOptimizer, Method, ServerState
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.models import count_parameters
from tests import toy
from tests.methods import cases

ROUNDS = 4
METHODS = sorted(methods.available())
OPTIMIZERS: dict[str, FederatedOptimizer] = {  # beside fedavg, which all other tests use
    "fedprox": federated.fedprox(0.1),
    "scaffold": federated.scaffold(),
    "fednova": federated.fednova(mu=0.1),
    "fedavgm": federated.fedopt(optax.sgd(1.0, momentum=0.5)),
    "fedadam": federated.fedopt(optax.adam(0.03, b1=0.9, b2=0.99, eps=1e-3)),
    "grouped": federated.grouped((3, 3)),
    "fedyogi": federated.fedopt(optax.yogi(0.03, b1=0.9, b2=0.99, eps=1e-3)),
}
COMMON = {"loss", "clients", "local_steps", "examples", "dropped_clients", "bytes_down", "bytes_up"}
PSEUDO_LABELS = {
    "pseudo_label_accuracy",
    "pseudo_label_coverage",
    "confidence_correct",
    "confidence_wrong",
}


class Case(NamedTuple):
    """One method on the toy federation, compiled, and its first rounds."""

    name: str
    kind: str  # of federation, see `toy.weak_federation`
    data: FederatedData
    method: Method
    init: Any
    round: Any
    predict: Any
    traces: list[int]  # one entry per time that `round` was traced
    start: ServerState
    end: ServerState  # after ROUNDS rounds with KEY
    infos: list[dict[str, float]]

    @property
    def declared(self) -> cases.Case:
        return cases.of(self.name)

    @property
    def first_rounds(self) -> int:
        """Rounds in which clients train."""
        return ROUNDS if self.declared.clients_train is None else self.declared.clients_train


def key() -> jax.Array:
    return jax.random.key(1)


federation = functools.cache(toy.weak_federation)


def quick_are(quick: Collection[str], names: Collection[str] = METHODS) -> list[Any]:
    """The methods as parameters of a test; `make test` takes the quick ones only."""
    return [
        pytest.param(name, marks=() if name in quick else pytest.mark.thorough) for name in names
    ]


@pytest.fixture(scope="module", params=quick_are(cases.MECHANISMS))
def case(request: pytest.FixtureRequest) -> Case:
    kind = cases.build(request.param, federation("labels")).needs[0]
    data = federation(kind)
    method = cases.build(request.param, data)
    traces: list[int] = []

    def counted(*arguments: Any) -> Any:
        traces.append(1)
        return method.round(*arguments)

    init = jax.jit(method.init)
    one_round = jax.jit(counted)
    start = init(key(), data)
    end, infos = toy.run(one_round, key(), start, data, ROUNDS)
    predict = jax.jit(method.predict)
    return Case(
        request.param, kind, data, method, init, one_round, predict, traces, start, end, infos
    )


def programs_of_their_own(
    names: Collection[str] = METHODS, quick: Collection[str] = ()
) -> Callable[..., Any]:
    """For a test that compiles more per method: these methods, of which `make test` takes the
    `quick` ones only.
    """
    return pytest.mark.parametrize("case", quick_are(quick, names), indirect=True, scope="module")


def rerun(
    case: Case, data: FederatedData, seed: int = 1
) -> tuple[ServerState, list[dict[str, float]]]:
    chosen = jax.random.key(seed)
    return toy.run(case.round, chosen, case.init(chosen, data), data, ROUNDS)


def loss_on_labels(info: dict[str, float]) -> float:
    """The server's loss where it trains: that of clients is of another, growing set of examples
    in every round.
    """
    return info.get("server_loss", info["loss"])


def infos_close(
    left: list[dict[str, float]], right: list[dict[str, float]], tolerance: float
) -> None:
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(
                one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name
            )


def test_state_keeps_structure_shapes_and_types_and_rounds_compile_once(case: Case) -> None:
    chex.assert_trees_all_equal_structs(case.start, case.end)
    chex.assert_trees_all_equal_shapes_and_dtypes(case.start, case.end)
    assert int(case.end.round) == ROUNDS
    assert len(case.traces) == 1


def test_every_round_reports_the_common_metrics(case: Case) -> None:
    two_stages = "warmup_rounds" in case.declared.settings
    first_rounds = case.first_rounds
    for number, info in enumerate(case.infos):
        assert info.keys() >= COMMON
        assert all(math.isfinite(info[name]) for name in COMMON)
        undefined = {name for name, value in info.items() if not math.isfinite(value)}
        if number == 0 and two_stages:
            operations = {name for name in info if name.startswith("operations_")}
            assert undefined == (info.keys() & PSEUDO_LABELS) | operations, (
                "stage 1 makes no graph, no pseudo-labels"
            )
        elif number < case.declared.first_targets:
            assert (
                undefined == PSEUDO_LABELS - {"pseudo_label_coverage"}
                and info["pseudo_label_coverage"] == 0
            )
        elif number < first_rounds < ROUNDS:
            assert undefined == {"server_loss", "server_dropped"}, "the server does not train yet"
        else:
            assert undefined <= {"confidence_correct", "confidence_wrong"}, (
                "none is right, or none is wrong"
            )
        assert (number < first_rounds) <= info["clients"] <= case.data.num_clients
        assert info["dropped_clients"] == 0
        assert info["local_steps"] <= info["examples"]
        sent = {
            group: one
            for group, one in case.start.params.items()
            if group not in case.declared.never_sent
        }
        one_model = 4 * count_parameters(sent)
        for direction in ("bytes_down", "bytes_up"):
            assert info[direction] >= info["clients"] * one_model
            assert info[direction] == round(info[direction])
    assert loss_on_labels(case.infos[-1]) < loss_on_labels(case.infos[1])


def test_same_key_same_bits_other_key_other_result(case: Case) -> None:
    again, infos = rerun(case, case.data)
    chex.assert_trees_all_equal(again, case.end)
    infos_close(infos, case.infos, 0.0)
    other, _ = rerun(case, case.data, seed=2)
    assert float(optax.tree.norm(optax.tree.sub(other.params, case.end.params))) > 1e-3


def in_one_scan(
    method: Method, data: FederatedData
) -> Callable[[jax.Array], tuple[ServerState, Any]]:
    """A run from the start as a function of its key; infos have a leading axis of rounds."""

    def train(seed_key: jax.Array) -> tuple[ServerState, Any]:
        first = method.init(seed_key, data)
        return jax.lax.scan(
            lambda state, _: method.round(seed_key, state, data), first, length=ROUNDS
        )

    return train


def in_chunks_with_padding(
    name: str, data: FederatedData, **settings: Any
) -> tuple[Method, FederatedData]:
    """Six clients in chunks of four, empty clients at the end, larger bounds."""
    more = toy.padded(data)
    other = cases.build(name, more, settings, cohort_size=data.num_clients)
    return toy.executed(other, placement="chunked", chunk_size=4), more


def two_keys() -> jax.Array:
    return jnp.stack([jax.random.key(1), jax.random.key(2)])


@pytest.mark.parametrize("name", quick_are(set(METHODS) - set(cases.MECHANISMS)))
def test_rounds_are_one_scan_with_settings_as_numbers(name: str) -> None:
    """Traced, not computed. A scan refuses rounds that change the types of their state."""
    data = federation(cases.build(name, federation("labels")).needs[0])
    numbers = jax.tree.map(
        lambda _: jax.ShapeDtypeStruct((), jnp.float32, weak_type=True),
        cases.traceable_numbers(name),
    )

    def train(numbers: dict[str, jax.Array], key: jax.Array) -> tuple[ServerState, Any]:
        return in_one_scan(*in_chunks_with_padding(name, data, **numbers))(key)

    _, infos = jax.eval_shape(train, numbers, key())
    shapes = {
        one.times.shape[:1] if isinstance(one, federated.Count) else one.shape
        for one in infos.values()
    }
    assert infos.keys() >= COMMON and shapes == {(ROUNDS,)}


@programs_of_their_own(quick={"fedavg"})
def test_keys_placement_and_padding_do_not_matter(case: Case) -> None:
    """Two keys at once, in chunks and with padding: one program for all."""
    train = in_one_scan(*in_chunks_with_padding(case.name, case.data))
    states, infos = jax.device_get(jax.jit(jax.vmap(train))(two_keys()))
    infos = federated.to_numbers(infos)
    for place, seed in enumerate((1, 2)):
        alone, expected = rerun(case, case.data, seed)
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf, at=place: leaf[at], states.params),
            alone.params,
            rtol=1e-5,
            atol=1e-5,
        )
        mine = [
            {name: value[place, number] for name, value in infos.items()}
            for number in range(ROUNDS)
        ]
        infos_close(mine, expected, 1e-5)


@programs_of_their_own(cases.MECHANISMS)
def test_lanes_on_two_devices_train_every_client_as_if_alone(case: Case) -> None:
    """Six clients of 1 to 14 examples: three per device in two lanes, of which one takes two
    clients in turn.
    """
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    other = toy.executed(
        cases.build(case.name, case.data), placement="lanes", chunk_size=2, mesh=mesh
    )
    state, infos = toy.train(other, key(), case.data, ROUNDS)
    chex.assert_trees_all_close(state, case.end, rtol=1e-5, atol=1e-5)
    infos_close(infos, case.infos, 1e-5)


def test_order_of_storage_does_not_matter(case: Case) -> None:
    state, infos = rerun(case, toy.stored_differently(case.data))
    chex.assert_trees_all_equal(state.params, case.end.params)
    infos_close(infos, case.infos, 0.0)


def test_hidden_labels_do_not_leak(case: Case) -> None:
    state, infos = rerun(case, toy.with_hidden_labels_scrambled(case.data))
    chex.assert_trees_all_equal(state, case.end)
    if "pseudo_label_accuracy" in infos[-1]:  # the scrambling is seen where it may be seen
        assert infos[-1]["pseudo_label_accuracy"] != case.infos[-1]["pseudo_label_accuracy"]


def test_resume_is_bit_exact(case: Case, tmp_path: Any) -> None:
    half, _ = toy.run(case.round, key(), case.start, case.data, ROUNDS // 2)
    Checkpoints(tmp_path).save(ROUNDS // 2, half)
    number, restored, _ = Checkpoints(tmp_path).restore(
        jax.eval_shape(case.method.init, key(), case.data)
    )
    assert number == ROUNDS // 2
    resumed, infos = toy.run(case.round, key(), restored, case.data, ROUNDS - number)
    chex.assert_trees_all_equal(resumed, case.end)
    infos_close(infos, case.infos[number:], 0.0)
    assert len(case.traces) == 1


def test_learns_a_separable_problem(case: Case) -> None:
    state, _ = toy.run(case.round, key(), case.end, case.data, 12)
    predictions = case.predict(state, case.data.inputs)
    chosen = np.argmax(predictions, axis=1)[case.data.test_index]
    assert np.mean(chosen == case.data.labels[case.data.test_index]) > 0.8  # chance: 1/3


def test_predictions_are_normalized_log_probabilities(case: Case) -> None:
    predictions = case.predict(case.end, case.data.inputs)
    assert predictions.shape == (case.data.inputs.shape[0], case.data.num_classes)
    np.testing.assert_allclose(np.exp(predictions).sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("client", [0, 5])  # 0 owns row 0 of the arrays, which padding points to
def test_a_client_full_of_nan_is_as_good_as_absent_and_leaves_the_log_finite(
    case: Case, client: int
) -> None:
    broken, infos = rerun(case, toy.with_broken_client(case.data, client))
    absent, expected = rerun(case, toy.without(case.data, client))
    assert [info["dropped_clients"] for info in infos] == [
        float(n < case.first_rounds) for n in range(ROUNDS)
    ]
    assert [info["dropped_clients"] for info in expected] == [0.0] * ROUNDS
    chex.assert_tree_all_finite(broken)
    chex.assert_trees_all_close(broken.params, absent.params, rtol=1e-6, atol=1e-6)
    for info, other in zip(infos, expected, strict=True):
        assert all(math.isfinite(info[name]) for name in COMMON)
        np.testing.assert_allclose(info["loss"], other["loss"], rtol=1e-5)
        for name in info.keys() & PSEUDO_LABELS:
            assert math.isfinite(info[name]) == math.isfinite(other[name]), name


def test_one_labelled_example_in_the_whole_federation(case: Case) -> None:
    state, infos = rerun(case, toy.weak_federation(case.kind, labelled=(0, 0, 0, 1, 0, 0)))
    chex.assert_tree_all_finite(state)
    labels_only_first = (
        "warmup_rounds" in case.declared.settings or not case.method.trains_unlabelled
    )
    if case.kind == "labels" and labels_only_first:
        assert infos[0]["clients"] == 1
    assert all(info["local_steps"] >= 2 and math.isfinite(info["loss"]) for info in infos)


def test_no_labels_anywhere_changes_nothing_or_stays_finite(case: Case) -> None:
    data = toy.without_knowledge(case.data)
    state, infos = rerun(case, data)
    chex.assert_tree_all_finite(state)
    assert [info["dropped_clients"] for info in infos] == [0.0] * ROUNDS
    if not case.declared.learns_without_labels:
        chex.assert_trees_all_equal(state.params, case.init(key(), data).params)


def fits(case: Case, optimizer: FederatedOptimizer) -> None:
    method = cases.build(case.name, case.data, federated_optimizer=optimizer)
    first = jax.eval_shape(method.init, key(), case.data)
    after, info = jax.eval_shape(method.round, key(), first, case.data)
    chex.assert_trees_all_equal_shapes_and_dtypes(first, after)
    assert info.keys() == case.infos[0].keys()


def test_a_federated_optimizer_fits(case: Case) -> None:
    """The methods take the optimizers in turn."""
    fits(case, OPTIMIZERS[sorted(OPTIMIZERS)[METHODS.index(case.name) % len(OPTIMIZERS)]])


@programs_of_their_own()
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_federated_optimizer_fits(case: Case, name: str) -> None:
    fits(case, OPTIMIZERS[name])


@programs_of_their_own(cases.MECHANISMS, quick={"fedavg"})
def test_a_server_side_optimizer_trains(case: Case) -> None:
    method = cases.build(case.name, case.data, federated_optimizer=OPTIMIZERS["fedadam"])
    state, infos = toy.train(method, key(), case.data, ROUNDS)
    chex.assert_tree_all_finite(state)
    assert loss_on_labels(infos[-1]) < loss_on_labels(infos[1])


@functools.cache
def federated_averaging(second_head: bool) -> tuple[Any, Any]:
    """Parameters after one and after two rounds of federated averaging on labels, for a network
    of one head or two.
    """
    like = "fedsiam" if second_head else "fedavg"
    plain = methods.build("fedavg", cases.setup(like, federation("labels")))
    one_round = jax.jit(plain.round)
    start = jax.jit(plain.init)(key(), federation("labels"))
    one, _ = toy.run(one_round, key(), start, federation("labels"), 1)
    two, _ = toy.run(one_round, key(), one, federation("labels"), 1)
    return one.params, two.params


def begins_with_labels(name: str) -> bool:
    """Whether a method has a first stage, and of class labels: FedPL's is of the majority labels
    of sets.
    """
    return (
        "warmup_rounds" in methods.settings(name)
        and cases.build(name, federation("labels")).needs[0] == "labels"
    )


@programs_of_their_own(list(filter(begins_with_labels, METHODS)), quick=cases.MECHANISMS)
def test_first_stage_is_labels_only_federated_averaging(case: Case) -> None:
    one, two = federated_averaging(bool(case.declared.model))
    first, _ = toy.run(case.round, key(), case.start, case.data, 1)
    chex.assert_trees_all_equal(first.params, one)
    second, _ = toy.run(case.round, key(), first, case.data, 1)
    assert float(optax.tree.norm(optax.tree.sub(second.params, two))) > 1e-4
