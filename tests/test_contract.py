"""The contract of DESIGN.md section 9: one suite over every registered method.

Every method trains the toy federation of the kind that it learns from, with one round of its first stage if it has two,
so that both stages run in one compiled program. A test that needs other data takes data of the same shapes, and no new
compilation.
"""

import dataclasses
import math
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
from fedjax_ssl.federated import FederatedOptimizer, Method, ServerState, Setup
from fedjax_ssl.models import count_parameters
from fedjax_ssl.tracking import Checkpoints
from tests import toy

ROUNDS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "xclp": {"num_bits": 256, "num_neighbors": 3},
    "per_client_lp": {"num_neighbors": 3},
    "fedsiam": {"consistency_weight": 10.0},  # the default is too strong for this learning rate
    "semifl": {"threshold": 0.5},  # some examples are confident from the first round on
    "fedmt": {"threshold": 0.5, "warm_start": False},
    "fedtrans": {"coarse_rounds": 1},
    "mixed": {"num_bits": 256, "num_neighbors": 3},
}
OPTIMIZERS: dict[str, FederatedOptimizer] = {  # beside fedavg, which all other tests use
    "fedprox": federated.fedprox(0.1),
    "scaffold": federated.scaffold(),
    "fednova": federated.fednova(mu=0.1),
    "fedavgm": federated.fedopt(optax.sgd(1.0, momentum=0.5)),
    "fedadam": federated.fedopt(optax.adam(0.03, b1=0.9, b2=0.99, eps=1e-3)),
    "fedyogi": federated.fedopt(optax.yogi(0.03, b1=0.9, b2=0.99, eps=1e-3)),
}
NOTHING_WITHOUT_LABELS = {
    "fedavg",
    "xclp",
    "per_client_lp",
    "fedsiam",
    "fedul",
    "fedpl",
    "fedllp",
    "fedllp_vat",
    "protofssl",
}
# Together these keep local state, state at the server and targets that are sent, send back more than a model, use weak
# labels and train the server: enough for what costs a program per method and depends on the engine alone.
EVERY_MECHANISM = {"fedavg", "xclp", "fedsiam", "fedllp", "fedmt", "protofssl"}
AFTER_ONE_ROUND = {"protofssl"}  # their pseudo-labels come from what clients sent in the round before
ROUNDS_WITH_CLIENTS = {"single": 0, "fedtrans": 1}  # after them the server trains alone
COMMON = {"loss", "clients", "local_steps", "examples", "dropped_clients", "bytes_down", "bytes_up"}
PSEUDO_LABELS = {"pseudo_label_accuracy", "pseudo_label_coverage", "confidence_correct", "confidence_wrong"}


class Case(NamedTuple):
    """One method on the toy federation, compiled, and its first rounds."""

    name: str
    kind: str  # of federation, see `toy.weak_federation`
    data: FederatedData
    method: Method
    init: Any
    round: Any
    traces: list[int]  # one entry per time that `round` was traced
    start: ServerState
    end: ServerState  # after ROUNDS rounds with KEY
    infos: list[dict[str, float]]


def key() -> jax.Array:
    return jax.random.key(1)


def settings(name: str) -> dict[str, Any]:
    warmup = {"warmup_rounds": 1} if "warmup_rounds" in methods.settings(name) else {}
    return {**OPTIONS.get(name, {}), **warmup}


def setup_for(name: str, data: FederatedData, **changes: Any) -> Setup:
    options = {"aux_head": True} if name in ("fedsiam", "fedtrans") else {}
    return toy.setup(data, model_options=options, augment=toy.jitter, **{"placement": "sequential", **changes})


def build(name: str, data: FederatedData, **changes: Any) -> Method:
    return methods.build(name, setup_for(name, data, **changes), **settings(name))


@pytest.fixture(scope="module", params=sorted(methods.available()))
def case(request: pytest.FixtureRequest) -> Case:
    kind = build(request.param, toy.federation()).needs[0]
    data = toy.weak_federation(kind)
    method = build(request.param, data)
    traces: list[int] = []

    def counted(*arguments: Any) -> Any:
        traces.append(1)
        return method.round(*arguments)

    init, one_round = jax.jit(method.init), jax.jit(counted)
    start = init(key(), data)
    end, infos = toy.run(one_round, key(), start, data, ROUNDS)
    return Case(request.param, kind, data, method, init, one_round, traces, start, end, infos)


def rerun(case: Case, data: FederatedData, seed: int = 1) -> tuple[ServerState, list[dict[str, float]]]:
    chosen = jax.random.key(seed)
    return toy.run(case.round, chosen, case.init(chosen, data), data, ROUNDS)


def loss_on_labels(info: dict[str, float]) -> float:
    """The server's loss where it trains: that of clients is of another, growing set of examples in every round."""
    return info.get("server_loss", info["loss"])


