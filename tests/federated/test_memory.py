"""How clients are placed and how many train at once: from shapes, a memory limit and a backend's name."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated, methods, models
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import all_clients
from fedjax_ssl.federated.memory import (
    CLIENTS_AT_ONCE,
    Choice,
    Need,
    choose,
    device_memory,
    step_counts,
    tree_bytes,
)
from tests import toy

THOROUGH = pytest.mark.thorough


def need(placement: str) -> Need:
    return Need(per_client=10, kept=500 if placement == "lanes" else 100)


def refuse(placement: str) -> Need:
    raise AssertionError(f"no estimate is needed for {placement}")


@pytest.mark.parametrize(
    ("placement", "given", "backend", "spread", "limit", "expected"),
    [
        ("auto", None, "cpu", 3.0, 2000, Choice("sequential", 1)),
        ("auto", 5, "gpu", 3.0, 2000, Choice("lanes", 5)),
        ("auto", None, "gpu", None, None, Choice("chunked", CLIENTS_AT_ONCE)),
        ("auto", None, "gpu", 1.0, 1000, Choice("chunked", 48, 10, 700)),
        ("auto", None, "gpu", 1.2, 500, Choice("chunked", 30, 10, 300)),
        ("auto", None, "gpu", 3.0, 1000, Choice("chunked", 48, 10, 700)),  # all fit, so that nobody waits
        ("auto", None, "tpu", 1.5, 700, Choice("lanes", 6, 10, 60)),
        ("lanes", None, "gpu", 1.0, 200, Choice("lanes", 1, 10, 0)),  # too little: the device has to say so
        ("chunked", None, "cpu", None, None, Choice("chunked", CLIENTS_AT_ONCE)),
        ("vmap", None, "gpu", None, 100, Choice("vmap", 48)),
        ("sequential", 4, "gpu", None, 100, Choice("sequential", 1)),
    ],
)
def test_placement_and_clients_at_once_follow_from_sizes_and_memory(
    placement: str, given: int | None, backend: str, spread: float | None, limit: int | None, expected: Choice
) -> None:
    estimate = need if expected.bytes_per_client else refuse
    assert choose(placement, given, 48, backend=backend, spread=spread, limit=limit, estimate=estimate) == expected


def test_there_are_never_more_at_once_than_clients() -> None:
    unknown = choose("chunked", None, 3, backend="cpu", estimate=refuse)
    roomy = choose("lanes", None, 3, backend="gpu", limit=10**9, estimate=need)
    assert unknown.clients_at_once == roomy.clients_at_once == 3


def test_bytes_of_a_tree_come_from_shapes() -> None:
    tree = {"a": jax.ShapeDtypeStruct((3, 2), jnp.float32), "b": jnp.zeros(5, bool), "key": jax.random.key(0)}
    assert tree_bytes(tree) == 24 + 5 + 8


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return toy.federation()


def traced_need(data: FederatedData, placement: str, **changes) -> Need:
    """What the engine's own local training needs: recorded while a round is traced on a device with little memory."""
    found: list[Choice] = []
    method = methods.build("fedavg", toy.setup(data, **changes))
    method = toy.executed(method, placement=placement, memory=10**9, report=found.append)
    jax.eval_shape(method.round, jax.random.key(0), jax.eval_shape(method.init, jax.random.key(0), data), data)
    (choice,) = found
    assert choice.placement == placement and choice.clients_at_once == data.num_clients
    return Need(choice.bytes_per_client or 0, int(0.8 * 10**9) - (choice.limit or 0))


@pytest.mark.thorough
def test_the_estimate_grows_with_the_model_the_optimizer_and_the_batch(data) -> None:
    small = traced_need(data, "chunked")
    model = models.build("mlp", num_classes=data.num_classes, input_shape=data.inputs.shape[1:], hidden=(64,))
    wide = traced_need(data, "chunked", model=model)
    parameters = 4 * (4 * 8 + 8 + 8 * 3 + 3)
    extra = 4 * (4 * 64 + 64 + 64 * 3 + 3) - parameters
    assert small.per_client > 4 * parameters  # progress twice, gradient, update
    assert wide.per_client > small.per_client + 4 * extra
    momentum = traced_need(data, "chunked", local_optimizer=federated.local_optimizer(momentum=0.9))
    assert momentum.per_client >= small.per_client + parameters
    assert traced_need(data, "chunked", batch_size=8).per_client > small.per_client
    # Lanes keep every client's trained state.
    assert traced_need(data, "lanes").kept >= small.kept + data.num_clients * parameters


def test_devices_of_a_mesh_have_a_share_of_the_clients_and_gather_the_results(data) -> None:
    def choice(mesh: Mesh | None) -> Choice:
        found: list[Choice] = []
        how = {"placement": "lanes", "memory": 10**9, "report": found.append, "mesh": mesh}
        method = toy.executed(methods.build("fedavg", toy.setup(data)), **how)
        state = jax.eval_shape(method.init, jax.random.key(0), data)
        jax.eval_shape(method.round, jax.random.key(0), state, data)
        return found[0]

    alone, two = choice(None), choice(Mesh(np.array(jax.devices()[:2]), ("clients",)))
    assert (alone.clients_at_once, two.clients_at_once) == (6, 3)
    assert alone.bytes_per_client == two.bytes_per_client and alone.limit != two.limit


