"""How many clients train at once on a device: as many as its memory holds, estimated from shapes without compiling."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array

from fedjax_ssl.backend import backend, elsewhere
from fedjax_ssl.data import DealtInputs, FederatedData, LoadedInputs
from fedjax_ssl.federated.client import ClientUpdate, batch_of
from fedjax_ssl.federated.liveness import Taken, bytes_taken
from fedjax_ssl.federated.method import Client, Now, Sampler
from fedjax_ssl.federated.placement import without_examples
from fedjax_ssl.federated.tiles import array_bytes

PyTree = Any
# Clients at once where the memory of the device is not known.
CLIENTS_AT_ONCE = 8
# Name of the axis along which a sweep vectorizes its runs, so that each knows how many share the device.
VECTORIZED_RUNS = "vectorized runs"
# Largest over mean number of local steps from which on lanes are worth carrying the results of the whole cohort, and
# up to which a loop of constant length is worth its idle steps.
_UNEQUAL = 1.25
# Part of the free memory that is planned with: the rest is for the compiler's workspaces and for fragmentation.
USABLE = 0.8


class _Beyond(NamedTuple):
    """What compilers took beyond what lives at a time, at most, over the benchmark's workloads and shipped configs.

    They order and fuse in their own way (docs/accelerators.md). A GPU's leaves gaps between values of different sizes:
    up to 0.3 of all, with the convolutions of `models.implicit`. It may copy what a loop starts from, as clients' first
    parameters, which are read after the loop: up to 0.45 where these are nearly everything.
    """

    margin: float  # share of what lives
    largest_copy: float  # share of it that a copy of the largest value that a loop goes on with may have
    small: int  # bytes of what is not followed: numbers and short tables, each in a buffer, of 16 KiB on a TPU


_BEYOND = {"gpu": _Beyond(0.3, 0.45, 160 << 10), "tpu": _Beyond(0.14, 0.0, 1 << 20)}
_BEYOND_ELSEWHERE = _Beyond(0.1, 0.0, 1 << 19)


class Choice(NamedTuple):
    """How a cohort's clients are placed on each device."""

    placement: str  # "sequential", "vmap", "chunked" or "lanes"
    clients_at_once: int  # on a device
    bytes_per_client: int | None = None  # estimated; None: the choice did not need it
    limit: int | None = None  # bytes that the clients at once may take together; None: not known


class Need(NamedTuple):
    """Estimated bytes on a device."""

    per_client: int  # of a client while it trains
    kept: int  # of what the round keeps of the cohort, whoever trains


def choose(
    placement: str,
    given: int | None,
    num_clients: int,
    *,
    backend: str,
    spread: float | None = None,
    limit: int | None = None,
    estimate: Callable[[str], Need],
) -> Choice:
    """Chooses the placement, where it is "auto", and the number of clients at once, where it is not given.

    Args:
        placement: as in a config. "auto": "sequential" on a CPU, otherwise "lanes" where clients are known to differ
            in size and do not all train at once, and "chunked" where not.
        given: clients at once that the user asked for.
        num_clients: of the cohort on one device: there are never more at once.
        backend: what JAX computes on, as `jax.default_backend` names it.
        spread: largest over mean number of local steps; None: not known.
        limit: bytes of the device that a round may fill; None: not known, then 8 clients at once.
        estimate: placement -> what it needs; called only if the choice depends on it.
    """
    if placement == "auto":
        if backend == "cpu":
            return Choice("sequential", 1)
        together = _at_once("chunked", given, num_clients, limit, estimate)
        # Lanes are for clients that wait: where all train at once, nobody does.
        if spread is None or spread <= _UNEQUAL or together.clients_at_once >= num_clients:
            return together
        placement = "lanes"
    if placement == "sequential":
        return Choice(placement, 1)
    if placement == "vmap":
        return Choice(placement, num_clients)
    return _at_once(placement, given, num_clients, limit, estimate)


