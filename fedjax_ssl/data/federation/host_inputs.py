"""Examples that stay on the host; devices get those that the coming rounds read, under their usual
row numbers.

The tables of a federation do not depend on the place of its examples; only `FederatedData.inputs`
differs. If several devices share the cohorts, each one has the examples of its own clients only.
Other reads of a round, such as the points of a graph over the cohort, are fetched from the device
that has the example.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from fedjax_ssl.data.dataset import Dataset, is_mapped
from fedjax_ssl.data.federation.federated_data import FederatedData, real_rows

RESIDENCES = ("auto", "device", "host")


class NotOnDevice(ValueError):
    """Raised when code reads examples that are not on the device."""

    def __init__(self) -> None:
        super().__init__(
            "a round looks at the examples of all clients, of which only the cohort's are on the "
            "device"
        )


class NotLoaded:
    """A table of rows whose examples are not on the device: it has a shape, and raises an error on
    any other use.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.ndim = len(shape)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # Python and JAX try such names on any object
            raise AttributeError(name)
        raise NotOnDevice

    def __getitem__(self, place: Any) -> NoReturn:
        raise NotOnDevice


class Drawn(NamedTuple):
    """The cohorts of consecutive rounds."""

    first: Int[Array, ""]  # number of the first round, counted from the beginning of the run
    ids: Int[Array, "rounds p"]  # client ids, as in `fedjax_ssl.federated.Cohort`
    valid: Bool[Array, "rounds p"]  # False in slots without a client
    order: Int[Array, "rounds q"] | None = None
    # ^ slots of each device in turn, if several devices share a cohort


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoadedInputs:
    """Inputs of N examples, of which M are on a device; `inputs[rows]` works as with the whole
    array.

    Stands in for the array of all inputs. It holds the rows of the current cohort; any other row
    number returns an arbitrary example. Code that needs the whole array, such as
    `jnp.isfinite(inputs)`, raises `NotOnDevice`. With a mesh, every read is an exchange in which
    all its devices must take part, and returns the same values on each.
    """

    values: Array  # [M, ...]; with a mesh [devices, M, ...]
    place: Int[Array, " N"]
    # ^ place of every row in `values`, 0 for missing rows; with a mesh [devices, N]
    drawn: Drawn | None = None
    # ^ cohorts whose examples are loaded, so that rounds do not draw others; None: none
    mesh: Mesh | None = dataclasses.field(default=None, metadata={"static": True})
    # ^ devices with different examples

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, NotLoaded):
            raise NotOnDevice
        if self.mesh is None:
            return self.values[self.place[rows]]
        if isinstance(rows, slice):
            rows = jnp.arange(self.shape[0], dtype=jnp.int32)[rows]
        everywhere = PartitionSpec()
        fetch = jax.shard_map(
            _fetch,
            mesh=self.mesh,
            in_specs=(self.specs(), everywhere),
            out_specs=everywhere,
            check_vma=False,
        )
        found: Array = fetch(self, jnp.asarray(rows))
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        apart = self.mesh is not None
        return (self.place.shape[-1], *self.values.shape[1 + apart :])

    @property
    def ndim(self) -> int:
        """Number of axes of the whole array."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Type of an input."""
        return self.values.dtype

    def specs(self) -> "LoadedInputs":
        """Return the placement of the leaves on the mesh, as a tree of `PartitionSpec`."""
        assert self.mesh is not None
        share: Any = PartitionSpec(self.mesh.axis_names)
        drawn = jax.tree.map(lambda _: PartitionSpec(), self.drawn)
        return LoadedInputs(share, share, drawn, self.mesh)

    def of_this_device(self) -> "LoadedInputs":
        """Return the part of this device, inside a `shard_map` over the mesh."""
        return LoadedInputs(self.values[0], self.place[0])

    def __jax_array__(self) -> NoReturn:
        raise NotOnDevice


def _fetch(inputs: LoadedInputs, rows: Int[Array, "*shape"]) -> Array:
    assert inputs.mesh is not None
    here = inputs.of_this_device()
    values = here[rows]
    # A missing row has place 0, which is row 0 on every device.
    there = (here.place[rows] > 0) | (rows == 0)
    # As unsigned integers: the maximum of the value and zeros has the same bits as the value.
    bits = values
    if not jnp.issubdtype(values.dtype, jnp.unsignedinteger):
        bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"uint{8 * values.dtype.itemsize}"))
    found = jnp.where(
        there.reshape(*there.shape, *[1] * (bits.ndim - there.ndim)), bits, jnp.zeros_like(bits)
    )
    found = jax.lax.pmax(found, inputs.mesh.axis_names)
    return (
        found if found.dtype == values.dtype else jax.lax.bitcast_convert_type(found, values.dtype)
    )


