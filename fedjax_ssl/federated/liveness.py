"""What the values of a traced function take of a device's memory at a time, as a compiler that fuses lays them out.

Products, reductions, reads by index and loops read and write memory. What is computed element by element between them
is fused: it takes none, unless a product or a loop reads it. Equal values are computed once and live from their first
to their last use, as patches of a convolution do that its gradient uses again.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxprs_in_params
from jax.lax import Precision

from fedjax_ssl.federated.tiles import (
    LANES,
    SUBLANES,
    array_bytes,
    grouped_bytes,
    moved_bytes,
    padded_bytes,
    tiled_bytes,
)

# Functions that are called: their values are those of the caller.
_CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call"),
    *("checkpoint", "remat2", "shard_map"),
}
# What reads its operands from memory and writes its results there.
_READ = {
    *("dot_general", "conv_general_dilated", "fft", "sort", "top_k", "approx_top_k"),
    *("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"),
    *("reduce_window", "reduce_window_sum", "reduce_window_max"),
    *("select_and_scatter_add", "select_and_gather_add"),
    *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    *("scan", "while", "cond", "custom_call", "pallas_call"),
}
# What reads its operands as they are computed, and writes its results.
_WRITTEN = {
    *("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod", "argmax", "argmin"),
    *("gather", "dynamic_update_slice", "random_bits", "rng_bit_generator", "psum", "all_gather", "all_to_all"),
}
# Other names of a part of memory.
_VIEWS = {"reshape", "squeeze", "expand_dims"}
# What has a name of its own here: a slice of a single place along an axis, which is read as it is computed with; and a
# product of whole numbers, with which a TPU computes before it writes.
_ROW, _WHOLE_NUMBERS = "row", "product of whole numbers"
# What a TPU multiplies, as bfloat16 unless more is asked for; what only moves values there moves them as bfloat16.
_PRODUCTS = {"dot_general", "conv_general_dilated"}
_MOVING = {"concatenate", "pad", "slice", "reshape", "squeeze", "expand_dims", "transpose", "copy", "rev", _ROW}
# What a TPU does in memory, as it changes the layout.
_MOVED = {"concatenate", "pad", "slice", "split", "reshape", "transpose"}
# The most bytes of images of one channel that a TPU copies for reading them by index.
_COPIED_GREY = 1 << 26
# The most bytes of float32 that a TPU reads by index where they lie; what is larger it copies, cut in halves.
_READ_WHOLE = 1 << 29
# What a TPU keeps of a copy in another layout, and of what it cuts out of it, in the chip's own 128 MiB.
_ON_CHIP = 1 << 26

_Value = int | tuple[str, str]  # a number, or a constant


class _Peak(NamedTuple):
    """When a function takes the most."""

    live: int  # bytes of all values
    largest: int  # of these


class _Operation(NamedTuple):
    name: str
    inputs: list[int]
    outputs: list[int]
    within: _Peak  # what its own functions take while it runs
    carried: list[tuple[int, int]]  # operands that a loop goes on from, and what becomes of them
    narrow: bool  # a TPU reads its operands as bfloat16
    copied: int  # bytes of its operand in another layout, which it reads in place of it


class _Way(NamedTuple):
    """How values are laid out."""

    tiled: bool
    images: dict[Any, int]  # by shape and type: bytes of copies of images, which are made once for the whole program
    large: dict[Any, int]  # the same of copies of large values that are read by index
    branch: bool = False  # in a branch of a conditional


class Taken(NamedTuple):
    """Bytes of a function."""

    live: int  # the most that its values take at a time
    images: int  # of copies of images, which are made once for the whole program
    largest: int  # of these values


def bytes_taken(jaxpr: ClosedJaxpr | Jaxpr, tiled: bool = False, carried: int = 0, first: int = 0) -> Taken:
    """What a function takes of a device beside its arguments and constants.

    An estimate: a compiler may order operations in another way, reuse what is no longer read, or fuse less.

    `live` is the largest number of bytes that values take at a time, results among them, and copies of arguments of
    more than 512 MiB of float32 that a TPU reads by index, as of what many clients keep between rounds. `images` are
    copies of those arguments that a TPU copies before it reads some of them by index: images, each in tiles of its
    own. As its compiler was seen to do, it does without where there are many images of one channel, and where what is
    read becomes a row of numbers, element by element, outside of conditionals.

    Args:
        jaxpr: the function.
        tiled: in the layouts of a TPU, whose tiles of 8x128 pad small axes.
        carried: so many of the first results may take the places of arguments, as in a loop those of the turn before.
        first: number of the first of these arguments.
    """
    way = _Way(tiled, {}, {})
    peak = _peak(jaxpr, way, carried, first)
    return Taken(peak.live + sum(way.large.values()), sum(way.images.values()), peak.largest)


def _peak(jaxpr: ClosedJaxpr | Jaxpr, way: _Way, carried: int = 0, first: int = 0, placed: bool = False) -> _Peak:
    """As `bytes_taken`; with `placed`, results do not count."""
    inside = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    program = _Program(way)
    arguments = [program.value(variable.aval) for variable in inside.invars]
    constants = [program.value(variable.aval) for variable in inside.constvars]
    results = program.add(inside, arguments, constants)
    given = {*arguments, *constants}
    turns = dict(zip(arguments[first : first + carried], results[:carried], strict=True))
    free = [one for one in results if isinstance(one, int)] if placed else []
    if way.tiled:
        way.images.update(program.copied_images(given))
        way.large.update(program.copied_large(given))
    return program.most(results, given, turns, set(free))


class _Program:
    """The operations of a function and of those that it calls, in order, equal ones once."""

    def __init__(self, way: _Way):
        self.way, self.tiled = way, way.tiled
        self.sizes: list[int] = []
        self.operations: list[_Operation] = []
        self.known: dict[Any, list[int]] = {}
        self.wide: set[int] = set()  # of float32
        self.images: dict[int, Any] = {}  # shapes of what seems to be images with few channels
        self.large: dict[int, Any] = {}  # shapes of what is too large to be read by index where it lies

    def value(self, aval: Any) -> int:
        shape: Any = getattr(aval, "shape", ())
        if self.tiled and len(shape) == 4 and shape[-1] < SUBLANES:
            self.images[len(self.sizes)] = aval
        elif self.tiled and getattr(aval, "dtype", None) == jnp.float32 and array_bytes(aval) > _READ_WHOLE:
            self.large[len(self.sizes)] = aval
        if getattr(aval, "dtype", None) == jnp.float32:
            self.wide.add(len(self.sizes))
        self.sizes.append(tiled_bytes(aval) if self.tiled else array_bytes(aval))
        return len(self.sizes) - 1

    def add(self, jaxpr: Jaxpr, arguments: list, constants: list) -> list[_Value]:
        values: dict[Any, _Value] = dict(zip(jaxpr.invars, arguments, strict=True))
        values |= zip(jaxpr.constvars, constants, strict=True)

        def read(variable: Any) -> _Value:
            return (str(variable.val), str(variable.aval)) if isinstance(variable, Literal) else values[variable]

        for equation in jaxpr.eqns:
            results = self._results(equation, [read(variable) for variable in equation.invars])
            values |= zip(equation.outvars, results, strict=True)
        return [read(variable) for variable in jaxpr.outvars]

    def _results(self, equation: JaxprEqn, inputs: list[_Value]) -> list[_Value] | list[int]:
        name = equation.primitive.name
        functions = list(jaxprs_in_params(equation.params))
        # A loop of one turn is none in the compiled program.
        if functions and (name in _CALLS or (name == "scan" and equation.params["length"] == 1)):
            called = functions[0].jaxpr if isinstance(functions[0], ClosedJaxpr) else functions[0]
            if len(called.invars) == len(inputs):
                return self.add(called, inputs, [self.value(one.aval) for one in called.constvars])
        if name in _VIEWS and not self.tiled:
            return inputs[:1]
        if name == "slice" and _takes_one(equation):
            name = _ROW
        elif self.tiled and name == "dot_general" and not _is_float(equation.outvars[0].aval):
            name = _WHOLE_NUMBERS
        same = None if functions else (name, tuple(inputs), str(equation.params))
        if same is not None and same in self.known:
            return self.known[same]
        in_memory = name in _READ and name != "pallas_call"  # a kernel's own values are in none
        within = self._within(equation, functions) if in_memory else _Peak(0, 0)
        outputs = [self.value(variable.aval) for variable in equation.outvars]
        copied = self._lay_out(equation, inputs, outputs) if self.tiled else 0
        given = [one for one in inputs if isinstance(one, int)]
        first, count = _carry(equation)
        pairs = zip(inputs[first : first + count], outputs[:count], strict=True)
        carried = [(start, end) for start, end in pairs if isinstance(start, int)]
        narrow = self.tiled and name in _PRODUCTS and _is_default(equation.params["precision"])
        self.operations.append(_Operation(name, given, outputs, within, carried, narrow, copied))
        if same is not None:
            self.known[same] = outputs
        return outputs

    def _lay_out(self, equation: JaxprEqn, inputs: list[_Value], outputs: list[int]) -> int:
        """Sizes of what a TPU lays out in another way for an operation; returns the bytes of a copy that it makes."""
        name, settings = equation.primitive.name, equation.params
        operands: list[Any] = [one.aval for one in equation.invars]
        results: list[Any] = [one.aval for one in equation.outvars]
        rank = len(results[0].shape) if results else 0
        if name == "sort" and rank > 1 and settings["dimension"] == rank - 1:
            for value, aval in zip([*inputs, *outputs], [*operands, *results], strict=True):
                if isinstance(value, int):
                    self.sizes[value] = max(self.sizes[value], padded_bytes(aval, (rank - 2, rank - 1)))
        elif name == "concatenate" and settings["dimension"] == rank - 1:
            for value, aval in zip(inputs, operands, strict=True):
                if isinstance(value, int) and aval.shape[-1] % LANES:
                    self.sizes[value] = max(self.sizes[value], padded_bytes(aval))
        elif name == "split" and settings["axis"] == rank - 1 and any(2 * n < LANES for n in settings["sizes"]):
            for value, aval in zip(outputs, results, strict=True):
                self.sizes[value] = max(self.sizes[value], moved_bytes(aval))
            return max(moved_bytes(operands[0]) - _ON_CHIP, 0)
        elif name == "conv_general_dilated" and (groups := settings["feature_group_count"]) > 1:
            spec = settings["dimension_numbers"]
            for value, aval, axis in (
                (inputs[0], operands[0], spec.lhs_spec[1]),
                (outputs[0], results[0], spec.out_spec[1]),
            ):
                if isinstance(value, int):
                    self.sizes[value] = max(self.sizes[value], grouped_bytes(aval, axis, groups))
        return 0

    def _within(self, equation: JaxprEqn, functions: list) -> _Peak:
        """What an operation's own functions take."""
        name, settings = equation.primitive.name, equation.params
        first, count = _carry(equation)

        def live(function: Any, carried: int = 0, first: int = 0) -> _Peak:
            return _peak(function, self.way, carried, first)

        if name == "cond":
            return max(_peak(function, self.way._replace(branch=True), placed=True) for function in functions)
        if name == "while":
            return max(live(settings["cond_jaxpr"]), live(settings["body_jaxpr"], count, settings["body_nconsts"]))
        if name == "scan":
            return live(functions[0], count, first)
        return max(map(live, functions), default=_Peak(0, 0))

    def most(self, results: list[_Value], given: set[int], turns: dict[int, _Value], placed: set[int]) -> _Peak:
        """The largest sum of what lives at a time.

        What several operations read and is computed element by element is written once or computed anew for each,
        whichever takes less.

        Args:
            results: what is asked for.
            given: arguments and constants, which do not count.
            turns: of the arguments, those whose places results may take, and which.
            placed: results that do not count.
        """
        asked = {one for one in results if isinstance(one, int)}
        needed = list(self._needed(asked))
        stored = asked | set(self._stored(needed)) - given
        shared = self._shared_sums(needed, stored | given)
        ways = [stored, stored | shared] if shared else [stored]
        return min((self._most(needed, way, asked, given, turns, placed) for way in ways), key=lambda peak: peak.live)

    def _most(
        self,
        needed: list[_Operation],
        stored: set[int],
        asked: set[int],
        given: set[int],
        turns: dict[int, _Value],
        placed: set[int],
    ) -> _Peak:
        """As `most`, where these values are written."""
        last = dict.fromkeys(asked, len(needed))
        for place, one in reversed(list(enumerate(needed))):
            # What is fused is computed where it is used, so that its operands live until then.
            used = (
                place
                if any(value in stored for value in one.outputs)
                else max(last[v] for v in one.outputs if v in last)
            )
            for value in one.inputs:
                last[value] = max(last.get(value, 0), used)
        places = self._places(needed, stored - given, asked, last, turns)
        sizes = self._sizes_of(needed, asked | given)
        until: dict[int, int] = {}
        for value, place in places.items():
            until[place] = max(until.get(place, 0), last.get(value, 0))
        peak, alive = _Peak(0, 0), 0
        ending: dict[int, list[int]] = {}
        for number, one in enumerate(needed):
            for value in one.outputs:
                if value in stored and value not in placed and places.get(value, value) == value:
                    alive += sizes[value]
                    end = max(until.get(value, 0), last.get(value, number))
                    ending.setdefault(end, []).append(sizes[value])
            gone = sum(ending.get(number, ()))
            # What is read for the last time is gone as soon as its copy is there.
            copied = max(one.copied - gone, 0) if one.copied else 0
            if (taken := alive + one.within.live + copied) > peak.live:
                peak = _Peak(taken, max((*itertools.chain(*ending.values()), one.within.largest)))
            alive -= gone
            ending.pop(number, None)
        return peak

    def copied_large(self, given: set[int]) -> dict[Any, int]:
        """As `bytes_taken`, by shape and type."""
        found = (self.large.get(one.inputs[0]) for one in self._gathers(given))
        return {(aval.shape, aval.dtype): array_bytes(aval) for aval in found if aval is not None}

    def _gathers(self, given: set[int]) -> Iterator[_Operation]:
        return (one for one in self.operations if one.name == "gather" and one.inputs[0] in given)

    def copied_images(self, given: set[int]) -> dict[Any, int]:
        """As `bytes_taken`, by shape and type."""
        users: dict[int, list[_Operation]] = {}
        for one in self.operations:
            for value in one.inputs:
                users.setdefault(value, []).append(one)

        def as_rows(value: int) -> bool:
            seen, waiting = {value}, [value]
            while waiting:
                for one in users.get(waiting.pop(), []):
                    if one.name != "reshape" and self._in_memory(one):
                        return False
                    fresh = set() if one.name == "reshape" else {*one.outputs} - seen
                    seen |= fresh
                    waiting += fresh
            return True

        copied = {}
        for one in self._gathers(given):
            if (aval := self.images.get(one.inputs[0])) is None:
                continue
            size, grey = padded_bytes(aval, (2, 1)), aval.shape[-1] == 1
            if size <= _COPIED_GREY if grey else self.way.branch or not as_rows(one.outputs[0]):
                copied[aval.shape, aval.dtype] = size
        return copied

    def _places(
        self,
        needed: list[_Operation],
        stored: set[int],
        asked: set[int],
        last: dict[int, int],
        turns: dict[int, _Value],
    ) -> dict[int, int]:
        """Of values that take the place of another one that is no longer read: whose place.

        A loop goes on in the place of what it starts from, and a turn in that of the turn before.
        """
        places: dict[int, int] = {}
        taken: set[tuple[int, int]] = set()  # (loop, place): one of several results that start from there
        read = {value: number for number, one in enumerate(needed) if one.name in _READ for value in one.inputs}
        made = {value for one in needed if not self._in_memory(one) for value in one.outputs} - asked
        before = {after: one for one, after in turns.items() if isinstance(after, int) and after != one}
        for number, one in enumerate(needed):
            for start, end in one.carried:
                place = places.get(start, start)
                mine = before.get(end) == place if place in turns else start in stored
                # What is computed element by element is computed again where it is wanted later.
                free = last[start] == number or (start in made and read[start] == number)
                # Nobody else may read it: a loop reads its constants in every turn.
                alone = one.inputs.count(start) == sum(other == start for other, _ in one.carried)
                if end in stored and mine and free and alone and (number, place) not in taken:
                    places[end] = place
                    taken.add((number, place))
            for value in one.outputs:
                old = before.get(value)
                if value in places or value not in stored or old is None:
                    continue
                # What is computed element by element may overwrite what it reads, and rows may be written into it.
                written = one.name.startswith("scatter") and one.inputs[:1] == [old] and one.inputs.count(old) == 1
                if last.get(old, -1) < number + (one.name not in _READ or written):
                    places[value] = old
        return places

    def _needed(self, results: set[int]) -> list[_Operation]:
        """The operations on which the results depend."""
        used, needed = set(results), []
        for one in reversed(self.operations):
            if any(value in used for value in one.outputs):
                needed.append(one)
                used.update(one.inputs)
        return needed[::-1]

    def _stored(self, operations: list[_Operation]) -> Iterator[int]:
        for one in operations:
            if one.name in _READ or one.name == _WHOLE_NUMBERS:
                yield from one.inputs
            if self._in_memory(one):
                yield from one.outputs

    def _shared_sums(self, operations: list[_Operation], stored: set[int]) -> set[int]:
        """What several operations read and is computed element by element from more than one value in memory.

        As the sums of a residual network, each of which goes into the next one and into a layer.
        """
        readers = collections.Counter(value for one in operations for value in {*one.inputs})
        sources: dict[int, set[int]] = {}  # what is in memory and read for a value
        found = set()
        for one in operations:
            if self._in_memory(one):
                continue
            read = {source for value in one.inputs for source in sources.get(value, {value} & stored)}
            for value in one.outputs:
                large = {source for source in read if 4 * self.sizes[source] >= self.sizes[value]}
                if value not in stored and readers[value] > 1 and len(large) > 1:
                    found.add(value)
                sources[value] = {value} if value in stored or value in found else large
        return found

    def _in_memory(self, one: _Operation) -> bool:
        return one.name in _READ or one.name in _WRITTEN or (self.tiled and one.name in _MOVED)

    def _sizes_of(self, operations: list[_Operation], fixed: set[int]) -> list[int]:
        """Sizes of all values: what only products of a TPU read is bfloat16 from the start."""
        if not self.tiled:
            return self.sizes
        other = set(fixed)
        for one in reversed(operations):
            moves = one.name in _MOVING and not other.intersection(one.outputs)
            if not one.narrow and not moves:
                other.update(one.inputs)
        made = {value for one in operations if one.name not in _READ for value in one.outputs}
        narrow = (self.wide & made) - other
        return [size // 2 if value in narrow else size for value, size in enumerate(self.sizes)]


def _takes_one(equation: JaxprEqn) -> bool:
    avals: list[Any] = [value.aval for value in (*equation.invars, *equation.outvars)]
    whole, part = (aval.shape for aval in avals)
    return all(kept in (1, size) for size, kept in zip(whole, part, strict=True))


def _is_float(aval: Any) -> bool:
    return bool(jnp.issubdtype(aval.dtype, jnp.floating))


def _is_default(precision: Any) -> bool:
    given = precision if isinstance(precision, tuple) else (precision,)
    return all(one in (None, Precision.DEFAULT) for one in given)


def _carry(equation: JaxprEqn) -> tuple[int, int]:
    """(the first operand that a loop goes on from, how many there are)."""
    if equation.primitive.name == "while":
        first = equation.params["cond_nconsts"] + equation.params["body_nconsts"]
        return first, len(equation.invars) - first
    if equation.primitive.name == "scan":
        # By shapes, since JAX 0.12 has other names: a turn gets a part of what is gone through, and gives a part of
        # what is stacked. Operands are constants, what goes from turn to turn, what is gone through, in this order.
        turn = next(iter(jaxprs_in_params(equation.params)))
        turn = turn.jaxpr if isinstance(turn, ClosedJaxpr) else turn
        through = _number_of_parts(equation.invars, turn.invars)
        count = len(equation.outvars) - _number_of_parts(equation.outvars, turn.outvars)
        return len(equation.invars) - through - count, count
    return 0, 0


def _number_of_parts(whole: Iterable[Any], parts: Iterable[Any]) -> int:
    """Values of which a turn of a loop has a part, along an axis that the part lacks."""
    pairs = zip(whole, parts, strict=True)
    return sum(len(one.aval.shape) > len(part.aval.shape) for one, part in pairs)