@pytest.mark.thorough
def test_spread_is_that_of_the_steps_a_sampler_takes(data) -> None:
    everyone = jax.device_get(all_clients(data))
    sampler = federated.labelled_epochs(4, 2, data.max_labelled)
    steps = -(-np.array(toy.LABELLED) // 4)
    assert step_counts(sampler, everyone).spread == pytest.approx(steps.max() / steps[steps > 0].mean())
    nobody = toy.without_knowledge(data)
    assert step_counts(sampler, all_clients(nobody)).spread == 1.0


def drawn(num_steps) -> federated.Sampler:
    """One row a step; (key, client, now) -> how many of three steps are taken."""

    def schedule(key, client, now) -> federated.Schedule:
        rows = jnp.zeros((3, 1), jnp.int32)
        return federated.Schedule({"labelled": rows}, {"labelled": rows == 0}, num_steps(key, client, now))

    return federated.Sampler(schedule)


@pytest.mark.parametrize(
    ("sampler", "whole"),
    [
        (drawn(lambda key, client, now: jnp.where(client.num_examples > 0, 3, 0)), True),
        pytest.param(drawn(lambda key, client, now: jnp.minimum(client.num_examples, 3)), False, marks=THOROUGH),
        # Who is left out takes one.
        pytest.param(drawn(lambda key, client, now: jnp.where(client.num_examples > 0, 3, 1)), False, marks=THOROUGH),
        # Another round is another matter.
        pytest.param(drawn(lambda key, client, now: jnp.where(now.number < 9, 3, 2)), False, marks=THOROUGH),
        pytest.param(
            drawn(lambda key, client, now: jnp.where(jax.random.bernoulli(key, 1e-9), 1, 3)), False, marks=THOROUGH
        ),
    ],
)
def test_all_take_the_whole_loop_where_sizes_alone_say_so(data, sampler, whole: bool) -> None:
    counts = step_counts(sampler, all_clients(data))
    assert counts.whole == whole and counts.bound == 3


@pytest.mark.thorough
def test_memory_changes_a_round_by_rounding_only(data) -> None:
    def trained(**how) -> federated.ServerState:
        method = toy.executed(methods.build("fedavg", toy.setup(data)), **how)
        return toy.train(method, jax.random.key(1), data, 1)[0]

    found: list[Choice] = []
    small = 1 << 19  # for what is too small to be followed; four fifths of the memory are planned with
    tight = trained(placement="chunked", memory=12_000 + 5 * small // 4, report=found.append)
    assert 1 < found[0].clients_at_once < data.num_clients
    chex.assert_trees_all_close(tight, trained(), rtol=1e-5, atol=1e-5)


def test_a_cpu_tells_no_memory() -> None:
    assert device_memory() is None


@pytest.mark.thorough
def test_on_an_accelerator_unequal_clients_go_into_lanes(data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for sizes, at_once, placement in ((toy.SIZES, 2, "lanes"), (toy.SIZES, None, "chunked"), ((8,) * 6, 2, "chunked")):
        equal_or_not = toy.federation(sizes=sizes, labelled=sizes)
        found: list[Choice] = []
        everyone = jax.device_get(all_clients(equal_or_not))
        method = methods.build("fedavg", toy.setup(equal_or_not))
        method = toy.executed(method, everyone=everyone, memory=10**8, chunk_size=at_once, report=found.append)
        state = jax.eval_shape(method.init, jax.random.key(0), equal_or_not)
        jax.eval_shape(method.round, jax.random.key(0), state, equal_or_not)
        assert [choice.placement for choice in found] == [placement]
        assert found[0].clients_at_once == (at_once or 6)


@pytest.mark.thorough
def test_clients_of_nearly_equal_size_run_to_a_constant_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator, where a loop whose end is not known asks the host; one client stops before the others."""
    sizes = (12, 12, 12, 12, 12, 8)
    data = toy.federation(sizes=sizes, labelled=sizes)

    def method_for(clients: FederatedData) -> federated.Method:
        everyone = jax.device_get(all_clients(clients))
        how = {"placement": "chunked", "chunk_size": 6, "everyone": everyone}
        return toy.executed(methods.build("fedavg", toy.setup(data)), **how)

    def asks(method: federated.Method) -> bool:
        state = jax.eval_shape(method.init, jax.random.key(1), data)
        return " while[" in str(jax.make_jaxpr(method.round)(jax.random.key(1), state, data))

    plain, infos = toy.train(method_for(data), jax.random.key(1), data, 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    constant, again = toy.train(method_for(data), jax.random.key(1), data, 1)
    chex.assert_trees_all_equal(constant, plain)
    assert again == infos
    assert not asks(method_for(data))
    few = (12, 1, 1, 1, 1, 1)
    assert asks(method_for(toy.federation(sizes=few, labelled=few)))
