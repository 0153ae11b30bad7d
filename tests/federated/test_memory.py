"""How clients are placed and how many train at once: from sizes, a backend's name and the memory
of programs.
"""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import federated, methods
from fedjax_ssl.data import FederatedData
from fedjax_ssl.federated import Choice, all_clients, device_memory, tree_bytes
from fedjax_ssl.federated.execution import CLIENTS_AT_ONCE, choose
from fedjax_ssl.federated.memory import USABLE, FittingProgram, how_many_fit
from fedjax_ssl.federated.steps_ahead import steps_of
from tests import toy

THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    ("placement", "given", "backend", "spread", "expected"),
    [
        ("auto", None, "cpu", 3.0, ("sequential", 1)),
        ("auto", 5, "gpu", 3.0, ("lanes", 5)),
        ("auto", 48, "gpu", 3.0, ("chunked", 48)),  # all at once, so that nobody waits
        ("auto", None, "gpu", None, ("chunked", CLIENTS_AT_ONCE)),
        ("auto", 30, "gpu", 1.2, ("chunked", 30)),
        ("chunked", None, "cpu", None, ("chunked", CLIENTS_AT_ONCE)),
        ("vmap", None, "gpu", None, ("vmap", 48)),
        ("sequential", 4, "gpu", None, ("sequential", 1)),
    ],
)
def test_placement_follows_from_sizes_and_backend(
    placement: str, given: int | None, backend: str, spread: float | None, expected: tuple[str, int]
) -> None:
    assert choose(placement, given, 48, backend, spread) == Choice(*expected, 48)


def test_there_are_never_more_at_once_than_clients() -> None:
    assert choose("chunked", None, 3, "cpu").clients_at_once == 3


def test_bytes_of_a_tree_come_from_shapes() -> None:
    tree = {
        "a": jax.ShapeDtypeStruct((3, 2), jnp.float32),
        "b": jnp.zeros(5, bool),
        "key": jax.random.key(0),
    }
    assert tree_bytes(tree) == 24 + 5 + 8


@pytest.mark.parametrize(
    ("one", "two", "limit", "expected"),
    [
        (100, 110, 1000, 1 + (int(USABLE * 1000) - 100) // 10),
        (100, 110, 100, 1),
        (100, 100, 200, 61),
    ],
)
def test_as_many_fit_as_a_line_through_two_programs_says(
    one: int, two: int, limit: int, expected: int
) -> None:
    assert how_many_fit(one, two, limit) == expected


class Device:
    """A device of 1,000 bytes, on which a program takes 100 bytes and `each` for each client."""

    def __init__(
        self, runs: int = 48, compiles: int = 48, num_clients: int = 48, each: int = 50
    ) -> None:
        self.each = each
        self.runs, self.compiles, self.num_clients = runs, compiles, num_clients  # at once, at most
        self.compiled: list[int] = []
        self.said: list[str] = []

    def compile_for(self, at_once: int) -> tuple[Any, list[Choice]]:
        at_once = min(at_once, self.num_clients)
        if at_once > self.compiles:
            raise jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm."
            )
        self.compiled.append(at_once)

        def program(state: int, step: int) -> int:
            if at_once > self.runs:
                raise jax.errors.JaxRuntimeError(
                    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate"
                )
            return state + step * at_once

        sizes = {
            "argument_size_in_bytes": 60,
            "output_size_in_bytes": 30,
            "alias_size_in_bytes": 30,
        }
        temporary = 40 + self.each * at_once
        analysis = SimpleNamespace(**sizes, temp_size_in_bytes=temporary)
        program.memory_analysis = lambda: analysis  # type: ignore[attr-defined]
        return program, [Choice("chunked", at_once, self.num_clients)]

    def program(self) -> FittingProgram:
        return FittingProgram(self.compile_for, 1000, self.said.append, self.num_clients)


def test_rounds_are_compiled_once_where_all_clients_fit_and_otherwise_for_as_many_as_fit() -> None:
    device = Device()
    program = device.program()
    assert device.compiled == [48, 1, 14] and not device.said  # (800 - 150) / 50 more than one
    assert program.choices == [Choice("chunked", 14, 48, bytes_per_client=50, limit=1000)]
    assert program(5, 1) == 19
    few = Device(num_clients=6)
    assert few.program().choices[0].clients_at_once == 6 and few.compiled == [6]
    many = Device(compiles=1000, num_clients=1000, each=1)
    assert many.program().choices[0].clients_at_once == 500 and many.compiled == [
        64,
        500,
    ]  # 700 would fit, but take two turns as well
    same = Device(compiles=90, num_clients=90, each=9)  # 77 would fit, but take two turns as well
    assert same.program().choices[0].clients_at_once == 64 and same.compiled == [64]
    large = Device(each=700)
    assert large.program().choices[0].clients_at_once == 1 and large.compiled == [48, 1]
    alone = Device(num_clients=1)
    assert alone.program()(5, 1) == 6 and alone.compiled == [1]


