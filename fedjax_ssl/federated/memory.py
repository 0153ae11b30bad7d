"""Choose how many clients train at once on an accelerator: as many as fit into its memory, by the
memory use of compiled programs.
"""

from collections.abc import Callable
from typing import Any

import jax

from fedjax_ssl.data import LoadedInputs
from fedjax_ssl.federated.execution import Choice, tree_bytes

PyTree = Any
# Share of a device's memory in the plan; the rest is for workspaces and fragmentation.
USABLE = 0.8
FIRST = 64  # first number of clients at once that is tried
_GROUPS = ("chunked", "lanes")  # placements with a number of clients at once


def device_memory() -> int | None:
    """Return the bytes that JAX may use on the smallest device; None if the backend does not tell.

    With several processes also None: a choice by each process's own devices could differ between
    processes, and their programs would wait for each other forever.
    """
    return None if jax.process_count() > 1 else own_memory()


def own_memory() -> int | None:
    """Return the bytes that JAX may use on the smallest device of this process; None: unknown."""
    limits = [(device.memory_stats() or {}).get("bytes_limit") for device in jax.local_devices()]
    known = [limit for limit in limits if limit]
    return min(known) if known and len(known) == len(limits) else None


def bytes_of(program: Any) -> int:
    """Return the bytes that a compiled program takes on a device, with arguments and results."""
    found = program.memory_analysis()
    taken = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return int(taken - found.alias_size_in_bytes)  # aliased results use the memory of arguments


def bytes_to_come(inputs: Any) -> int:
    """Return the bytes of a device for the examples of the coming rounds, which are loaded while a
    round runs.

    Args:
        inputs: inputs of a federation.
    """
    if not isinstance(inputs, LoadedInputs):
        return 0
    return tree_bytes(inputs) // (1 if inputs.mesh is None else inputs.mesh.size)


def how_many_fit(one: int, two: int, limit: int) -> int:
    """Return how many clients fit, at least one, extrapolated from the programs for one and for two
    at once.

    Args:
        one: bytes of the program for one.
        two: bytes of the program for two.
        limit: bytes of the device.
    """
    return 1 + max(int(USABLE * limit) - one, 0) // max(two - one, 1)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether this error of a device or compiler means too little memory."""
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


class FittingProgram:
    """A program of rounds that trains as many clients at once as the device's memory holds.

    The rounds are compiled for all clients of a cohort, up to `FIRST`. If the program needs too
    much memory by its own estimate, it is compiled for one client too, and then for as many as fit.
    If more fit, it is compiled for more. If the device still runs out of memory, it is compiled
    again for half as many.

    Attributes:
        choices: how the clients of every stage are placed.
    """

    choices: list[Choice]
    _program: Any

    def __init__(
        self,
        compile_for: Callable[[int], tuple[Any, list[Choice]]],
        limit: int,
        say: Callable[[str], None],
        cohort: int,
    ):
        """Compile the rounds.

        Args:
            compile_for: clients at once -> (program, placement of the clients in it).
            limit: bytes that the program may take.
            say: called with one line if fewer clients train at once.
            cohort: clients of a cohort, at most.
        """
        self._compile_for = compile_for
        self._say = say
        self._ran = False
        self._at_once = first = min(FIRST, cohort)
        self._limit = limit
        self._each: int | None = None  # bytes of a client; None: unknown
        self._compile()
        most = max((one.num_clients for one in self.choices if one.placement in _GROUPS), default=1)
        halved = self._at_once < first
        tried = min(self._at_once, most)
        self._at_once = tried
        if most == 1:
            return
        taken = bytes_of(self._program)
        each = max(self._program.memory_analysis().temp_size_in_bytes // tried, 1)
        if taken > USABLE * limit and tried > 1:
            alone = compile_for(1)
            one = bytes_of(alone[0])
            each = max((taken - one) // (tried - 1), 1)
            self._at_once = min(how_many_fit(one, one + each, limit), tried)
            if self._at_once == 1:
                self._program, self.choices = alone
        elif tried < most and not halved:
            turns = -(-most // min(tried + max(int(USABLE * limit) - taken, 0) // each, most))
            if turns < -(-most // tried):
                self._at_once = -(-most // turns)
        self._each = each
        if self._at_once in (1, tried):
            self._describe()
        else:
            self._compile()

    def as_text(self) -> str:
        """Return the text of the program."""
        return str(self._program.as_text())

    def __call__(self, state: PyTree, *others: PyTree) -> PyTree:
        """Run the rounds. Raises the device's error if even one client at a time needs too much
        memory.
        """
        if self._ran or self._at_once == 1:
            return self._program(state, *others)
        while True:
            # The program donates the state's memory, even if it then fails.
            spare = jax.device_get(state)
            try:
                results = jax.block_until_ready(self._program(state, *others))
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error) or self._at_once == 1:
                    raise
                state = spare
                self._halve()
                self._compile()
            else:
                self._ran = True
                return results

    def _halve(self) -> None:
        self._at_once //= 2
        self._say(
            f"the device's memory is too small for the clients at once; trains {self._at_once} at "
            "once instead"
        )

    def _compile(self) -> None:
        while True:
            try:
                self._program, self.choices = self._compile_for(self._at_once)
                self._describe()
                return
            except jax.errors.JaxRuntimeError as error:
                if not is_out_of_memory(error) or self._at_once == 1:
                    raise
                self._halve()

    def _describe(self) -> None:
        self.choices = [
            one._replace(bytes_per_client=self._each, limit=self._limit) for one in self.choices
        ]
