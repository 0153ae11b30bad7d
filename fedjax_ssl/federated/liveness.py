"""What the values of a traced function take of a device's memory at a time, as a compiler that fuses lays them out.

Products, reductions, reads by index and loops read and write memory. What is computed element by element between them
is fused: it takes none, unless a product or a loop reads it. Equal values are computed once and live from their first
to their last use, as patches of a convolution do that its gradient uses again.
"""

import collections
import itertools
import math
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

# What has a name of its own here: a slice of a single place along an axis, which is read as it is computed with; a
# product of whole numbers, with which a TPU computes before it writes; and what has functions of which none takes its
# operands, so that it is not known how it calls them.
_ROW, _WHOLE_NUMBERS, _UNKNOWN = "row", "product of whole numbers", "unknown call"
# Other names are those of JAX's primitives; a test names those that the installed JAX lacks.
_KERNELS = {"pallas_call", "core_map", "mpmd_map"}  # what their functions compute is in none of the device's memory
# What reads its operands from memory and writes its results there.
_READ = {
    *("scan", "while", "cond", _UNKNOWN, *_KERNELS),
    *("dot_general", "conv_general_dilated", "ragged_dot_general", "scaled_dot", "scaled_matmul"),
    *("fft", "sort", "top_k", "approx_top_k"),
    *("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"),
    *("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"),
    *("select_and_scatter", "select_and_scatter_add", "select_and_gather_add"),
    *("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"),
    *("cholesky", "cholesky_update", "triangular_solve", "tridiagonal_solve", "symmetric_product"),
    *("lu", "lu_pivots_to_permutation", "qr", "geqrf", "geqp3", "householder_product", "ormqr"),
    *("eig", "eigh", "svd", "schur", "hessenberg", "tridiagonal"),
    *("ffi_call", "call_exported", "pure_callback", "io_callback"),
}
# What reads its operands as they are computed, and writes its results.
_WRITTEN = {
    *("reduce", "reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_xor", "reduce_prod"),
    *("argmax", "argmin", "gather", "dynamic_update_slice"),
    *("random_bits", "random_gamma", "rng_bit_generator", "rng_uniform"),
    *("psum", "psum_invariant", "pmax", "pmin", "ppermute", "pbroadcast", "reduce_scatter"),
    *("all_gather", "all_gather_invariant", "all_to_all", "ragged_all_to_all"),
}
# Other names of a part of memory.
_VIEWS = {"reshape", "squeeze"}
# Another name of its operands, which are written: compilers keep the barrier until they have fused what is beside it.
_BARRIERS = {"optimization_barrier"}
# What a TPU multiplies, as bfloat16 unless more is asked for; what only moves values there moves them as bfloat16.
_PRODUCTS = {"dot_general", "conv_general_dilated"}
_MOVING = {
    *("concatenate", "stack", "unstack", "pad", "slice", "reshape", "squeeze", "transpose", "copy", "rev"),
    _ROW,
}
# What a TPU does in memory, as it changes the layout.
_MOVED = {"concatenate", "stack", "unstack", "pad", "slice", "split", "reshape", "transpose"}
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
    largest: int  # of these, of one that a loop goes on with


class _Operation(NamedTuple):
    name: str
    inputs: list[int]
    outputs: list[int]
    within: _Peak  # what its own functions take while it runs
    carried: list[tuple[int, int]]  # operands that a loop goes on from, and what becomes of them
    narrow: bool  # a TPU reads its operands as bfloat16
    copied: int  # bytes of its operand in another layout, which it reads in place of it


class _Where(NamedTuple):
    """What a function is part of."""

    tiled: bool  # a program of a TPU
    branch: bool = False  # of a conditional, at any depth


class _Copies:
    """Copies of arguments, found in all functions of a program: each is made once, whoever reads it."""

    def __init__(self) -> None:
        self.images: dict[Any, int] = {}  # bytes by shape and type
        self.large: dict[Any, int] = {}


