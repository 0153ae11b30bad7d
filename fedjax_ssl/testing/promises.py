"""The promises of docs/architecture.md that a method keeps, each a check of one trial of it.

A trial is a method on the toy federation of the kind that it learns from, compiled, and its first
rounds. Other data of the same shapes need no new compilation.
"""

import math
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import FederatedOptimizer, Method, Recipe, ServerState
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.models import count_parameters
from fedjax_ssl.testing import toy

ROUNDS = 4
COMMON = {"loss", "clients", "local_steps", "examples", "dropped_clients", "bytes_down", "bytes_up"}
PSEUDO_LABELS = {
    "pseudo_label_accuracy",
    "pseudo_label_coverage",
    "confidence_correct",
    "confidence_wrong",
}
Infos = list[dict[str, float]]


class Special(NamedTuple):
    """Facts in which a method differs from most methods."""

    labels_first: bool = False  # its first round trains on labels alone, in a stage of its own
    clients_train: int = ROUNDS  # rounds in which clients train, the server alone in all others
    first_targets: int = 0  # rounds at the start in which pseudo-labels are possible and none
    never_sent: tuple[str, ...] = ()  # parameter groups that stay where they are
    unsent: int = 0  # numbers of the other groups that stay at the clients, as normalization may
    learns_without_labels: bool = False  # it moves although nobody knows anything of a class


class Build(Protocol):
    """Builds a method for a toy federation; `changes` are fields of its `Setup`."""

    def __call__(self, data: FederatedData, **changes: Any) -> Method: ...


class Trial(NamedTuple):
    """A method on the toy federation, compiled, and its first rounds."""

    build: Build
    special: Special
    kind: str  # kind of federation, see `toy.weak_federation`
    data: FederatedData
    method: Method
    init: Any
    round: Any
    predict: Any
    traces: list[int]  # one entry per time that `round` was traced
    start: ServerState
    end: ServerState  # after ROUNDS rounds with the key of `key()`
    infos: Infos

    def again(self, data: FederatedData, seed: int = 1) -> tuple[ServerState, Infos]:
        """Train on other data of the same shapes, or with another key."""
        key = jax.random.key(seed)
        return toy.run(self.round, key, self.init(key, data), data, ROUNDS)


def key() -> jax.Array:
    """Return the key of a trial."""
    return jax.random.key(1)


def trial_of(build: Build, special: Special, data_of: Callable = toy.weak_federation) -> Trial:
    """Compile a method and train its first rounds."""
    kind = build(data_of("labels")).recipe.needs.kinds[0]
    data = data_of(kind)
    method = build(data)
    traces: list[int] = []

    def counted(*arguments: Any) -> Any:
        traces.append(1)
        return method.round(*arguments)

    init = jax.jit(method.init)
    one_round = jax.jit(counted)
    start = init(key(), data)
    end, infos = toy.run(one_round, key(), start, data, ROUNDS)
    predict = jax.jit(method.predict)
    return Trial(
        build, special, kind, data, method, init, one_round, predict, traces, start, end, infos
    )


def check_method(
    method: str | Callable[..., Recipe | Method], special: Special | None = None, **settings: Any
) -> None:
    """Check that a method keeps the promises that the engine and its users rely on.

    It is trained on a small federation of the kind that it needs, some fifteen times; expect half
    a minute.

    Args:
        method: a function from a `Setup` to a `Recipe`, or a name as configs write it.
        special: what the method does otherwise than most.
        **settings: the method's own.

    Raises:
        AssertionError: a promise is broken; says which one, and how.

    Example:
        >>> from fedjax_ssl.testing import check_method
        >>> def careful(setup: fs.Setup) -> fs.Recipe:
        ...     "FedAvg with half the learning rate."
        ...     rate = setup.learning_rate
        ...     slower = setup._replace(learning_rate=lambda number: 0.5 * rate(number))
        ...     return fs.methods.recipe("fedavg", slower)
        >>> check_method(careful)
    """

    def build(data: FederatedData, **changes: Any) -> Method:
        setup = toy.setup(data, augment=toy.jitter, **changes)
        if isinstance(method, str):
            return methods.build(method, setup, **settings)
        made = method(setup, **settings)
        return made if isinstance(made, Method) else federated.build(made)

    trial = trial_of(build, special or Special())
    for promise in (*PROMISES, *PROGRAMS):
        try:
            promise(trial)
        except AssertionError as error:
            words = promise.__name__.replace("_", " ")
            raise AssertionError(f"a promise is broken: {words}. {error}") from error


