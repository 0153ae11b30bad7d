"""A compiled block of rounds, read: its local steps, what a round does beside them, its evaluation, its bounds."""

import math
from typing import Any, NamedTuple

from fedjax_ssl.benchmarks import hlo
from fedjax_ssl.benchmarks.targets import Target
from fedjax_ssl.federated import EVALUATION, LOCAL_STEP, STAGE
from fedjax_ssl.graph import LABEL_GRAPH
from fedjax_ssl.runs.rounds import ROUNDS


class Collective(NamedTuple):
    """What several devices do together in a round, of one kind."""

    kind: str  # one of `hlo.COLLECTIVES`
    times: float  # a round
    bytes: float  # of the results on one device, all of a round


class Reading(NamedTuple):
    """What a compiled program does."""

    loops: tuple[hlo.Steps, ...]  # of local steps; how often a round comes to them. Empty: a loop of one turn is none
    step: hlo.Part  # one local step of all clients that train at once; of several kinds, what moves the most bytes
    round: hlo.Part  # what one round does beside its loops of local steps, other loops multiplied out
    evaluation: hlo.Part  # after the block
    unordered_sums: int  # see `hlo.unordered_sums`
    stages: tuple["Reading", ...] = ()  # of rounds of each stage alone, where the program has rounds of several

    @property
    def graph(self) -> hlo.Part:
        """The label graph of one round."""
        return self.round.within(LABEL_GRAPH)

    @property
    def turns(self) -> float | None:
        """Turns of its loops of local steps that a round takes; None where that is decided while it runs."""
        if any(loop.trips is None or loop.sometimes for loop in self.loops):
            return None
        return sum(loop.times * (loop.trips or 0) for loop in self.loops) if self.loops else 1.0

    def seconds_per_round(self, target: Target, least_turns: float | None = None) -> float | None:
        """What a round takes at least on a device, with its local steps.

        Args:
            target: the device.
            least_turns: of the only loop whose end is not known, at least so many in a round.

        Returns:
            Seconds; None where the end of a loop is not known and no turns are given, and where the program has rounds
            of several stages, of which each has a reading of its own.
        """
        unknown = [loop for loop in self.loops if loop.trips is None]
        if any(loop.sometimes for loop in self.loops) or len(unknown) > (least_turns is not None):
            return None
        total = target.seconds(self.round)
        for loop in self.loops:
            turns = least_turns if loop.trips is None else loop.times * loop.trips
            total += (turns or 0.0) * target.seconds(loop.part)
        return total

    def collectives(self) -> list[Collective]:
        """What devices do together in a round, by kind; loops without a known end count a turn."""
        found: dict[str, list[float]] = {}
        parts = [(1.0, self.round), *((loop.times * (loop.trips or 1), loop.part) for loop in self.loops)]
        for turns, part in parts:
            for kernel in part.kernels:
                if kernel.collective:
                    sums = found.setdefault(kernel.collective, [0.0, 0.0])
                    sums[0] += turns * kernel.times
                    sums[1] += turns * kernel.times * kernel.exchanged
        return [Collective(kind, *sums) for kind, sums in sorted(found.items())]


def read(text: str, rounds: int, host_drives: bool) -> Reading:
    """Reads the text of a compiled block of rounds.

    Args:
        text: of the program.
        rounds: of the block.
        host_drives: see `hlo.steps_and_rest`.

    Raises:
        ValueError: it is no text of a program.
    """
    program = hlo.parse(text)
    unordered = len(hlo.unordered_sums(program)) if host_drives else 0  # a TPU has no atomic additions

    def of_stage(taken: str, others: list[str]) -> Reading:
        loops, rest = hlo.steps_and_rest(program, LOCAL_STEP, host_drives, taken, others)
        every_round = _divided(rest.within(ROUNDS), rounds)
        # A loop of a single step is none in the compiled program.
        parts = [loop.part for loop in loops] or [every_round.within(LOCAL_STEP)]
        return Reading(
            loops=tuple(loop._replace(times=loop.times / rounds) for loop in loops),
            step=max(parts, key=lambda part: part.bytes),
            round=every_round,
            evaluation=rest.within(EVALUATION),
            unordered_sums=unordered,
        )

    names = hlo.numbered_scopes(program, STAGE)
    every = [of_stage(name, [other for other in names if other != name]) for name in names] if len(names) > 1 else []
    return of_stage("", [])._replace(stages=tuple(every))


def program_bytes(program: Any) -> int:
    """What a compiled program takes of a device: arguments, results, temporaries; 0 where its compiler does not tell.

    An argument that a result replaces counts once.
    """
    memory = program.memory_analysis()
    if memory is None:
        return 0
    taken = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    return int(taken - memory.alias_size_in_bytes)


def least_turns(local_steps: float, runs: int, clients_at_once: int) -> float:
    """Turns of a loop of local steps that a round takes at least.

    Args:
        local_steps: of all clients and runs, in a round.
        runs: that are vectorized.
        clients_at_once: of each run.
    """
    return math.ceil(local_steps / (runs * clients_at_once))


def _divided(part: hlo.Part, rounds: int) -> hlo.Part:
    kernels = tuple(kernel._replace(times=kernel.times / rounds) for kernel in part.kernels)
    return part._replace(kernels=kernels, host_round_trips=part.host_round_trips / rounds)