def _at_once(
    placement: str, given: int | None, num_clients: int, limit: int | None, estimate: Callable[[str], Need]
) -> Choice:
    """As many clients at once as are asked for, or as fit."""
    if given is not None:
        return Choice(placement, given)
    if limit is None:
        return Choice(placement, max(min(CLIENTS_AT_ONCE, num_clients), 1))
    need = estimate(placement)
    free = max(int(USABLE * limit) - need.kept, 0)
    fitting = free // max(need.per_client, 1)
    return Choice(placement, max(min(fitting, num_clients), 1), need.per_client, free)


def estimate_need(update: ClientUpdate, clients: Client, placement: str, num_clients: int, gathered: int = 0) -> Need:
    """Estimates the memory of a cohort's training on one device.

    A client that trains takes its tables and schedule, its progress (parameters, batch statistics, states of the
    local optimizer and of the terms), what it adds to the sums, and the values of one local step (activations and
    gradients among them), or of what it does before or after its steps where those are larger.

    Args:
        update: from `client_update`; only shapes are used, so that it may be traced.
        clients: leading axis p.
        placement: "chunked" or "lanes"; lanes keep the trained state of every client to the end.
        num_clients: clients of the cohort on the device.
        gathered: clients whose results the device gathers from all devices.
    """
    # Two, since some operations take another way as soon as there are several clients.
    some = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), clients)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    prepare, step, finish = jax.vmap(update.plan), jax.vmap(update.step, (0, None, 0, 0)), jax.vmap(update.finish)
    plan, start = jax.eval_shape(prepare, some), jax.eval_shape(jax.vmap(update.start), some)
    batch = jax.eval_shape(jax.vmap(batch_of, (0, None)), plan, number)
    summed, stacked = (tree_bytes(tree) // 2 for tree in jax.eval_shape(finish, some, plan, start))
    carried, stepping = len(jax.tree.leaves(start)), jax.make_jaxpr(step)(some, number, batch, start)
    pieces = [
        program_taken(jax.make_jaxpr(prepare)(some)),
        program_taken(stepping, carried, len(stepping.in_avals) - carried),
        program_taken(jax.make_jaxpr(finish)(some, plan, start)),
    ]
    before = pieces[0].live // 2
    tables, progress, planned = (tree_bytes(tree) // 2 for tree in (some, start, plan))
    kept = num_clients * stacked + gathered * (summed + stacked) + max(one.images for one in pieces) + _beyond().small
    if placement == "lanes":
        kept += num_clients * (progress + planned + before)
    return Need(tables + planned + progress + summed + max(one.live // 2 for one in pieces), kept)


def program_bytes(jaxpr: ClosedJaxpr, donated: int = 0, first: int = 0) -> int:
    """What a program takes beside its arguments on the device that it is traced for; rather too much.

    Args:
        jaxpr: the program.
        donated: so many of its first results may take the places of as many arguments, a run's state.
        first: number of the first of these arguments.
    """
    found = whole_program(jaxpr, donated, first)
    return found.live + found.images


def whole_program(jaxpr: ClosedJaxpr, donated: int = 0, first: int = 0) -> Taken:
    """As `program_bytes`, with the copies of images, which several runs share, apart from the rest."""
    found = program_taken(jaxpr, donated, first)
    return found._replace(live=found.live + _beyond().small)


def program_taken(jaxpr: ClosedJaxpr, carried: int = 0, first: int = 0) -> Taken:
    """As `bytes_taken`, with a margin, on the device that a program is traced for.

    Args:
        jaxpr: the program.
        carried: so many of its first results may take the places of as many arguments.
        first: number of the first of these arguments.
    """
    found = bytes_taken(jaxpr, backend() == "tpu", carried, first)
    beyond = _beyond()
    margin, copy = beyond.margin * found.live, min(found.largest, beyond.largest_copy * found.live)
    return found._replace(live=found.live + int(max(margin, copy)))


def _beyond() -> _Beyond:
    return _BEYOND.get(backend(), _BEYOND_ELSEWHERE)


def tree_bytes(tree: PyTree) -> int:
    """Bytes of all arrays in a tree, of which only shapes and types are used."""
    return sum(array_bytes(leaf) for leaf in jax.tree.leaves(tree))


def bytes_of_examples(data: FederatedData) -> int:
    """Bytes of a device that examples take, with those of the coming rounds where these are brought meanwhile.

    Args:
        data: as a round gets it; only shapes are used.
    """
    inputs = data.inputs
    if isinstance(inputs, DealtInputs):
        return tree_bytes((inputs.values, inputs.place)) + 2 * tree_bytes(inputs.own) // inputs.mesh.size
    return tree_bytes(inputs) * (2 if isinstance(inputs, LoadedInputs) else 1)


class StepCounts(NamedTuple):
    """Local steps of a federation's clients."""

    bound: int  # that no client exceeds, known from shapes
    largest: int
    mean: float  # of the clients that take any; 0: nobody does
    whole: bool = False  # everybody takes as many as the bound or none, whatever the round and the key

    @property
    def spread(self) -> float:
        """Largest over mean number of steps; 1 where nobody takes any."""
        return self.largest / self.mean if self.mean else 1.0

    @property
    def to_bound(self) -> bool:
        """Whether everybody may as well run to the bound: it costs at most a quarter more steps."""
        return self.mean > 0 and self.bound <= _UNEQUAL * self.mean


def step_counts(sampler: Sampler, clients: Client) -> StepCounts:
    """Counts the local steps of clients.

    Args:
        sampler: draws the batches.
        clients: leading axis C; not traced.
    """
    with jax.ensure_compile_time_eval():  # a round that is traced asks
        key, now = jax.random.key(0), Now(jnp.zeros((), jnp.int32))
        count = jax.jit(jax.vmap(lambda client: sampler.schedule(key, client, now).num_steps))
        left_out = without_examples(clients, jnp.zeros(clients.id.shape, bool))
        num_steps, num_without = np.asarray(count(clients)), np.asarray(count(left_out))
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), clients)
        masks = jax.eval_shape(lambda client: sampler.schedule(key, client, now), one).masks
        by_client = _counts_by_client(sampler, one)
    bound = jax.tree.leaves(masks)[0].shape[0]
    taken = num_steps[num_steps > 0]
    if not len(taken):
        return StepCounts(bound, 0, 0.0)
    whole = by_client and set(taken) == {bound} and set(num_without) <= {0, bound}
    return StepCounts(bound, int(taken.max()), float(taken.mean()), whole)


def _counts_by_client(sampler: Sampler, client: Client) -> bool:
    """Whether the number of steps follows from the client alone, and neither from the round nor from a draw."""

    def count(key: Array, number: Array, num_rounds: Array, client: Client) -> Array:
        return sampler.schedule(key, client, Now(number, num_rounds)).num_steps

    number = jnp.zeros((), jnp.int32)
    jaxpr = jax.make_jaxpr(count)(jax.random.key(0), number, number, client).jaxpr
    read = {value for value in jaxpr.outvars if not isinstance(value, Literal)}
    for equation in reversed(jaxpr.eqns):
        if not read.isdisjoint(equation.outvars):
            read |= {value for value in equation.invars if not isinstance(value, Literal)}
    return read.isdisjoint(jaxpr.invars[:3])


def vectorized_runs() -> int | None:
    """Runs that share the device: the size of the axis `VECTORIZED_RUNS` of a surrounding `jax.vmap`; None without."""
    try:
        return int(jax.lax.axis_size(VECTORIZED_RUNS))
    except NameError:
        return None


def device_memory() -> int | None:
    """Bytes that JAX may fill on the smallest device of this process; None where the backend does not tell.

    Where programs are traced for a device that is not here, of that one.

    With several processes also None: a choice that depends on one's own devices could differ between them, and their
    programs would wait for each other for ever.
    """
    if (there := elsewhere()) is not None:
        return there.memory
    return None if jax.process_count() > 1 else own_memory()


def own_memory() -> int | None:
    """Bytes that JAX may fill on the smallest device of this process, whatever others have; None: not known."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    known = [limit for limit in limits if limit]
    return min(known) if known and len(known) == len(limits) else None
