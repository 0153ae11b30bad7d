"""What the values of a traced function take of a device's memory at a time, as a compiler that fuses lays them out.

Products, reductions, reads by index and loops read and write memory. What is computed element by element between them
is fused: it takes none, unless a product or a loop reads it. Equal values are computed once and live from their first
to their last use, as patches of a convolution do that its gradient uses again.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxprs_in_params

_LANES, _SUBLANES = 128, 8  # of a tile of a TPU: the last two axes are padded to multiples of it
_MOST_PADDING = 5  # a layout that pads more is not chosen

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
# What a TPU does in memory, as it changes the layout.
_MOVED = {"concatenate", "pad", "slice", "split", "reshape", "transpose"}

_Value = int | tuple[str, str]  # a number, or a constant


class _Operation(NamedTuple):
    name: str
    inputs: list[int]
    outputs: list[int]
    within: int  # bytes that its own functions take while it runs


def live_bytes(jaxpr: ClosedJaxpr | Jaxpr, tiled: bool = False) -> int:
    """The largest number of bytes that values take at a time, results among them; arguments and constants do not count.

    An estimate: a compiler may order operations in another way, reuse what is no longer read, or fuse less.

    Args:
        jaxpr: the function.
        tiled: in the layouts of a TPU, whose tiles of 8x128 pad small axes.
    """
    inside = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    program = _Program(tiled)
    arguments = [program.value(variable.aval) for variable in inside.invars]
    constants = [program.value(variable.aval) for variable in inside.constvars]
    results = program.add(inside, arguments, constants)
    return program.most({one for one in results if isinstance(one, int)}, {*arguments, *constants})


class _Program:
    """The operations of a function and of those that it calls, in order, equal ones once."""

    def __init__(self, tiled: bool):
        self.tiled = tiled
        self.sizes: list[int] = []
        self.operations: list[_Operation] = []
        self.known: dict[Any, list[int]] = {}

    def value(self, aval: Any) -> int:
        self.sizes.append(_tiled_bytes(aval) if self.tiled else array_bytes(aval))
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
        if name in _CALLS and functions:
            called = functions[0].jaxpr if isinstance(functions[0], ClosedJaxpr) else functions[0]
            if len(called.invars) == len(inputs):
                return self.add(called, inputs, [self.value(one.aval) for one in called.constvars])
        if name in _VIEWS and not self.tiled:
            return inputs[:1]
        same = None if functions else (name, tuple(inputs), str(equation.params))
        if same is not None and same in self.known:
            return self.known[same]
        in_memory = name in _READ and name != "pallas_call"  # a kernel's own values are in none
        within = [live_bytes(function, self.tiled) for function in functions] if in_memory else []
        outputs = [self.value(variable.aval) for variable in equation.outvars]
        given = [one for one in inputs if isinstance(one, int)]
        self.operations.append(_Operation(name, given, outputs, max(within, default=0)))
        if same is not None:
            self.known[same] = outputs
        return outputs

    def most(self, results: set[int], given: set[int]) -> int:
        """The largest sum of what lives at a time."""
        needed = list(self._needed(results))
        stored = results | set(self._stored(needed)) - given
        last = dict.fromkeys(results, len(needed))
        for place, one in reversed(list(enumerate(needed))):
            # What is fused is computed where it is used, so that its operands live until then.
            used = (
                place
                if any(value in stored for value in one.outputs)
                else max(last[v] for v in one.outputs if v in last)
            )
            for value in one.inputs:
                last[value] = max(last.get(value, 0), used)
        living = largest = 0
        ending: dict[int, int] = {}
        for place, one in enumerate(needed):
            for value in one.outputs:
                if value in stored:
                    living += self.sizes[value]
                    end = last.get(value, place)
                    ending[end] = ending.get(end, 0) + self.sizes[value]
            largest = max(largest, living + one.within)
            living -= ending.pop(place, 0)
        return largest

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
            if one.name in _READ:
                yield from one.inputs
            if one.name in _READ or one.name in _WRITTEN or (self.tiled and one.name in _MOVED):
                yield from one.outputs


def array_bytes(array: Any) -> int:
    """Bytes of an array, of which only shape and type are used."""
    dtype = getattr(array, "dtype", None)  # tokens have none
    return 0 if dtype is None else math.prod(array.shape) * dtype.itemsize


def _tiled_bytes(aval: Any) -> int:
    plain, shape = array_bytes(aval), list(getattr(aval, "shape", ()))
    if not plain or not shape:
        return plain
    for axis, tile in ((-1, _LANES), (-2, _SUBLANES)):
        if len(shape) >= -axis:
            shape[axis] = -(-shape[axis] // tile) * tile
    return min(math.prod(shape) * aval.dtype.itemsize, _MOST_PADDING * plain)