@pytest.mark.parametrize(
    ("limits", "expected", "said"),
    [({"runs": 4}, 3, ["7", "3"]), ({"compiles": 4}, 3, ["24", "12", "6", "3"])],
)
def test_half_as_many_train_where_the_device_says_that_it_is_too_small(
    limits: dict[str, int], expected: int, said: list[str]
) -> None:
    device = Device(**limits)
    program = device.program()
    assert program(5, 1) == 5 + expected and program(8, 1) == 8 + expected
    assert program.choices[0].clients_at_once == expected
    assert [line.split()[-4] for line in device.said] == said


def test_a_device_too_small_for_one_client_and_other_errors_are_raised() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        Device(runs=0).program()(5, 1)

    def fails(at_once: int) -> tuple[Any, list[Choice]]:
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        FittingProgram(fails, 1000, print, 5)


@pytest.fixture(scope="module")
def data() -> FederatedData:
    return toy.federation()


def test_devices_of_a_mesh_have_a_share_of_the_clients(data) -> None:
    def choice(mesh: Mesh | None) -> Choice:
        found: list[Choice] = []
        how = {"placement": "lanes", "report": found.append, "mesh": mesh}
        method = toy.executed(methods.build("fedavg", toy.setup(data)), **how)
        state = jax.eval_shape(method.init, jax.random.key(0), data)
        jax.eval_shape(method.round, jax.random.key(0), state, data)
        return found[0]

    assert choice(None).num_clients == 6
    assert choice(Mesh(np.array(jax.devices()[:2]), ("clients",))).num_clients == 3


@pytest.mark.thorough
def test_spread_is_that_of_the_steps_a_sampler_takes(data) -> None:
    everyone = jax.device_get(all_clients(data))
    sampler = federated.labelled_epochs(4, 2, data.max_labelled)
    steps = -(-np.array(toy.LABELLED) // 4)
    spread, _ = steps_of(sampler, everyone)
    assert spread == pytest.approx(steps.max() / steps[steps > 0].mean())
    nobody = toy.without_knowledge(data)
    assert steps_of(sampler, all_clients(nobody)) == (1.0, "own")


def drawn(num_steps) -> federated.Sampler:
    """One row a step; (key, client, now) -> how many of three steps are taken."""

    def schedule(key, client, now) -> federated.Schedule:
        rows = jnp.zeros((3, 1), jnp.int32)
        return federated.Schedule(
            {"labelled": rows}, {"labelled": rows == 0}, num_steps(key, client, now)
        )

    return federated.Sampler(schedule)


@pytest.mark.parametrize(
    ("sampler", "whole"),
    [
        (drawn(lambda key, client, now: jnp.where(client.num_examples > 0, 3, 0)), True),
        pytest.param(
            drawn(lambda key, client, now: jnp.minimum(client.num_examples, 3)),
            False,
            marks=THOROUGH,
        ),
        # Who is left out takes one.
        pytest.param(
            drawn(lambda key, client, now: jnp.where(client.num_examples > 0, 3, 1)),
            False,
            marks=THOROUGH,
        ),
        # Another round is another matter.
        pytest.param(
            drawn(lambda key, client, now: jnp.where(now.number < 9, 3, 2)), False, marks=THOROUGH
        ),
        pytest.param(
            drawn(lambda key, client, now: jnp.where(jax.random.bernoulli(key, 1e-9), 1, 3)),
            False,
            marks=THOROUGH,
        ),
    ],
)
def test_all_take_the_whole_loop_where_sizes_alone_say_so(data, sampler, whole: bool) -> None:
    _, loop = steps_of(sampler, all_clients(data))
    assert (loop == "whole") == whole


def test_a_cpu_tells_no_memory() -> None:
    assert device_memory() is None


@pytest.mark.thorough
def test_on_an_accelerator_unequal_clients_go_into_lanes(
    data, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for sizes, at_once, placement in (
        (toy.SIZES, 2, "lanes"),
        (toy.SIZES, None, "chunked"),
        ((8,) * 6, 2, "chunked"),
    ):
        equal_or_not = toy.federation(sizes=sizes, labelled=sizes)
        found: list[Choice] = []
        everyone = jax.device_get(all_clients(equal_or_not))
        method = methods.build("fedavg", toy.setup(equal_or_not))
        method = toy.executed(method, all_clients=everyone, chunk_size=at_once, report=found.append)
        state = jax.eval_shape(method.init, jax.random.key(0), equal_or_not)
        jax.eval_shape(method.round, jax.random.key(0), state, equal_or_not)
        assert [choice.placement for choice in found] == [placement]
        assert found[0].clients_at_once == (at_once or 6)
