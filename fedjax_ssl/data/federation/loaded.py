"""Examples that stay on the host: those that the coming rounds need are brought to the device, under their own rows.

The tables of a federation are the same wherever its examples are; only `FederatedData.inputs` is another.
"""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedjax_ssl.backend import backend
from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.federation.federated_data import FederatedData

_ALIGNMENT = 64  # bytes
RESIDENCES = ("auto", "device", "host")


class NotOnDevice(ValueError):
    """Somebody looked at examples that may not be on the device."""

    def __init__(self) -> None:
        """Says so."""
        super().__init__("a round looks at the examples of all clients, of which only the cohort's are on the device")


class Drawn(NamedTuple):
    """Who takes part in the coming rounds."""

    first: Int[Array, ""]  # of these rounds, counted from the beginning of the run
    ids: Int[Array, "rounds p"]  # as `fedjax_ssl.federated.Cohort` has them
    valid: Bool[Array, "rounds p"]
    order: Int[Array, "rounds q"] | None = None  # slots of each device in turn, where they are dealt to several


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoadedInputs:
    """Inputs of N examples of which M are on the device: `inputs[rows]` as of the whole array, for rows that are there.

    It stands where an array of all inputs would. What a row that is not there gives is another example's, so that who
    asks must know which are there. What takes it for a whole array, such as `jnp.isfinite(inputs)`, raises
    `NotOnDevice`.
    """

    values: Array  # [M, ...]
    place: Int[Array, " N"]  # of every row in `values`; 0 for rows that are not there
    drawn: Drawn | None = None  # whose examples are there, so that rounds do not draw others; None: nobody's

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, NotLoaded):
            raise NotOnDevice
        return self.values[self.place[rows]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return (*self.place.shape, *self.values.shape[1:])

    @property
    def ndim(self) -> int:
        """Of the whole array."""
        return self.values.ndim

    @property
    def dtype(self) -> Any:
        """Of an input."""
        return self.values.dtype

    def __jax_array__(self) -> NoReturn:
        raise NotOnDevice


class NotLoaded:
    """Rows of examples that are not on the device; only their number is known, and any other use is refused."""

    def __init__(self, shape: tuple[int, ...]):
        """Keeps the shape.

        Args:
            shape: of the table of rows.
        """
        self.shape, self.ndim = shape, len(shape)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what Python and JAX try on anything
            raise AttributeError(name)
        raise NotOnDevice

    def __getitem__(self, place: Any) -> NoReturn:
        raise NotOnDevice


class HostInputs:
    """Inputs of a dataset where they lie, for example in files that are memory-mapped; they are never copied whole."""

    def __init__(self, dataset: Dataset):
        """Numbers training and then test examples, as `federate` does.

        Args:
            dataset: its arrays are kept as they are.
        """
        splits = [dataset.train] if dataset.test is None else [dataset.train, dataset.test]
        # Reading rows of an array in another order would copy all of it every time.
        self._parts = [np.require(split.x, requirements="C") for split in splits]
        self._starts = np.cumsum([0, *map(len, self._parts)])
        self.shape, self.dtype = (int(self._starts[-1]), *dataset.input_shape), self._parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(part.nbytes for part in self._parts)

    @property
    def in_memory(self) -> int:
        """Bytes of the training inputs, if all are in this process's memory because their source did not map a file."""
        return 0 if _is_mapped(self._parts[0]) else self._parts[0].nbytes

    def bytes_of(self, rows: int) -> int:
        """Bytes of so many inputs on a device, without the places of all N rows."""
        return rows * int(np.prod(self.shape[1:])) * self.dtype.itemsize

    def read(self, rows: Int[np.ndarray, " m"], width: int, before: np.ndarray | None = None) -> np.ndarray:
        """Copies inputs into an array of their own.

        Args:
            rows: in increasing order, so that files are read from front to back.
            width: of their part of the array, at least m; what is behind is 0.
            before: inputs that come first in it.

        Returns:
            [those before + width, ...].
        """
        begin = 0 if before is None else len(before)
        whole = _aligned((begin + width, *self.shape[1:]), self.dtype)
        if before is not None:
            whole[:begin] = before
        values = whole[begin:]
        values[len(rows) :] = 0
        cuts = np.searchsorted(rows, self._starts)
        for part, start, first, last in zip(self._parts, self._starts[:-1], cuts[:-1], cuts[1:], strict=True):
            if first < last:  # with "clip" NumPy writes in place, without a copy between
                np.take(part, rows[first:last] - start, axis=0, out=values[first:last], mode="clip")
        return whole


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that JAX takes over on a CPU as it lies, where it would copy one at another address."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def always_there(host: HostInputs, federation: FederatedData) -> LoadedInputs:
    """What is on the device from beginning to end: test, validation and server examples.

    Args:
        host: the inputs.
        federation: with concrete tables; its inputs are not looked at.
    """
    rows = [np.zeros(1, np.int64)]  # what padding points to
    for name in ("test", "valid", "server"):
        table, count = getattr(federation, f"{name}_index"), getattr(federation, f"num_{name}")
        rows.append(np.asarray(table)[: int(count)])
    found = np.unique(np.concatenate(rows))
    places = np.zeros(federation.labels.shape[0], np.int32)  # the dataset's own test split may be left out
    places[found] = np.arange(len(found), dtype=np.int32)
    return LoadedInputs(jnp.asarray(host.read(found, len(found))), jnp.asarray(places))


def most_rows(federation: FederatedData, clients: int) -> int:
    """How many training examples so many clients have at most: those of the largest ones."""
    sizes = np.sort(np.asarray(federation.num_examples).astype(np.int64))
    return int(sizes[max(len(sizes) - clients, 0) :].sum())


def with_cohorts(
    host: HostInputs, always: LoadedInputs, federation: FederatedData, drawn: Drawn, width: int
) -> LoadedInputs:
    """Brings the training examples of some rounds' cohorts to the device.

    Args:
        host: the inputs.
        always: what is there already, and stays.
        federation: with concrete tables.
        drawn: the cohorts.
        width: at least the number of their examples, for what comes to have one shape.

    Returns:
        Both, M = those that are always there + `width`.
    """
    rows = rows_of(federation, np.asarray(drawn.ids)[np.asarray(drawn.valid)])
    return dataclasses.replace(brought(host, always, rows, width), drawn=drawn)


def rows_of(federation: FederatedData, clients: Int[np.ndarray, " b"]) -> Int[np.ndarray, " m"]:
    """The rows of some clients' training examples, each once and in increasing order."""
    ids = np.unique(clients)
    table, sizes = np.asarray(federation.index)[ids], np.asarray(federation.num_examples)[ids]
    return np.unique(table[np.arange(table.shape[1]) < sizes[:, None]])


def brought(
    host: HostInputs, always: LoadedInputs, rows: Int[np.ndarray, " m"], width: int, stacked: bool = False
) -> LoadedInputs:
    """Brings examples to the device that has `always`, beside these.

    Args:
        host: the inputs.
        always: what is there already, and stays.
        rows: of the examples, in increasing order.
        width: at least their number.
        stacked: with a leading axis of length 1.
    """
    numbers = np.full(width, host.shape[0], np.int32)  # behind all rows, where nothing is kept
    numbers[: len(rows)] = rows
    place = _places(always.place, numbers, np.int32(always.values.shape[0]), stacked)
    if backend() == "cpu":  # which takes the array over as it lies
        values = host.read(rows, width, np.asarray(always.values))
        return LoadedInputs(jax.device_put(values[None] if stacked else values, always.values.device), place)
    values = jax.device_put(host.read(rows, width), always.values.device)
    return LoadedInputs(_behind(always.values, values, stacked), place)


@partial(jax.jit, static_argnames="stacked")
def _behind(always: Array, values: Array, stacked: bool) -> Array:
    both = jnp.concatenate([always, values])
    return both[None] if stacked else both


@partial(jax.jit, static_argnames="stacked")
def _places(place: Int[Array, " N"], rows: Int[Array, " m"], first: Int[Array, ""], stacked: bool) -> Array:
    behind = first + jnp.arange(rows.shape[0], dtype=jnp.int32)
    moved = place.at[rows].set(behind, mode="drop")
    return moved[None] if stacked else moved
