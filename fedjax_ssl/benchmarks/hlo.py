"""What a compiled program does, read from its text: kernels, questions to the host, bytes, products.

The text is what XLA prints of a program after scheduling (`Compiled.as_text()`): a computation per block, an
instruction per line. A compiler's own cost analysis counts the body of a loop once and says nothing on a GPU; here a
loop counts as often as its `known_trip_count` says.

Reference:
    Instructions, shapes and attributes: https://openxla.org/xla/operation_semantics; how many multiplications a
    convolution takes follows XLA's HloCostAnalysis, which leaves out products with padding.
"""

import functools
import math
import re
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "s2": 0.25, "u2": 0.25, "s4": 0.5, "u4": 0.5, "bf16": 2, "c64": 8, "c128": 16, "token": 0}
_ARRAY = re.compile(r"\b(pred|token|bf16|[sufc]\d+\w*)\[([\d,<=]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_COMMENT = re.compile(r"/\*.*?\*/")
_TRIPS = re.compile(r'known_trip_count"?:?=?\s*\{\s*"?n"?:\s*"?(\d+)')
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_LIBRARY = re.compile(r'custom_call_target="__cu(?:blas|dnn)')
_WORKSPACE = re.compile(r", s8\[\d+\](?:\{0\})?\)$")
# They start nothing on the device: names for a part of a buffer, values that are written into other kernels.
_FREE = {
    *("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "iota", "after-all", "partition-id"),
    *("replica-id", "add-dependency", "opt-barrier", "domain"),
}
# Kernels of this package, which say themselves how many operations their products have.
_OWN = "__gpu$xla.gpu.triton"
_COUNTED = re.compile(r'serialized_metadata = .{1,3}\{[^}]*operations(?:\\22|\\?"): (?:\\22|\\?")(\d+)')
_CONTROL = {"while", "conditional", "call"}
_CALLED = ("body", "to_apply")  # by loops and calls
# Of their first operand they read as much as they return.
_PARTIAL_READS = {"gather", "dynamic-slice", "slice"}
# Several devices take part in them.
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")


class Instruction(NamedTuple):
    """A line of a computation."""

    name: str
    shape: str  # of the result, as text: "f32[10,784]{1,0}", or several in parentheses
    opcode: str
    operands: tuple[str, ...]  # names
    rest: str  # attributes and metadata
    is_root: bool
    constant: str = ""  # the value of a constant, as text

    @property
    def scope(self) -> str:
        """The path of function names in which the operation was traced; "" where the compiler made it."""
        found = re.search(r'op_name="([^"]*)"', self.rest)
        return found.group(1) if found else ""


class Kernel(NamedTuple):
    """Something that a device starts."""

    name: str
    opcode: str
    times: float  # how often, with the trip counts of the loops around it
    bytes: float  # read and written, each time
    operations: float  # of its products and convolutions, each time
    scope: str
    collective: str = ""  # which of `COLLECTIVES` it is
    exchanged: float = 0.0  # bytes of a collective's result on one device, each time


class Part(NamedTuple):
    """A part of a program: a local step, what else a round does, an evaluation."""

    kernels: tuple[Kernel, ...] = ()
    host_round_trips: float = 0  # loops without a known trip count, once a turn, and conditionals

    @property
    def num_kernels(self) -> float:
        """Kernels that are started."""
        return sum(kernel.times for kernel in self.kernels)

    @property
    def bytes(self) -> float:
        """Read and written by all kernels."""
        return sum(kernel.times * kernel.bytes for kernel in self.kernels)

    @property
    def operations(self) -> float:
        """Floating-point operations in products and convolutions."""
        return sum(kernel.times * kernel.operations for kernel in self.kernels)

    def within(self, scope: str) -> "Part":
        """The kernels that were traced in a named scope."""
        return Part(tuple(kernel for kernel in self.kernels if in_scope(kernel.scope, scope)))

    def seconds(self, launch: float, bandwidth: float, peak: float) -> float:
        """What the kernels take at least, one after another.

        Args:
            launch: seconds from the start of a kernel to that of the next one, at least.
            bandwidth: bytes per second.
            peak: floating-point operations per second.
        """
        return sum(k.times * max(launch, k.bytes / bandwidth, k.operations / peak) for k in self.kernels)


class Steps(NamedTuple):
    """A loop of local steps."""

    part: Part  # one turn
    trips: int | None  # None: the program asks in every turn whether there is another one
    times: float = 1.0  # how often the program comes to the loop
    sometimes: bool = False  # it stands in a branch of a conditional


class Program(NamedTuple):
    """A compiled program."""

    computations: dict[str, dict[str, Instruction]]  # by names, in the order of the text
    entry: str

    def shape_of(self, computation: str, name: str) -> str:
        """The shape of an instruction's result; "" where there is no such instruction."""
        found = self.computations[computation].get(name)
        return "" if found is None else found.shape


def in_scope(path: str, scope: str) -> bool:
    """Whether a path of names passes a named scope, also below transformations: "vmap(scope)/dot"."""
    return _scope(scope).search(path) is not None


def numbered_scopes(program: Program, name: str) -> list[str]:
    """Names of scopes in which something was traced, that are `name` with a number, by this number."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(name)}(\d+)(?![\w.])")
    lines = (one for lines in program.computations.values() for one in lines.values())
    return [
        f"{name}{number}" for number in sorted({int(found) for one in lines for found in pattern.findall(one.scope)})
    ]


def parse(text: str) -> Program:
    """Reads the text of a compiled program.

    Raises:
        ValueError: there is no computation marked as the entry.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, lines = "", None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            lines = computations.setdefault(head.group(2), {})
            entry = head.group(2) if head.group(1) else entry
        elif lines is not None and (match := _INSTRUCTION.match(line)):
            name, text = match.group(2), _COMMENT.sub("", match.group(3))
            lines[name] = _instruction(name, text, bool(match.group(1)))
    if not entry:
        raise ValueError("this is no text of a compiled program: no computation is marked ENTRY")
    return Program(computations, entry)


def shape_bytes(shape: str) -> float:
    """Bytes of all arrays in the text of a shape, without a layout's padding."""
    return sum(_element_bytes(kind) * math.prod(dims) for kind, dims in _arrays(shape))


def steps_and_rest(
    program: Program,
    scope: str,
    host_drives: bool = True,
    taken: str = "",
    others: Collection[str] = (),
    turns_of: Callable[[Instruction], float] = lambda loop: 1,
) -> tuple[list[Steps], Part]:
    """Splits a program into its loops of local steps and everything else.

    A loop is one of local steps where most kernels that stand in its body were traced in the scope, in no loop within
    it, and it is in no other such loop. A conditional counts as its branch that moves the most bytes.

    Args:
        program: from `parse`.
        scope: name of the scope in which a local step is traced.
        host_drives: the host starts every kernel, as on a GPU. Otherwise the device runs the program on its own, as a
            TPU does: loops and conditionals ask nobody, and arithmetic with single numbers starts nothing.
        taken: name of a scope. A conditional counts as its branch that was traced in it, where another branch was
            traced in one of the others.
        others: names of scopes that are not taken.
        turns_of: how often another loop turns whose end is not known.

    Returns:
        (the loops, the rest with its loops multiplied out).
    """
    split = _Split(program, scope, host_drives, taken, others, turns_of)
    rest = split.walk(program.entry, 1.0, "", False)
    return split.steps, rest


def unordered_sums(program: Program) -> list[str]:
    """The operations of a program whose sums of floats a GPU may add in another order at the next run.

    These are scatters that add where indices may repeat, also those of a max-pooling's gradient, by atomic additions;
    and gradients of convolutions by cuDNN, some of whose algorithms add so. `--xla_gpu_deterministic_ops` replaces
    them.

    Args:
        program: from `parse`.

    Returns:
        The names of their instructions.
    """
    found = []
    for name, lines in program.computations.items():
        for one in lines.values():
            if one.opcode in ("scatter", "select-and-scatter"):
                region = _called(one, "scatter" if one.opcode == "select-and-scatter" else "to_apply")
                adds = any(i.opcode == "add" for i in program.computations.get(region, {}).values())
                if adds and _is_float(one.shape) and "unique_indices=true" not in one.rest:
                    found.append(f"{name}/{one.name}")
            elif one.opcode == "custom-call" and "__cudnn$convBackward" in one.rest:
                found.append(f"{name}/{one.name}")
    return found


def _is_float(shape: str) -> bool:
    return any(kind.startswith(("f", "bf")) for kind, _ in _arrays(shape))


@functools.cache
def _scope(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])")


def _loops(path: str) -> int:
    """How many loops a path of names passes or ends at."""
    return len(re.findall(r"\bwhile\b", path))


class _Split:
    """The walk through a program's computations."""

    def __init__(
        self,
        program: Program,
        scope: str,
        host_drives: bool,
        taken: str,
        others: Collection[str],
        turns_of: Callable[[Instruction], float],
    ):
        self.program, self.scope, self.host_drives = program, scope, host_drives
        self.taken, self.others, self.turns_of = taken, others, turns_of
        self.steps: list[Steps] = []

    def walk(self, computation: str, times: float, around: str, inside: bool) -> Part:
        """The kernels of a computation, with what it calls.

        Args:
            computation: its name.
            times: how often it runs.
            around: scope of the call, for what the compiler added and gave no scope.
            inside: it belongs to a local step.
        """
        kernels: list[Kernel] = []
        asked = 0.0
        for one in self.program.computations[computation].values():
            scope = one.scope or around
            if one.opcode == "while":
                part = self.loop(one, times, scope, inside)
            elif one.opcode == "conditional":
                part = self.branch(one, times, scope, inside)
                part = part._replace(host_round_trips=part.host_round_trips + times * self.host_drives)
            elif one.opcode == "call":
                part = self.walk(_called(one, "to_apply"), times, scope, inside)
            elif not self.starts(one):
                continue
            else:
                part = Part((_kernel(self.program, computation, one, times, scope),))
            kernels += part.kernels
            asked += part.host_round_trips
        return Part(tuple(kernels), asked)

    def branch(self, one: Instruction, times: float, scope: str, inside: bool) -> Part:
        """What a conditional does: its branch that is taken or, where that is not known, that moves the most bytes."""
        names = _branches(one)
        taken = [name for name in names if self.taken and self.traced_in(name, self.taken)]
        if len(taken) == 1 and any(self.traced_in(name, other) for name in names for other in self.others):
            return self.walk(taken[0], times, scope, inside)
        before = len(self.steps)
        branches = [self.walk(name, times, scope, inside) for name in names]
        self.steps[before:] = [steps._replace(sometimes=True) for steps in self.steps[before:]]
        return max(branches, key=lambda branch: branch.bytes)

    def traced_in(self, computation: str, scope: str) -> bool:
        """Whether something in a computation, or in a loop or another computation that it calls, has the scope."""
        for one in self.program.computations[computation].values():
            if in_scope(one.scope, scope):
                return True
            called = _branches(one) if one.opcode == "conditional" else [_called(one, name) for name in _CALLED]
            if one.opcode in _CONTROL and any(self.traced_in(name, scope) for name in called if name):
                return True
        return False

    def loop(self, one: Instruction, times: float, scope: str, inside: bool) -> Part:
        """What a loop does; nothing where it is one of local steps, which stands apart."""
        body = _called(one, "body")
        trips = self.trips(one)
        asks = trips is None and self.host_drives
        if not inside and self.of_steps(one, body):
            part = self.walk(body, 1.0, scope, True)
            self.steps.append(Steps(part._replace(host_round_trips=part.host_round_trips + asks), trips, times))
            return Part()
        turns = self.turns_of(one) if trips is None else trips
        part = self.walk(body, times * turns, scope, inside)
        return part._replace(host_round_trips=part.host_round_trips + times * turns * asks)

    def trips(self, one: Instruction) -> int | None:
        """How often a loop turns: as the compiler notes it, or the end of a counter from 0, as JAX's loops have it."""
        if found := _TRIPS.search(one.rest):
            return int(found.group(1))
        condition = self.program.computations.get(_called(one, "condition"), {})
        root = next((i for i in condition.values() if i.is_root), None)
        if root is None or root.opcode != "compare" or "direction=LT" not in root.rest:
            return None
        end = condition.get(root.operands[1])
        return int(end.constant) if end is not None and end.constant.isdigit() else None

    def starts(self, one: Instruction) -> bool:
        """Whether an instruction starts something on the device."""
        if one.opcode in _FREE or one.opcode.endswith(("-done", "-update")):
            return False
        calls = one.opcode in ("fusion", "custom-call") or one.opcode.endswith("-start")
        return self.host_drives or calls or sum(math.prod(dims) for _, dims in _arrays(one.shape)) > 1

    def of_steps(self, loop: Instruction, body: str) -> bool:
        """Whether the steps are this loop's own, and not those of a loop of one turn that the compiler took away."""
        depth = _loops(loop.scope)
        found = [_scope(self.scope).search(name) for name in self.scopes(body)]
        own = [match is not None and (not depth or _loops(match.string[: match.start()]) == depth) for match in found]
        return sum(own) * 2 > len(own)

    def scopes(self, body: str) -> list[str]:
        """Scopes of the kernels that stand in a loop's body, and of what it calls; not of loops in it."""
        found = []
        for one in self.program.computations[body].values():
            if one.opcode == "call":
                found += self.scopes(_called(one, "to_apply"))
            elif one.opcode not in _FREE | _CONTROL and one.scope:
                found.append(one.scope)
        return found


def _kernel(program: Program, computation: str, one: Instruction, times: float, scope: str) -> Kernel:
    called = _called(one, "calls") or _called(one, "called_computations")
    fused = called if one.opcode in ("fusion", "async-start") and called in program.computations else ""
    moved = _fused_bytes(program, computation, one, fused) if fused else _plain_bytes(program, computation, one)
    operations = sum(_operations(program, fused)) if fused else _product(program, computation, one)
    kind, exchanged = _exchange(program, computation, one, fused)
    return Kernel(one.name, one.opcode, times, moved, operations, scope, kind, exchanged)


def _exchange(program: Program, computation: str, one: Instruction, fused: str) -> tuple[str, float]:
    """(which of `COLLECTIVES` an instruction is or a fusion holds, bytes of its result); ("", 0) for all others."""
    if fused:
        inside = (_exchange(program, fused, inner, "") for inner in program.computations[fused].values())
        return next((found for found in inside if found[0]), ("", 0.0))
    kind = one.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return "", 0.0
    exchanged = shape_bytes(one.shape)
    if one.opcode.endswith("-start") and kind != "all-reduce":  # its shape has the operands in front of the results
        exchanged -= sum(shape_bytes(program.shape_of(computation, name)) for name in one.operands)
    return kind, exchanged


def _plain_bytes(program: Program, computation: str, one: Instruction) -> float:
    """Bytes of operands and result; of what is read or written in part, that part."""
    # The last result of a call of cuBLAS or cuDNN is room to work in, of which little is used.
    own = _WORKSPACE.sub(")", one.shape) if _LIBRARY.search(one.rest) else one.shape
    result = shape_bytes(own)
    shapes = [shape_bytes(program.shape_of(computation, name)) for name in one.operands]
    if one.opcode in _PARTIAL_READS:
        return 2 * result + sum(shapes[1:])
    if one.opcode == "dynamic-update-slice":
        return 2 * shapes[1] + sum(shapes[2:])
    if one.opcode == "scatter":  # operands, indices, updates: as many operands as updates
        half = len(shapes) // 2
        return shapes[half] + 2 * sum(shapes[half + 1 :])
    return result + sum(shapes)


def _fused_bytes(program: Program, computation: str, one: Instruction, fused: str) -> float:
    """Bytes that a fusion reads and writes; an operand of which only slices or rows are read counts as those."""
    inner = program.computations[fused]
    written = 0.0
    root = next(i for i in inner.values() if i.is_root)
    results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
    in_place: set[str] = set()
    for result in results:
        source = _source(inner, result)
        if source.opcode in ("dynamic-update-slice", "scatter"):
            place = 1 if source.opcode == "dynamic-update-slice" else len(source.operands) // 2 + 1
            written += shape_bytes(inner[source.operands[place]].shape)
            in_place.add(source.name)
        else:
            written += shape_bytes(result.shape)
    read = 0.0
    for parameter in (i for i in inner.values() if i.opcode == "parameter"):
        whole = shape_bytes(parameter.shape)
        read += min(whole, sum(_read_by(user, name, whole, in_place) for user, name in _users(inner, parameter.name)))
    return read + written


def _read_by(user: Instruction, name: str, whole: float, in_place: set[str]) -> float:
    if user.opcode in _PARTIAL_READS and user.operands[0] == name:
        return shape_bytes(user.shape)
    if user.name in in_place and user.operands[0] == name:
        return 0.0
    return whole


def _source(inner: dict[str, Instruction], one: Instruction) -> Instruction:
    """The instruction whose buffer this one names."""
    while one.opcode == "bitcast":
        one = inner[one.operands[0]]
    return one


def _users(inner: dict[str, Instruction], name: str) -> Iterator[tuple[Instruction, str]]:
    """(who uses a value, by which name)."""
    for one in inner.values():
        if name in one.operands:
            if one.opcode == "bitcast":
                yield from _users(inner, one.name)
            else:
                yield one, name


def _operations(program: Program, computation: str) -> Iterator[float]:
    for one in program.computations[computation].values():
        yield _product(program, computation, one)
        called = _called(one, "calls")
        if one.opcode == "fusion" and called in program.computations:
            yield from _operations(program, called)


def _product(program: Program, computation: str, one: Instruction) -> float:
    """Floating-point operations of a product or a convolution; 0 for everything else."""
    target = re.search(r'custom_call_target="([^"]*)"', one.rest)
    library = target.group(1) if one.opcode == "custom-call" and target else ""
    if counted := _COUNTED.search(one.rest) if library == _OWN else None:
        return float(counted.group(1))
    if one.opcode not in ("dot", "convolution") and not library.startswith(("__cublas", "__cudnn$conv")):
        return 0.0
    shapes = [_dimensions(program.shape_of(computation, name)) for name in one.operands[:2]]
    result = _dimensions(one.shape)
    if one.opcode == "dot" or library.startswith("__cublas"):
        contracted = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)', one.rest)
        axes = [int(axis) for axis in re.findall(r"\d+", contracted.group(1))] if contracted else []
        return 2.0 * math.prod(result) * math.prod(shapes[0][axis] for axis in axes)
    if "BackwardInput" in library:  # its operands: the gradient of the output, the kernel
        return _convolution(one.rest, result, shapes[1], shapes[0])
    if "BackwardFilter" in library:  # the input, the gradient of the output
        return _convolution(one.rest, shapes[0], result, shapes[1])
    return _convolution(one.rest, shapes[0], shapes[1], result)