def infos_close(left: Infos, right: Infos, tolerance: float) -> None:
    """Assert that rounds report the same numbers."""
    for one, other in zip(left, right, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(
                one[name], other[name], rtol=tolerance, atol=tolerance, err_msg=name
            )


def loss_on_labels(info: dict[str, float]) -> float:
    """Return the server's loss if it trains, because the clients' loss is over another, growing set
    of examples in every round.
    """
    return info.get("server_loss", info["loss"])


def state_keeps_its_types_and_rounds_compile_once(trial: Trial) -> None:
    """Keep what checkpoints, scans and resumed runs rely on."""
    chex.assert_trees_all_equal_structs(trial.start, trial.end)
    chex.assert_trees_all_equal_shapes_and_dtypes(trial.start, trial.end)
    assert int(trial.end.round) == ROUNDS
    assert len(trial.traces) == 1


def every_round_reports_the_common_metrics_and_the_loss_falls(trial: Trial) -> None:
    """Report whole numbers of bytes, and at least those of the model."""
    special = trial.special
    kept = special.never_sent
    sent = {group: one for group, one in trial.start.params.items() if group not in kept}
    one_model = 4 * (count_parameters(sent) - special.unsent)
    for number, info in enumerate(trial.infos):
        assert info.keys() >= COMMON
        assert info["dropped_clients"] == 0, (
            f"the loss or the update of {info['dropped_clients']:g} clients is not finite in round "
            f"{number + 1}"
        )
        broken = {name: info[name] for name in COMMON if not math.isfinite(info[name])}
        assert not broken, f"not finite in round {number + 1}: {broken}"
        undefined = {name for name, value in info.items() if not math.isfinite(value)}
        if number == 0 and special.labels_first:
            operations = {name for name in info if name.startswith("operations_")}
            assert undefined == (info.keys() & PSEUDO_LABELS) | operations, (
                "stage 1 makes no graph, no pseudo-labels"
            )
        elif number < special.first_targets:
            undefined = {name.rpartition("/")[2] for name in undefined}
            assert undefined == PSEUDO_LABELS - {"pseudo_label_coverage"}
            coverage = "pseudo_label_coverage"
            assert min(info[name] for name in info if name.endswith(coverage)) == 0
        elif number < special.clients_train < ROUNDS:
            assert undefined == {"server_loss", "server_dropped"}, "the server does not train yet"
        else:
            undefined = {name.rpartition("/")[2] for name in undefined}
            assert undefined <= {"confidence_correct", "confidence_wrong"}, (
                "none is right, or none is wrong"
            )
        assert (number < special.clients_train) <= info["clients"] <= trial.data.num_clients
        assert info["local_steps"] <= info["examples"]
        for direction in ("bytes_down", "bytes_up"):
            assert info[direction] >= info["clients"] * one_model
            assert info[direction] == round(info[direction])
    early, late = (loss_on_labels(trial.infos[number]) for number in (1, -1))
    assert late < early, f"the loss is {early:.4g} in round 2 and {late:.4g} in round {ROUNDS}"


def same_key_same_bits_other_key_other_result(trial: Trial) -> None:
    """Take all randomness from the run's key."""
    again, infos = trial.again(trial.data)
    chex.assert_trees_all_equal(again, trial.end)
    infos_close(infos, trial.infos, 0.0)
    other, _ = trial.again(trial.data, seed=2)
    assert float(optax.tree.norm(optax.tree.sub(other.params, trial.end.params))) > 1e-3


def order_of_storage_does_not_matter(trial: Trial) -> None:
    """Let identities and places in a client's table decide, not rows."""
    state, infos = trial.again(toy.stored_differently(trial.data))
    chex.assert_trees_all_equal(state.params, trial.end.params)
    infos_close(infos, trial.infos, 0.0)


def hidden_labels_do_not_leak(trial: Trial) -> None:
    """Show true labels of unlabelled examples to the log alone."""
    state, infos = trial.again(toy.with_hidden_labels_scrambled(trial.data))
    chex.assert_trees_all_equal(state, trial.end)
    if "pseudo_label_accuracy" in infos[-1]:  # the scrambling is seen where it may be seen
        assert infos[-1]["pseudo_label_accuracy"] != trial.infos[-1]["pseudo_label_accuracy"]


def resume_is_bit_exact(trial: Trial) -> None:
    """Go on from a checkpoint, which has all that the next rounds need."""
    half, _ = toy.run(trial.round, key(), trial.start, trial.data, ROUNDS // 2)
    with tempfile.TemporaryDirectory() as folder:
        Checkpoints(folder).save(ROUNDS // 2, half)
        shapes = jax.eval_shape(trial.method.init, key(), trial.data)
        number, restored, _ = Checkpoints(folder).restore(shapes)
    assert number == ROUNDS // 2
    resumed, infos = toy.run(trial.round, key(), restored, trial.data, ROUNDS - number)
    chex.assert_trees_all_equal(resumed, trial.end)
    infos_close(infos, trial.infos[number:], 0.0)
    assert len(trial.traces) == 1


def a_separable_problem_is_learned(trial: Trial) -> None:
    """Get more than 80 % of the test examples right after 16 rounds; chance is a third."""
    state, _ = toy.run(trial.round, key(), trial.end, trial.data, 12)
    chosen = np.argmax(trial.predict(state, trial.data.inputs), axis=1)
    test = trial.data.test_index
    assert np.mean(chosen[test] == trial.data.labels[test]) > 0.8


def predictions_are_normalized_log_probabilities(trial: Trial) -> None:
    """Return a row per input and a column per class."""
    predictions = trial.predict(trial.end, trial.data.inputs)
    assert predictions.shape == (trial.data.inputs.shape[0], trial.data.num_classes)
    np.testing.assert_allclose(np.exp(predictions).sum(axis=1), 1.0, rtol=1e-5)


def a_client_full_of_nan_is_as_good_as_absent(trial: Trial, client: int = 0) -> None:
    """Leave the log finite, too. Client 0 owns row 0 of the arrays, to which padding points."""
    broken, infos = trial.again(toy.with_broken_client(trial.data, client))
    absent, expected = trial.again(toy.without(trial.data, client))
    assert [info["dropped_clients"] for info in infos] == [
        float(number < trial.special.clients_train) for number in range(ROUNDS)
    ]
    assert [info["dropped_clients"] for info in expected] == [0.0] * ROUNDS
    chex.assert_tree_all_finite(broken)
    chex.assert_trees_all_close(broken.params, absent.params, rtol=1e-6, atol=1e-6)
    for info, other in zip(infos, expected, strict=True):
        assert all(math.isfinite(info[name]) for name in COMMON)
        np.testing.assert_allclose(info["loss"], other["loss"], rtol=1e-5)
        for name in info.keys() & PSEUDO_LABELS:
            assert math.isfinite(info[name]) == math.isfinite(other[name]), name


def one_labelled_example_in_the_whole_federation_is_enough_to_run(trial: Trial) -> None:
    """Keep losses finite, and train somebody."""
    data = toy.weak_federation(trial.kind, labelled=(0, 0, 0, 1, 0, 0))
    state, infos = trial.again(data)
    chex.assert_tree_all_finite(state)
    labels_only = trial.special.labels_first or not trial.method.recipe.trains_unlabelled
    if trial.kind == "labels" and labels_only:
        assert infos[0]["clients"] == 1
    for number, info in enumerate(infos):
        assert info["local_steps"] >= 2, f"{info['local_steps']} local steps in round {number}"
        assert math.isfinite(info["loss"]), f"the loss of round {number} is {info['loss']}"


def no_labels_anywhere_changes_nothing_or_stays_finite(trial: Trial) -> None:
    """Drop nobody."""
    data = toy.without_knowledge(trial.data)
    state, infos = trial.again(data)
    chex.assert_tree_all_finite(state)
    assert [info["dropped_clients"] for info in infos] == [0.0] * ROUNDS
    if not trial.special.learns_without_labels:
        chex.assert_trees_all_equal(state.params, trial.init(key(), data).params)


def a_federated_optimizer_fits(trial: Trial, optimizer: FederatedOptimizer | None = None) -> None:
    """Trace rounds with another optimizer; SCAFFOLD by default, which keeps a state at clients."""
    optimizer = optimizer or federated.scaffold()
    method = trial.build(trial.data, federated_optimizer=optimizer)
    first = jax.eval_shape(method.init, key(), trial.data)
    after, info = jax.eval_shape(method.round, key(), first, trial.data)
    chex.assert_trees_all_equal_shapes_and_dtypes(first, after)
    assert info.keys() == trial.infos[0].keys()


def in_one_scan(
    method: Method, data: FederatedData
) -> Callable[[jax.Array], tuple[ServerState, Any]]:
    """Return a run from the start as a function of its key; infos have a leading axis of rounds."""

    def train(seed_key: jax.Array) -> tuple[ServerState, Any]:
        first = method.init(seed_key, data)
        return jax.lax.scan(
            lambda state, _: method.round(seed_key, state, data), first, length=ROUNDS
        )

    return train


def in_chunks_with_padding(build: Build, data: FederatedData) -> tuple[Method, FederatedData]:
    """Build the method for six clients in chunks of four, with empty clients at the end and larger
    bounds.
    """
    more = toy.padded(data)
    method = build(more, cohort_size=data.num_clients)
    return federated.execute(method, federated.Execution("chunked", 4)), more


def keys_placement_and_padding_do_not_matter(trial: Trial) -> None:
    """Train with two keys at once, in chunks and with padding: one program for all."""
    train = in_one_scan(*in_chunks_with_padding(trial.build, trial.data))
    keys = jnp.stack([jax.random.key(1), jax.random.key(2)])
    states, infos = jax.device_get(jax.jit(jax.vmap(train))(keys))
    infos = federated.to_numbers(infos)
    for place, seed in enumerate((1, 2)):
        alone, expected = trial.again(trial.data, seed)
        mine = jax.tree.map(lambda leaf, at=place: leaf[at], states.params)
        chex.assert_trees_all_close(mine, alone.params, rtol=1e-5, atol=1e-5)
        of_seed = [
            {name: value[place, number] for name, value in infos.items()}
            for number in range(ROUNDS)
        ]
        infos_close(of_seed, expected, 1e-5)


def lanes_train_every_client_as_if_alone(trial: Trial) -> None:
    """Train six clients of 1 to 14 examples, three per device in two lanes, of which one takes two
    clients in turn; on one device where there are no two.
    """
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    method = trial.build(trial.data)
    execution = federated.Execution(placement="lanes", chunk_size=2, mesh=mesh)
    other = jax.jit(federated.execute(method, execution).round)
    state, infos = toy.run(other, key(), trial.init(key(), trial.data), trial.data, ROUNDS)
    chex.assert_trees_all_close(state, trial.end, rtol=1e-5, atol=1e-5)
    infos_close(infos, trial.infos, 1e-5)


Promise = Callable[[Trial], None]
PROMISES: tuple[Promise, ...] = (  # on the compiled trial
    state_keeps_its_types_and_rounds_compile_once,
    every_round_reports_the_common_metrics_and_the_loss_falls,
    same_key_same_bits_other_key_other_result,
    order_of_storage_does_not_matter,
    hidden_labels_do_not_leak,
    resume_is_bit_exact,
    a_separable_problem_is_learned,
    predictions_are_normalized_log_probabilities,
    a_client_full_of_nan_is_as_good_as_absent,
    one_labelled_example_in_the_whole_federation_is_enough_to_run,
    no_labels_anywhere_changes_nothing_or_stays_finite,
    a_federated_optimizer_fits,
)
PROGRAMS: tuple[Promise, ...] = (  # each compiles the method once more
    keys_placement_and_padding_do_not_matter,
    lanes_train_every_client_as_if_alone,
)
