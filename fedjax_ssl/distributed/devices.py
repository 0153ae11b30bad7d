"""The devices that share a run, of one process or of several, and arrays that all of them hold."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_ssl import processor
from fedjax_ssl.config import ConfigError
from fedjax_ssl.tracking.state_arrays import is_key

PyTree = Any


def share_out(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Puts a copy of a tree on every device of a mesh, those of other processes included.

    Args:
        tree: arrays and typed PRNG keys that lie in this process, equal in all processes.
        mesh: None: the tree stays as it is.

    Returns:
        The tree, replicated over the mesh.
    """
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Any) -> jax.Array:
        array = data_of(leaf)
        copies = jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])
        return jax.random.wrap_key_data(copies, impl=jax.random.key_impl(leaf)) if is_key(leaf) else copies

    return jax.tree.map(place, tree)


def run_devices(num_devices: int) -> Sequence[jax.Device]:
    """The devices that share the work of a run, of every process equally many, in the order of the processes.

    Args:
        num_devices: `config.federated.devices`, counted over all processes.

    Raises:
        ConfigError: there are fewer, or the processes cannot have equally many.
    """
    count, available = jax.process_count(), jax.devices()
    if count == 1:
        if num_devices > len(available):
            raise ConfigError(
                f"config.federated.devices is {num_devices}; devices here: {len(available)}{_more_devices(available)}"
            )
        return available[:num_devices]
    each, rest = divmod(num_devices, count)
    if rest or not each:
        raise ConfigError(
            f"config.federated.devices is {num_devices}, which counts the devices of all {count} processes: every "
            f"process has to own as many of them, so that it must be a multiple of {count}; leave it out to use all "
            f"{len(available)}"
        )
    of_process = [[device for device in available if device.process_index == index] for index in range(count)]
    fewest = min(map(len, of_process))
    if each > fewest:
        raise ConfigError(
            f"config.federated.devices is {num_devices}, {each} in each of {count} processes, but one of them has "
            f"{fewest}; allowed: up to {count * fewest}"
        )
    return [device for devices in of_process for device in devices[:each]]


def _more_devices(available: Sequence[jax.Device]) -> str:
    """How a CPU becomes more devices than there are."""
    if available[0].platform != "cpu":
        return ""
    cores = processor.cores()
    return (
        f". The commands make a CPU as many devices as are asked for, up to one for each of its {cores} cores; "
        "Python code sets jax_num_cpu_devices before jax starts"
    )


def data_of(leaf: Any) -> np.ndarray:
    """A leaf as a host array, a typed PRNG key as its key data; it must lie in this process."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