class Taken(NamedTuple):
    """Bytes of a function."""

    live: int  # the most that its values take at a time
    images: int  # of copies of images, which are made once for the whole program
    largest: int  # of these values, of one that a loop goes on with


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
    copies = _Copies()
    peak = _peak(jaxpr, _Where(tiled), copies, carried, first)
    return Taken(peak.live + sum(copies.large.values()), sum(copies.images.values()), peak.largest)


def _peak(
    jaxpr: ClosedJaxpr | Jaxpr,
    where: _Where,
    copies: _Copies,
    carried: int = 0,
    first: int = 0,
    placed: bool = False,
) -> _Peak:
    """As `bytes_taken`; copies are added to `copies`, and with `placed`, results do not count."""
    inside = _open(jaxpr)
    program = _Program(where, copies)
    arguments = [program.value(variable.aval) for variable in inside.invars]
    constants = [program.value(variable.aval) for variable in inside.constvars]
    results = program.add(inside, arguments, constants)
    given = {*arguments, *constants}
    turns = dict(zip(arguments[first : first + carried], results[:carried], strict=True))
    free = [one for one in results if isinstance(one, int)] if placed else []
    if where.tiled:
        copies.images.update(program.copied_images(given))
        copies.large.update(program.copied_large(given))
    return program.most(results, given, turns, set(free))


class _Program:
    """The operations of a function and of those that it calls, in order, equal ones once."""

    def __init__(self, where: _Where, copies: _Copies):
        self.where, self.tiled = where, where.tiled
        self.copies = copies  # those of the functions of its operations are added
        self.sizes: list[int] = []
        self.operations: list[_Operation] = []
        self.known: dict[Any, list[int]] = {}
        self.wide: set[int] = set()  # of float32
        self.barred: set[int] = set()  # what a barrier reads
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
        functions = [_open(one) for one in jaxprs_in_params(equation.params)]
        # A loop of one turn is none in the compiled program.
        one_turn = name == "scan" and equation.params["length"] == 1
        if functions and (one_turn or name not in _READ | _WRITTEN):
            # The values of a function that is called are those of the caller, whatever the call's name.
            if (called := _called(equation, functions)) is not None:
                return self.add(called, inputs, [self.value(one.aval) for one in called.constvars])
            name = name if one_turn else _UNKNOWN
        if name in _BARRIERS:
            self.barred.update(one for one in inputs if isinstance(one, int))
            return inputs
        if name in _VIEWS and (not self.tiled or (inputs[0] in self.barred and _keeps_tiles(equation))):
            return inputs[:1]
        if name == "slice" and _takes_one(equation):
            name = _ROW
        elif self.tiled and name == "dot_general" and not _is_float(equation.outvars[0].aval):
            name = _WHOLE_NUMBERS
        same = None if functions else (name, tuple(inputs), str(equation.params))
        if same is not None and same in self.known:
            return self.known[same]
        within = self._within(equation, functions) if name in _READ - _KERNELS else _Peak(0, 0)
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

    def _within(self, equation: JaxprEqn, functions: list[Jaxpr]) -> _Peak:
        """What an operation's own functions take."""
        name, settings = equation.primitive.name, equation.params
        first, count = _carry(equation)

        def turn(function: Any, carried: int = 0, first: int = 0) -> _Peak:
            return _peak(function, self.where, self.copies, carried, first)

        if name == "while":
            return max(turn(settings["cond_jaxpr"]), turn(settings["body_jaxpr"], count, settings["body_nconsts"]))
        if name == "scan":
            return turn(functions[0], count, first)
        # A single one of them runs, and its results are those of the operation.
        where = self.where._replace(branch=True) if name == "cond" else self.where
        peaks = (_peak(function, where, self.copies, placed=True) for function in functions)
        return max(peaks, default=_Peak(0, 0))

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
        stored = asked | (set(self._stored(needed)) | self.barred) - given
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
        looped = {value for one in needed for pair in one.carried for value in pair}
        peak, alive = _Peak(0, 0), 0
        ending: dict[int, list[int]] = {}  # values by the operation after which they are gone
        for number, one in enumerate(needed):
            for value in one.outputs:
                if value in stored and value not in placed and places.get(value, value) == value:
                    alive += sizes[value]
                    end = max(until.get(value, 0), last.get(value, number))
                    ending.setdefault(end, []).append(value)
            gone = sum(sizes[value] for value in ending.get(number, ()))
            # What is read for the last time is gone as soon as its copy is there.
            copied = max(one.copied - gone, 0) if one.copied else 0
            if (taken := alive + one.within.live + copied) > peak.live:
                largest = (sizes[value] for value in looped.intersection(itertools.chain(*ending.values())))
                peak = _Peak(taken, max((*largest, one.within.largest)))
            alive -= gone
            ending.pop(number, None)
        return peak

    def copied_large(self, given: set[int]) -> dict[Any, int]:
        """Arguments that a TPU copies since they are too large to be read by index where they lie.

        Args:
            given: arguments and constants.

        Returns:
            bytes of each copy by its shape and type, which tell arrays apart: an array is an argument of every loop
            around the read.
        """
        found = (self.large.get(one.inputs[0]) for one in self._gathers(given))
        return {(aval.shape, aval.dtype): array_bytes(aval) for aval in found if aval is not None}

    def _gathers(self, given: set[int]) -> Iterator[_Operation]:
        """Reads by index of arguments and constants."""
        return (one for one in self.operations if one.name == "gather" and one.inputs[0] in given)

    def copied_images(self, given: set[int]) -> dict[Any, int]:
        """Images among the arguments that a TPU copies before it reads some of them by index.

        In the copy each image has tiles of its own. The compiler does without where what is read becomes a row of
        numbers, element by element, outside of conditionals; and where there are many images of one channel.

        Args:
            given: arguments and constants.

        Returns:
            bytes of each copy by its shape and type.
        """
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
            if size <= _COPIED_GREY if grey else self.where.branch or not as_rows(one.outputs[0]):
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
        made = {value for one in needed if not self._in_memory(one) for value in one.outputs} - asked - self.barred
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
                if last.get(old, -1) < number + (written or one.name not in _READ):
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


