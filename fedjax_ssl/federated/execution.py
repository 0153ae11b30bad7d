"""Execute a round: placement of clients and devices. None of it is a method's concern."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jax.sharding import Mesh
from jaxtyping import Array, Bool

from fedjax_ssl.backend import backend
from fedjax_ssl.data import FederatedData, LoadedInputs
from fedjax_ssl.federated.client import LocalRound
from fedjax_ssl.federated.client_states import without_examples
from fedjax_ssl.federated.contract import (
    Client,
    Now,
    Sampler,
    ServerState,
)
from fedjax_ssl.federated.messages import Arrivals, Download, Total
from fedjax_ssl.federated.placement import train_cohort
from fedjax_ssl.federated.recipe import Method

PyTree = Any
# Clients at once where nobody says how many.
CLIENTS_AT_ONCE = 8
# Name of the axis along which a sweep vectorizes its runs, so that each knows that others share the
# device.
VECTORIZED_RUNS = "vectorized runs"
# Largest over mean number of local steps from which on lanes are worth carrying the results of the
# whole cohort, and up to which a loop of constant length is worth its idle steps.
_UNEQUAL = 1.25


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
    reduce: str = "ordered"
    all_clients: Client | None = None
    # ^ all clients, to see whether they differ in size; None: not known
    report: Callable[[Choice], None] | None = None
    # ^ is told, whenever a round is traced, how clients are placed
    keep_models: bool = False  # a round's metrics have the models of its clients, `CLIENT_MODELS`


def execute(method: Method, execution: Execution) -> Method:
    """Give the same method, with rounds that are executed in this way."""
    return method._replace(round=partial(method.round, execution=execution))


def place_clients(
    execution: Execution,
    sampler: Sampler,
    state: ServerState,
    data: FederatedData,
    local_of: Callable[[Download], LocalRound],
    download: Download,
    clients: Client,
    valid: Bool[Array, " p"],
) -> tuple[Total, Arrivals]:
    """Train a cohort as the execution says."""
    mesh = execution.mesh
    share = -(-valid.shape[0] // (1 if mesh is None else mesh.size))
    counts = None
    if execution.all_clients is not None and not sampler.reads_sent:
        counts = step_counts(sampler, execution.all_clients)
    # lanes are slow where runs are vectorized
    spread = None if counts is None or _vectorized() else counts.spread
    choice = choose(execution.placement, execution.chunk_size, share, backend(), spread)
    if execution.report is not None:
        execution.report(choice)
    # The program of a CPU decides on its own whether a loop goes on; there a step that changes
    # nothing is lost time.
    loop = "own" if backend() == "cpu" else _loop(sampler, counts)
    how = choice.placement, choice.clients_at_once, mesh, execution.reduce, loop
    drawn = data.inputs.drawn if isinstance(data.inputs, LoadedInputs) else None
    order = None if drawn is None or drawn.order is None else drawn.order[state.round - drawn.first]
    return train_cohort(local_of, download, clients, valid, *how, order)


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
    """
    at_once = max(min(CLIENTS_AT_ONCE if given is None else given, num_clients), 1)
    if placement == "auto":
        # Lanes are for clients that wait: where all train at once, nobody does.
        waits = _is_unequal(spread) and at_once < num_clients
        placement = "lanes" if waits else "chunked"
        if backend == "cpu":
            placement = "sequential"
    clients_at_once = {"sequential": 1, "vmap": num_clients}.get(placement, at_once)
    return Choice(placement, clients_at_once, num_clients)


class StepCounts(NamedTuple):
    """Local steps of a federation's clients."""

    bound: int  # that no client exceeds, known from shapes
    largest: int
    mean: float  # mean of the clients that take any; 0: nobody does
    whole: bool = False
    # ^ every client takes as many as the bound or none, whatever the round and the key

    @property
    def spread(self) -> float:
        """Largest over mean number of steps; 1 where nobody takes any."""
        return self.largest / self.mean if self.mean else 1.0

    @property
    def to_bound(self) -> bool:
        """Returns whether all clients may as well run to the bound: it costs at most a quarter
        more steps.
        """
        return self.mean > 0 and self.bound <= _UNEQUAL * self.mean


def _is_unequal(spread: float | None) -> bool:
    return spread is not None and spread > _UNEQUAL


def decided_by_sizes(samplers: Iterable[Sampler], clients: Client) -> list[tuple[bool, str]]:
    """Tell all that a program's text has of the sizes of clients, beside shapes: for each sampler
    whether they are too unequal to wait for each other, and how their loops of local steps end.

    Args:
        samplers: those that draw the batches of clients.
        clients: leading axis C; not traced.
    """
    known = [sampler for sampler in samplers if not sampler.reads_sent]
    counts = [step_counts(sampler, clients) for sampler in known]
    return [
        (_is_unequal(count.spread), _loop(sampler, count))
        for sampler, count in zip(known, counts, strict=True)
    ]


def step_counts(sampler: Sampler, clients: Client) -> StepCounts:
    """Count the local steps of clients.

    Args:
        sampler: draws the batches.
        clients: leading axis C; not traced.
    """
    with jax.ensure_compile_time_eval():  # a round that is traced asks
        key = jax.random.key(0)
        now = Now(jnp.zeros((), jnp.int32))
        count = jax.jit(jax.vmap(lambda client: sampler.schedule(key, client, now).num_steps))
        left_out = without_examples(clients, jnp.zeros(clients.id.shape, bool))
        num_steps = np.asarray(count(clients))
        num_without = np.asarray(count(left_out))
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), clients)
        masks = jax.eval_shape(lambda client: sampler.schedule(key, client, now), one).masks
        by_client = _counts_by_client(sampler, one)
    bound = jax.tree.leaves(masks)[0].shape[0]
    taken = num_steps[num_steps > 0]
    if not len(taken):
        return StepCounts(bound, 0, 0.0)
    whole = by_client and set(taken) == {bound} and set(num_without) <= {0, bound}
    return StepCounts(bound, int(taken.max()), float(taken.mean()), whole)


def tree_bytes(tree: PyTree) -> int:
    """Count the bytes of all arrays in a tree, of which only shapes and types are used."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _counts_by_client(sampler: Sampler, client: Client) -> bool:
    """Return whether the number of steps follows from the client alone, and neither from the
    round nor from a draw.
    """

    def count(key: Array, number: Array, client: Client) -> Array:
        return sampler.schedule(key, client, Now(number)).num_steps

    number = jnp.zeros((), jnp.int32)
    jaxpr = jax.make_jaxpr(count)(jax.random.key(0), number, client).jaxpr
    read = {value for value in jaxpr.outvars if not isinstance(value, Literal)}
    for equation in reversed(jaxpr.eqns):
        if not read.isdisjoint(equation.outvars):
            read |= {value for value in equation.invars if not isinstance(value, Literal)}
    return read.isdisjoint(jaxpr.invars[:3])


def _loop(sampler: Sampler, counts: StepCounts | None) -> str:
    if sampler.equal_steps or (counts is not None and counts.whole):
        return "whole"
    return "bound" if counts is not None and counts.to_bound else "own"


def _vectorized() -> bool:
    """Tells whether runs share the device: there is the axis `VECTORIZED_RUNS` of a surrounding
    `jax.vmap`.
    """
    try:
        jax.lax.axis_size(VECTORIZED_RUNS)
    except NameError:
        return False
    return True