def infos_close(left: list[dict[str, float]], right: list[dict[str, float]], tolerance: float) -> None:
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_state_keeps_structure_shapes_and_types_and_rounds_compile_once(case: Case) -> None:
    chex.assert_trees_all_equal_structs(case.start, case.end)
    chex.assert_trees_all_equal_shapes_and_dtypes(case.start, case.end)
    assert int(case.end.round) == ROUNDS
    assert len(case.traces) == 1


def test_every_round_reports_the_common_metrics(case: Case) -> None:
    two_stages = "warmup_rounds" in settings(case.name)
    first_rounds = ROUNDS_WITH_CLIENTS.get(case.name, ROUNDS)
    for number, info in enumerate(case.infos):
        assert info.keys() >= COMMON
        assert all(math.isfinite(info[name]) for name in COMMON)
        undefined = {name for name, value in info.items() if not math.isfinite(value)}
        if number == 0 and two_stages:
            assert undefined == info.keys() & PSEUDO_LABELS, "stage 1 makes no pseudo-labels"
        elif number == 0 and case.name in AFTER_ONE_ROUND:
            assert undefined == PSEUDO_LABELS - {"pseudo_label_coverage"} and info["pseudo_label_coverage"] == 0
        elif number < first_rounds < ROUNDS:
            assert undefined == {"server_loss", "server_dropped"}, "the server does not train yet"
        else:
            assert undefined <= {"confidence_correct", "confidence_wrong"}, "none is right, or none is wrong"
        assert (number < first_rounds) <= info["clients"] <= case.data.num_clients
        assert info["dropped_clients"] == 0
        assert info["local_steps"] <= info["examples"]
        one_model = 4 * count_parameters(case.start.params)
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


def test_placement_and_padding_do_not_matter(case: Case) -> None:
    """Six clients in chunks of four, empty clients at the end and larger bounds: one program for both questions."""
    data = toy.padded(case.data)
    size = case.data.num_clients
    other = build(case.name, data, cohort_size=size, placement="chunked", chunk_size=4)
    state, infos = toy.train(other, key(), data, ROUNDS)
    chex.assert_trees_all_close(state.params, case.end.params, rtol=1e-5, atol=1e-5)
    infos_close(infos, case.infos, 1e-5)


@pytest.mark.thorough
def test_lanes_on_two_devices_train_every_client_as_if_alone(case: Case) -> None:
    """Six clients of 1 to 14 examples: three per device in two lanes, of which one takes two clients in turn."""
    if case.name not in EVERY_MECHANISM:
        pytest.skip("it depends on the engine alone: run for one method of each mechanism")
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    other = build(case.name, case.data, placement="lanes", chunk_size=2, mesh=mesh)
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


def test_vmapped_keys_equal_separate_runs(case: Case) -> None:
    def train(seed_key: jax.Array) -> ServerState:
        first = case.method.init(seed_key, case.data)
        return jax.lax.scan(
            lambda state, _: (case.method.round(seed_key, state, case.data)[0], None), first, length=ROUNDS
        )[0]

    together = jax.jit(jax.vmap(train))(jnp.stack([jax.random.key(1), jax.random.key(2)]))
    for place, seed in enumerate((1, 2)):
        alone, _ = rerun(case, case.data, seed)
        mine = jax.tree.map(lambda leaf, at=place: leaf[at], together)
        # float32 after four rounds; batched matrix products add in another order
        chex.assert_trees_all_close(mine.params, alone.params, rtol=1e-4, atol=1e-5)


