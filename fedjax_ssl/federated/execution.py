"""How a round is executed: placement of clients, devices, memory. None of it is a method's concern."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jax.sharding import Mesh
from jaxtyping import Array, Bool

from fedjax_ssl.backend import backend
from fedjax_ssl.data import DealtInputs, FederatedData
from fedjax_ssl.federated.client import ClientUpdate, Download
from fedjax_ssl.federated.memory import (
    Choice,
    Need,
    StepCounts,
    bytes_of_examples,
    choose,
    estimate_need,
    step_counts,
    tree_bytes,
    vectorized_runs,
)
from fedjax_ssl.federated.method import Client, Method, Sampler, ServerState
from fedjax_ssl.federated.placement import train_cohort

PyTree = Any
_MB = 1e6


class Execution(NamedTuple):
    """Where the clients of a round run; results do not depend on it."""

    placement: str = "auto"
    chunk_size: int | None = None  # clients at once on a device; None: chosen from its memory
    mesh: Mesh | None = None  # devices that share each cohort
    reduce: str = "ordered"
    memory: int | None = None  # bytes of a device that all runs on it may fill; None: not known
    everyone: Client | None = None  # all clients, to see whether they differ in size; None: not known
    report: Callable[[Choice], None] | None = None  # is told, whenever a round is traced, how clients are placed


def execute(method: Method, execution: Execution) -> Method:
    """The same method, whose rounds are executed in this way."""
    return method._replace(round=partial(method.round, execution=execution))


def place_clients(
    execution: Execution,
    sampler: Sampler,
    state: ServerState,
    data: FederatedData,
    update_of: Callable[[Download], ClientUpdate],
    broadcast: Download,
    clients: Client,
    valid: Bool[Array, " p"],
) -> tuple[PyTree, PyTree]:
    """Trains a cohort as the execution says and, where it says nothing, as the device's memory allows.

    Raises:
        ValueError: the examples and what clients keep between rounds do not fit into the device's memory.
    """
    mesh = execution.mesh
    num_devices = 1 if mesh is None else mesh.size
    share, runs = -(-valid.shape[0] // num_devices), vectorized_runs()
    counts = None
    if execution.everyone is not None and not sampler.reads_sent:
        counts = step_counts(sampler, execution.everyone)

    def estimate(placement: str) -> Need:
        return estimate_need(
            update_of(broadcast), clients, placement, share, 0 if mesh is None else share * num_devices
        )

    choice = choose(
        execution.placement,
        execution.chunk_size,
        share,
        backend=backend(),
        spread=None if counts is None or runs is not None else counts.spread,  # lanes are slow where vectorized
        limit=None if execution.memory is None else _free(execution.memory, runs or 1, state, data),
        estimate=estimate,
    )
    if execution.report is not None:
        execution.report(choice)
    # The program of a CPU decides on its own whether a loop goes on; there a step that changes nothing is lost time.
    loop = "own" if backend() == "cpu" else _loop(sampler, counts)
    how = choice.placement, choice.clients_at_once, mesh, execution.reduce, loop
    drawn = data.inputs.drawn if isinstance(data.inputs, DealtInputs) else None
    order = None if drawn is None or drawn.order is None else drawn.order[state.round - drawn.first]
    return train_cohort(update_of, broadcast, clients, valid, *how, order)


def _loop(sampler: Sampler, counts: StepCounts | None) -> str:
    if sampler.equal_steps or (counts is not None and counts.whole):
        return "whole"
    return "bound" if counts is not None and counts.to_bound else "own"


def _free(memory: int, runs: int, state: ServerState, data: FederatedData) -> int:
    """Bytes left for a round of one of several runs that share the examples.

    A round writes its state where the old one lies; in a program of several runs, which puts their states together
    first, it lies there twice.
    """
    here, examples, kept = tree_bytes(data.inputs), bytes_of_examples(data), tree_bytes(state.clients)
    states = (1 if runs == 1 else 2) * tree_bytes(state)
    free = (memory - examples) // runs - (tree_bytes(data) - here) - states
    if free <= 0 < kept:
        several = f" for {runs} runs, of which each takes it twice" if runs > 1 else ""
        raise ValueError(
            f"what the {data.num_clients} clients keep between rounds takes {kept / _MB:,.0f} MB, beside "
            f"{examples / _MB:,.0f} MB of examples; the device has {memory / _MB:,.0f} MB{several}. Use fewer clients "
            "or a smaller network, or do not keep the state of local optimizers (config.optimizer.keep_state=False)"
        )
    return free