class HostInputs:
    """Inputs of a dataset in their place, for example in memory-mapped files; they are never copied
    whole.

    Args:
        dataset: its arrays are not converted; training rows come first, as in `federate`.
    """

    def __init__(self, dataset: Dataset):
        # Reading rows of an array in another memory order would copy the whole array every time.
        self._parts = [np.require(split.x, requirements="C") for split in dataset.splits().values()]
        self._starts = np.cumsum([0, *map(len, self._parts)])
        self.shape = (int(self._starts[-1]), *dataset.train.x.shape[1:])
        self.dtype = self._parts[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all inputs."""
        return sum(part.nbytes for part in self._parts)

    @property
    def in_memory(self) -> int:
        """Bytes of the training inputs, if all of them are in this process's memory and not in a
        mapped file.
        """
        return 0 if is_mapped(self._parts[0]) else self._parts[0].nbytes

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of this number of inputs on a device, without the places of all N
        rows.
        """
        return rows * int(np.prod(self.shape[1:])) * self.dtype.itemsize

    def read(self, rows: Int[np.ndarray, " m"], width: int) -> np.ndarray:
        """Copy inputs into a new array.

        Args:
            rows: in increasing order, so that files are read from front to back.
            width: length of the array, at least m.

        Returns:
            [width, ...], 0 after the rows.
        """
        values = np.zeros((width, *self.shape[1:]), self.dtype)
        cuts = np.searchsorted(rows, self._starts)
        for part, start, first, last in zip(
            self._parts, self._starts[:-1], cuts[:-1], cuts[1:], strict=True
        ):
            if first < last:  # with "clip" NumPy writes in place, without a temporary copy
                np.take(part, rows[first:last] - start, axis=0, out=values[first:last], mode="clip")
        return values


def load_examples(
    host: HostInputs,
    federation: FederatedData,
    clients: Sequence[Int[np.ndarray, " b"]] = (),
    width: int = 0,
    drawn: Drawn | None = None,
    mesh: Mesh | None = None,
) -> LoadedInputs:
    """Bring the test, validation and server examples to the devices, and the training examples of
    some clients.

    Args:
        host: inputs of the dataset.
        federation: federation with concrete tables; its inputs are not used.
        clients: clients of each device of the mesh, from `clients_of_devices`; without a mesh,
            clients of the single device.
        width: number of training examples that fit on a device, so that all blocks have the same
            shape.
        drawn: cohorts of the rounds for which examples are loaded.
        mesh: devices with different examples, of all processes; each process reads examples for its
            own devices.

    Returns:
        Inputs with M = test, validation and server examples + `width`.
    """
    always = _rows_for_evaluation(federation)
    table = np.asarray(federation.index)
    sizes = np.asarray(federation.num_examples)

    def rows_of(device: int) -> Int[np.ndarray, " m"]:
        if not clients:
            return always
        ids = np.unique(clients[device])
        return np.union1d(always, real_rows(table[ids], sizes[ids]))

    def values_of(device: int) -> np.ndarray:
        return host.read(rows_of(device), len(always) + width)

    def places_of(device: int) -> Int[np.ndarray, " N"]:
        rows = rows_of(device)
        # The dataset's own test split may be left out.
        places = np.zeros(federation.labels.shape[0], np.int32)
        places[rows] = np.arange(len(rows), dtype=np.int32)
        return places

    if mesh is None:
        return LoadedInputs(jnp.asarray(values_of(0)), jnp.asarray(places_of(0)), drawn)
    share = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def on_devices(shape: tuple[int, ...], read: Callable[[int], np.ndarray]) -> Array:
        def part(index: Any) -> np.ndarray:
            return read(index[0].start or 0)[None]

        return jax.make_array_from_callback((mesh.size, *shape), share, part)

    values = on_devices((len(always) + width, *host.shape[1:]), values_of)
    return LoadedInputs(values, on_devices(federation.labels.shape, places_of), drawn, mesh)


def _rows_for_evaluation(federation: FederatedData) -> Int[np.ndarray, " m"]:
    """Return the rows of test, validation and server examples, and row 0, because padding points to
    it; in increasing order.
    """
    kinds = ("test", "valid", "server")
    rows = [
        real_rows(getattr(federation, f"{kind}_index"), getattr(federation, f"num_{kind}"))
        for kind in kinds
    ]
    return np.union1d(np.zeros(1, np.int64), np.concatenate(rows))


def most_rows(federation: FederatedData, clients: int) -> int:
    """Return the most training examples that so many clients can have together."""
    sizes = np.sort(np.asarray(federation.num_examples).astype(np.int64))
    return int(sizes[max(len(sizes) - clients, 0) :].sum())


def clients_of_devices(drawn: Drawn, num_devices: int = 1) -> list[Int[np.ndarray, " b"]]:
    """List the clients that each device trains in some rounds, each client once and in increasing
    order.

    Args:
        drawn: cohorts, with `order` if several devices share a cohort.
        num_devices: number of devices that share a cohort.
    """
    ids = np.asarray(drawn.ids)
    valid = np.asarray(drawn.valid)
    if drawn.order is None:
        return [np.unique(ids[valid])]
    order = np.asarray(drawn.order)
    empty = ((0, 0), (0, order.shape[1] - ids.shape[1]))
    ids, there = (np.take_along_axis(np.pad(x, empty), order, axis=1) for x in (ids, valid))
    shares = zip(
        np.split(ids, num_devices, axis=1), np.split(there, num_devices, axis=1), strict=True
    )
    return [np.unique(mine[real]) for mine, real in shares]