def test_resume_is_bit_exact(case: Case, tmp_path: Any) -> None:
    half, _ = toy.run(case.round, key(), case.start, case.data, ROUNDS // 2)
    Checkpoints(tmp_path).save(ROUNDS // 2, half)
    number, restored, _ = Checkpoints(tmp_path).restore(jax.eval_shape(case.method.init, key(), case.data))
    assert number == ROUNDS // 2
    resumed, infos = toy.run(case.round, key(), restored, case.data, ROUNDS - number)
    chex.assert_trees_all_equal(resumed, case.end)
    infos_close(infos, case.infos[number:], 0.0)
    assert len(case.traces) == 1


def test_learns_a_separable_problem(case: Case) -> None:
    state, _ = toy.run(case.round, key(), case.end, case.data, 12)
    predictions = case.method.predict(state, case.data.inputs)
    chosen = np.argmax(predictions, axis=1)[case.data.test_index]
    assert np.mean(chosen == case.data.labels[case.data.test_index]) > 0.8  # chance: 1/3


def test_predictions_are_normalized_log_probabilities(case: Case) -> None:
    predictions = case.method.predict(case.end, case.data.inputs)
    assert predictions.shape == (case.data.inputs.shape[0], case.data.num_classes)
    np.testing.assert_allclose(np.exp(predictions).sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("client", [0, 5])  # 0 owns row 0 of the arrays, which padding points to
def test_a_client_full_of_nan_is_as_good_as_absent(case: Case, client: int) -> None:
    broken, infos = rerun(case, toy.with_broken_client(case.data, client))
    absent, expected = rerun(case, toy.without(case.data, client))
    first_rounds = ROUNDS_WITH_CLIENTS.get(case.name, ROUNDS)
    assert [info["dropped_clients"] for info in infos] == [float(number < first_rounds) for number in range(ROUNDS)]
    assert [info["dropped_clients"] for info in expected] == [0.0] * ROUNDS
    chex.assert_tree_all_finite(broken)
    chex.assert_trees_all_close(broken.params, absent.params, rtol=1e-6, atol=1e-6)


def test_a_client_full_of_nan_leaves_the_log_finite(case: Case) -> None:
    _, infos = rerun(case, toy.with_broken_client(case.data, 0))
    _, expected = rerun(case, toy.without(case.data, 0))
    for info, other in zip(infos, expected, strict=True):
        assert all(math.isfinite(info[name]) for name in COMMON)
        np.testing.assert_allclose(info["loss"], other["loss"], rtol=1e-5)
        for name in info.keys() & PSEUDO_LABELS:
            assert math.isfinite(info[name]) == math.isfinite(other[name]), name


def test_one_labelled_example_in_the_whole_federation(case: Case) -> None:
    state, infos = rerun(case, toy.weak_federation(case.kind, labelled=(0, 0, 0, 1, 0, 0)))
    chex.assert_tree_all_finite(state)
    if case.kind == "labels":
        assert infos[0]["clients"] == 1
    assert all(info["local_steps"] >= 2 and math.isfinite(info["loss"]) for info in infos)


def test_no_labels_anywhere_changes_nothing_or_stays_finite(case: Case) -> None:
    data = toy.without_knowledge(case.data)
    state, infos = rerun(case, data)
    chex.assert_tree_all_finite(state)
    assert [info["dropped_clients"] for info in infos] == [0.0] * ROUNDS
    if case.name in NOTHING_WITHOUT_LABELS:
        chex.assert_trees_all_equal(state.params, case.init(key(), data).params)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_federated_optimizer_fits(case: Case, name: str) -> None:
    method = build(case.name, case.data, federated_optimizer=OPTIMIZERS[name])
    first = jax.eval_shape(method.init, key(), case.data)
    after, info = jax.eval_shape(method.round, key(), first, case.data)
    chex.assert_trees_all_equal_shapes_and_dtypes(first, after)
    assert info.keys() == case.infos[0].keys()


def test_a_server_side_optimizer_trains(case: Case) -> None:
    if case.name not in EVERY_MECHANISM:
        pytest.skip("it depends on the engine alone: run for one method of each mechanism")
    method = build(case.name, case.data, federated_optimizer=OPTIMIZERS["fedadam"])
    state, infos = toy.train(method, key(), case.data, ROUNDS)
    chex.assert_tree_all_finite(state)
    assert loss_on_labels(infos[-1]) < loss_on_labels(infos[1])


def test_first_stage_is_labels_only_federated_averaging(case: Case) -> None:
    if case.kind != "labels" or "warmup_rounds" not in settings(case.name):
        pytest.skip("only for methods that begin with rounds of federated averaging on labels")
    plain = methods.build("fedavg", setup_for(case.name, case.data))
    first, _ = toy.run(case.round, key(), case.start, case.data, 1)
    expected, _ = toy.train(plain, key(), case.data, 2)
    one, _ = toy.train(plain, key(), case.data, 1)
    chex.assert_trees_all_equal(first.params, one.params)
    second, _ = toy.run(case.round, key(), first, case.data, 1)
    assert float(optax.tree.norm(optax.tree.sub(second.params, expected.params))) > 1e-4


@pytest.mark.parametrize("name", ["xclp", "per_client_lp"])
def test_a_cohort_without_any_target_leaves_the_model_as_it_is(name):
    """XCLP section 8: with weight decay, training on nothing would still shrink the model."""
    data = toy.federation()
    nothing = jnp.zeros_like(data.num_labelled)
    data = dataclasses.replace(data, observed=jnp.full_like(data.observed, -1), num_labelled=nothing)
    options = {"unlabelled_clients": True} if name == "per_client_lp" else {}
    run = toy.setup(data, local_optimizer=federated.local_optimizer("sgd", weight_decay=0.1))
    method = methods.build(name, run, **OPTIONS[name], **options)
    start = method.init(jax.random.key(0), data)
    state, info = jax.jit(method.round)(jax.random.key(0), start, data)
    chex.assert_trees_all_equal(state.params, start.params)
    assert info["local_steps"] == 0 and info["pseudo_label_coverage"] == 0
