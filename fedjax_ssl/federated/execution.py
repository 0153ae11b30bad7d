"""Execute a round: placement of clients on devices. Methods do not depend on it."""

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
# Default number of clients at once.
CLIENTS_AT_ONCE = 8
# Axis along which a sweep vectorizes its runs. A run that sees it knows that others share the
# device.
VECTORIZED_RUNS = "vectorized runs"
# "auto": see `choose`
PLACEMENTS = ("auto", "vmap", "sequential", "chunked", "lanes")
REDUCTIONS = ("ordered", "fast")


class Choice(NamedTuple):
    """Placement of a cohort's clients on each device."""

    placement: str  # "sequential", "vmap", "chunked" or "lanes"
    clients_at_once: int  # clients at once on a device
    num_clients: int = 1  # clients of the cohort on a device
    bytes_per_client: int | None = None
    # ^ bytes of a training client, measured on compiled programs; None: not needed for the choice
    limit: int | None = None  # bytes of the device that a round may use; None: unknown


class Execution(NamedTuple):
    """Devices and placement of a round's clients; results do not depend on it."""

    placement: str = "auto"
    chunk_size: int | None = None  # clients at once on a device; None: `CLIENTS_AT_ONCE`
    mesh: Mesh | None = None  # devices that share each cohort
    reduce: str = "ordered"  # how sums over devices are taken, see `sum_over_devices`
    all_clients: Client | None = None
    # ^ all clients, for the spread of their sizes; None: unknown
    report: Callable[[Choice], None] | None = None
    # ^ called with the placement whenever a round is traced
    keep_models: bool = False
    # ^ put the models of a round's clients among its metrics, as `CLIENT_MODELS`


def execute(method: Method, execution: Execution) -> Method:
    """Return the same method with rounds that are executed in this way."""
    return method._replace(round=partial(method.round, execution=execution))


def decide(execution: Execution, sampler: Sampler, num_clients: int) -> tuple[Choice, str]:
    """Decide the placement of a device's clients, and the end of their loops of local steps, see
    `steps_of`.

    Args:
        execution: the run's execution.
        sampler: draws their batches.
        num_clients: clients of the cohort on one device.
    """
    spread, loop = steps_of(sampler, execution.all_clients)
    if _vectorized():  # lanes are slow in vectorized runs
        spread = None
    choice = choose(execution.placement, execution.chunk_size, num_clients, backend(), spread)
    if execution.report is not None:
        execution.report(choice)
    # On a CPU the program itself decides whether a loop goes on, so an idle step would only cost
    # time.
    return choice, "own" if backend() == "cpu" else loop


def choose(
    placement: str, given: int | None, num_clients: int, backend: str, spread: float | None = None
) -> Choice:
    """Choose the placement if it is "auto", and the number of clients at once if it is not given.

    Args:
        placement: as in a config. "auto": "sequential" on a CPU; elsewhere "lanes" if clients are
            known to differ in size and do not all train at once, otherwise "chunked".
        given: clients at once; None: choose.
        num_clients: clients of the cohort on one device.
        backend: JAX's backend, a name of `jax.default_backend`.
        spread: largest over mean number of local steps; None: not known.

    Raises:
        ValueError: for an unknown placement, or less than one client at once.
    """
    check_choices(PLACEMENTS, placement=placement)
    if given is not None:
        check_whole_numbers(chunk_size=given)
    at_once = max(min(CLIENTS_AT_ONCE if given is None else given, num_clients), 1)
    if placement == "auto":
        # Lanes help clients that would wait; if all train at once, none waits.
        waits = is_unequal(spread) and at_once < num_clients
        placement = "lanes" if waits else "chunked"
        if backend == "cpu":
            placement = "sequential"
    clients_at_once = {"sequential": 1, "vmap": num_clients}.get(placement, at_once)
    return Choice(placement, clients_at_once, num_clients)


def tree_bytes(tree: PyTree) -> int:
    """Count the bytes of all arrays in a tree, from their shapes and types."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _vectorized() -> bool:
    """Return whether runs share the device, that is, whether a surrounding `jax.vmap` has the axis
    `VECTORIZED_RUNS`.
    """
    try:
        jax.lax.axis_size(VECTORIZED_RUNS)
    except NameError:
        return False
    return True