def _open(jaxpr: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _called(equation: JaxprEqn, functions: list[Jaxpr]) -> Jaxpr | None:
    """The first function that takes an operation's operands and gives its results; None: none does."""

    def sizes(of: JaxprEqn | Jaxpr) -> list[int]:  # without the axis of length 1 that a loop of one turn goes along
        return [math.prod(getattr(variable.aval, "shape", ())) for variable in (*of.invars, *of.outvars)]

    return next((one for one in functions if sizes(one) == sizes(equation)), None)


def _takes_one(equation: JaxprEqn) -> bool:
    avals: list[Any] = [value.aval for value in (*equation.invars, *equation.outvars)]
    whole, part = (aval.shape for aval in avals)
    return all(kept in (1, size) for size, kept in zip(whole, part, strict=True))


def _keeps_tiles(equation: JaxprEqn) -> bool:
    """Whether a TPU leaves what is in memory where it is: full tiles stay as they are in the other shape."""
    avals: list[Any] = [equation.invars[0].aval, equation.outvars[0].aval]
    if any(len(aval.shape) < 2 for aval in avals) or avals[0].shape[-1] != avals[1].shape[-1]:
        return False
    rows = SUBLANES * 4 // avals[0].dtype.itemsize
    return all(aval.shape[-1] % LANES == 0 and aval.shape[-2] % rows == 0 for aval in avals)


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
        turn = _open(next(iter(jaxprs_in_params(equation.params))))
        through = _number_of_parts(equation.invars, turn.invars)
        count = len(equation.outvars) - _number_of_parts(equation.outvars, turn.outvars)
        return len(equation.invars) - through - count, count
    return 0, 0


def _number_of_parts(whole: Iterable[Any], parts: Iterable[Any]) -> int:
    """Values of which a turn of a loop has a part, along an axis that the part lacks."""
    pairs = zip(whole, parts, strict=True)
    return sum(len(one.aval.shape) > len(part.aval.shape) for one, part in pairs)