def _convolution(rest: str, image: list[int], kernel: list[int], output: list[int]) -> float:
    """Twice the multiplications whose factors are both no padding; batches of products are written so on a TPU."""
    labels = _LABELS.search(rest)
    if labels is None:
        return 0.0
    in_labels, kernel_labels, out_labels = labels.groups()
    found = _WINDOW.search(rest)
    window = dict(part.split("=", 1) for part in found.group(1).split()) if found else {}
    pairs = 1
    for axis in sorted(label for label in kernel_labels if label.isdigit()):
        place = int(axis)

        def of(name: str, default: str, place: int = place) -> str:
            values = window.get(name, "").split("x")
            return values[place] if place < len(values) and values[place] else default

        low = int(of("pad", "0_0").split("_")[0])
        stride, spread, apart = int(of("stride", "1")), int(of("lhs_dilate", "1")), int(of("rhs_dilate", "1"))
        width = (image[in_labels.index(axis)] - 1) * spread + 1
        starts = range(-low, -low + stride * output[out_labels.index(axis)], stride)
        offsets = range(0, apart * kernel[kernel_labels.index(axis)], apart)
        pairs *= sum(0 <= s + o < width and (s + o) % spread == 0 for s in starts for o in offsets)
    batch, features = output[out_labels.index("b")], output[out_labels.index("f")]
    return 2.0 * batch * features * kernel[kernel_labels.index("i")] * pairs


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, text = text[:end], text[end:].lstrip()
    start = text.index("(")
    end = _closing(text, start)
    opcode, inner = text[:start], text[start + 1 : end]
    value = inner if opcode == "constant" else ""
    return Instruction(name, shape, opcode, tuple(_NAME.findall(inner)), text[end + 1 :], is_root, value)


def _closing(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"a bracket is not closed in a program's text: {text[:80]}")


def _called(one: Instruction, attribute: str) -> str:
    found = re.search(rf"\b{attribute}=\{{?%?([\w.\-]+)", one.rest)
    return found.group(1) if found else ""


def _branches(one: Instruction) -> list[str]:
    if found := re.search(r"branch_computations=\{([^}]*)\}", one.rest):
        return _NAME.findall(found.group(1))
    return [_called(one, "true_computation"), _called(one, "false_computation")]


def _arrays(shape: str) -> list[tuple[str, list[int]]]:
    return [(kind, [int(n) for n in re.findall(r"\d+", dims)]) for kind, dims in _ARRAY.findall(shape)]


def _dimensions(shape: str) -> list[int]:
    arrays = _arrays(shape)
    return arrays[0][1] if arrays else []


def _element_bytes(kind: str) -> float:
    if kind in _BYTES:
        return _BYTES[kind]
    bits = re.search(r"\d+", kind)
    return int(bits.group()) / 8 if bits else 0
