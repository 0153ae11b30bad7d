"""Examples of a block of rounds dealt to devices: each has those of the clients that it trains, and no others.

Where several processes share a run, each reads those of its own devices from its files. What the rounds read outside
local training, such as the points of a graph of the cohort, is fetched from the device that has it.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from fedjax_ssl.data.federation.federated_data import FederatedData
from fedjax_ssl.data.federation.loaded import Drawn, HostInputs, LoadedInputs, brought, rows_of

PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OfAllDevices:
    """Inputs that are on one device or another: `inputs[rows]` as of the whole array, the same on every device.

    Every read is an exchange between the devices: all of them have to make it.
    """

    own: LoadedInputs  # with a leading axis of devices
    mesh: Mesh = dataclasses.field(metadata={"static": True})

    def __getitem__(self, rows: Any) -> Array:
        number = jnp.arange(self.shape[0], dtype=jnp.int32)[rows] if isinstance(rows, slice) else rows
        share, everywhere = PartitionSpec(self.mesh.axis_names), PartitionSpec()
        fetch = partial(_fetch, axes=self.mesh.axis_names)
        found: Array = jax.shard_map(
            fetch, mesh=self.mesh, in_specs=(share, everywhere), out_specs=everywhere, check_vma=False
        )(self.own, jnp.asarray(number))
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return (self.own.place.shape[1], *self.own.values.shape[2:])

    @property
    def ndim(self) -> int:
        """Of the whole array."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """Of an input."""
        return self.own.dtype

    def __jax_array__(self) -> Array:
        return self.own.__jax_array__()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DealtInputs(LoadedInputs):
    """`LoadedInputs` whose cohorts are on the devices that train them; `inputs[rows]` is what all devices have."""

    own: LoadedInputs = dataclasses.field(kw_only=True)  # with a leading axis of devices
    mesh: Mesh = dataclasses.field(kw_only=True, metadata={"static": True})

    def specs(self) -> "DealtInputs":
        """How the leaves lie on the mesh: a tree of `PartitionSpec`."""
        share = PartitionSpec(self.mesh.axis_names)
        everywhere = jax.tree.map(lambda _: PartitionSpec(), self)
        return dataclasses.replace(everywhere, own=jax.tree.map(lambda _: share, self.own))


def of_this_device(own: LoadedInputs) -> LoadedInputs:
    """What the device has, inside a `shard_map` over the mesh; `own` as `DealtInputs` has it."""
    return jax.tree.map(lambda x: x[0], own)


def of_all_devices(inputs: Any) -> Any:
    """Inputs from which all rows that are on some device can be read, outside of local training."""
    return OfAllDevices(inputs.own, inputs.mesh) if isinstance(inputs, DealtInputs) else inputs


def _fetch(own: LoadedInputs, rows: Int[Array, "*shape"], axes: tuple[str, ...]) -> Array:
    here = of_this_device(own)
    values = here[rows]
    # What is not here has place 0, where row 0 is on every device.
    there = (here.place[rows] > 0) | (rows == 0)
    # As unsigned integers: the largest of some zeros and the values has the same bits as these.
    bits = values
    if not jnp.issubdtype(values.dtype, jnp.unsignedinteger):
        bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"uint{8 * values.dtype.itemsize}"))
    found = jnp.where(there.reshape(*there.shape, *[1] * (bits.ndim - there.ndim)), bits, jnp.zeros_like(bits))
    found = jax.lax.pmax(found, axes)
    return found if found.dtype == values.dtype else jax.lax.bitcast_convert_type(found, values.dtype)


def clients_of_devices(drawn: Drawn, num_devices: int) -> list[Int[np.ndarray, " b"]]:
    """The clients that each device trains in some rounds, each once and in increasing order.

    Args:
        drawn: with `order`.
        num_devices: that share a cohort.
    """
    assert drawn.order is not None
    ids, valid, order = np.asarray(drawn.ids), np.asarray(drawn.valid), np.asarray(drawn.order)
    empty = ((0, 0), (0, order.shape[1] - ids.shape[1]))
    ids, there = np.pad(ids, empty), np.pad(valid, empty)
    ids, there = (np.take_along_axis(x, order, axis=1) for x in (ids, there))
    cut = order.shape[1] // num_devices
    of_each = [slice(device * cut, (device + 1) * cut) for device in range(num_devices)]
    return [np.unique(ids[:, slots][there[:, slots]]) for slots in of_each]


def deal_out(
    host: HostInputs,
    always: LoadedInputs,
    federation: FederatedData,
    clients: list[Int[np.ndarray, " b"]],
    width: int,
    mesh: Mesh,
) -> LoadedInputs:
    """Brings to the devices of this process the training examples of the clients that they train.

    Args:
        host: the inputs.
        always: what is on every device of the mesh already, and stays.
        federation: with concrete tables.
        clients: of each device of the mesh, from `clients_of_devices`.
        width: at least the number of examples of each device's clients, for what comes to have one shape.
        mesh: of all processes.

    Returns:
        What `DealtInputs.own` is: for every device both, M = those that are always there + `width`.
    """
    here = {shard.device: shard.data for shard in always.values.addressable_shards}
    places = {shard.device: shard.data for shard in always.place.addressable_shards}
    pieces = [
        brought(host, LoadedInputs(here[device], places[device]), rows_of(federation, ids), width, stacked=True)
        for device, ids in zip(mesh.devices.flat, clients, strict=True)
        if device in here  # not of another process
    ]
    share = NamedSharding(mesh, PartitionSpec(mesh.axis_names))

    def joined(*leaves: Array) -> Array:
        shape = mesh.size, *leaves[0].shape[1:]
        return jax.make_array_from_single_device_arrays(shape, share, list(leaves))

    return jax.tree.map(joined, *pieces)
