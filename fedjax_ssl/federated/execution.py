"""Execute a round: placement of clients and devices. None of it is a method's concern."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from fedjax_ssl.backend import backend
from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.federated.contract import Client, Sampler
from fedjax_ssl.federated.recipe import Method
from fedjax_ssl.federated.steps_ahead import is_unequal, steps_of

PyTree = Any
# Clients at once where nobody says how many.
CLIENTS_AT_ONCE = 8
# Name of the axis along which a sweep vectorizes its runs, so that each knows that others share the
# device.
VECTORIZED_RUNS = "vectorized runs"
# "auto": see `choose`
PLACEMENTS = ("auto", "vmap", "sequential", "chunked", "lanes")
REDUCTIONS = ("ordered", "fast")


class Choice(NamedTuple):
    """Placement of a cohort's clients on each device."""

    placement: str  # "sequential", "vmap", "chunked" or "lanes"
    clients_at_once: int  # on a device
    num_clients: int = 1  # clients of the cohort on a device
    bytes_per_client: int | None = None
    # ^ while it trains, read off compiled programs; None: the choice did not need it
    limit: int | None = None  # bytes of the device that a round may fill; None: not known


class Execution(NamedTuple):
    """Devices and placement of a round's clients; results do not depend on it."""

    placement: str = "auto"
    chunk_size: int | None = None  # clients at once on a device; None: `CLIENTS_AT_ONCE`
    mesh: Mesh | None = None  # devices that share each cohort
    reduce: str = "ordered"  # how sums go over the devices, see `sum_over_devices`
    all_clients: Client | None = None
    # ^ all clients, to see whether they differ in size; None: not known
    report: Callable[[Choice], None] | None = None
    # ^ is told, whenever a round is traced, how clients are placed
    keep_models: bool = False  # a round's metrics have the models of its clients, `CLIENT_MODELS`


def execute(method: Method, execution: Execution) -> Method:
    """Give the same method, with rounds that are executed in this way."""
    return method._replace(round=partial(method.round, execution=execution))


def decide(execution: Execution, sampler: Sampler, num_clients: int) -> tuple[Choice, str]:
    """Decide how the clients of a device are placed, and how their loops of local steps end, as
    `steps_of` says.

    Args:
        execution: of the run.
        sampler: draws their batches.
        num_clients: clients of the cohort on one device.
    """
    spread, loop = steps_of(sampler, execution.all_clients)
    if _vectorized():  # lanes are slow where runs are
        spread = None
    choice = choose(execution.placement, execution.chunk_size, num_clients, backend(), spread)
    if execution.report is not None:
        execution.report(choice)
    # The program of a CPU decides on its own whether a loop goes on; there a step that changes
    # nothing is lost time.
    return choice, "own" if backend() == "cpu" else loop


def choose(
    placement: str, given: int | None, num_clients: int, backend: str, spread: float | None = None
) -> Choice:
    """Choose the placement, where it is "auto", and the number of clients at once, where it is not
    given.

    Args:
        placement: as in a config. "auto": "sequential" on a CPU, otherwise "lanes" where clients
            are known to differ in size and do not all train at once, and "chunked" where not.
        given: clients at once.
        num_clients: clients of the cohort on one device.
        backend: what JAX computes on, as `jax.default_backend` names it.
        spread: largest over mean number of local steps; None: not known.

    Raises:
        ValueError: for an unknown placement, or less than one client at once.
    """
    check_choices(PLACEMENTS, placement=placement)
    if given is not None:
        check_whole_numbers(chunk_size=given)
    at_once = max(min(CLIENTS_AT_ONCE if given is None else given, num_clients), 1)
    if placement == "auto":
        # Lanes are for clients that wait: where all train at once, nobody does.
        waits = is_unequal(spread) and at_once < num_clients
        placement = "lanes" if waits else "chunked"
        if backend == "cpu":
            placement = "sequential"
    clients_at_once = {"sequential": 1, "vmap": num_clients}.get(placement, at_once)
    return Choice(placement, clients_at_once, num_clients)


def tree_bytes(tree: PyTree) -> int:
    """Count the bytes of all arrays in a tree, of which only shapes and types are used."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _vectorized() -> bool:
    """Tell whether runs share the device: there is the axis `VECTORIZED_RUNS` of a surrounding
    `jax.vmap`.
    """
    try:
        jax.lax.axis_size(VECTORIZED_RUNS)
    except NameError:
        return False
    return True
