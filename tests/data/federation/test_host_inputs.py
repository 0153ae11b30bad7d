"""Examples that stay on the host: what is read, who has whose, and what is read from all
devices.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import data
from fedjax_ssl.data import Dataset, Drawn, HostInputs, Split
from tests import toy

DEVICES = 4
DRAWN = Drawn(  # two rounds of four slots; C = 6 in empty ones
    np.int32(0),
    np.array([[0, 2, 3, 5], [1, 3, 6, 6]]),
    np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool),
    np.array([[3, 1, 0, 2], [0, 3, 1, 2]]),
)


def apart(inputs):
    """The toy federation with these inputs, and the inputs as two rounds have them on four
    devices.
    """
    federation = dataclasses.replace(toy.federation(), inputs=jnp.asarray(inputs))
    host = HostInputs(
        Dataset("toy", Split(inputs, np.zeros(len(inputs), np.int32)), None, ("a",), input_max=1.0)
    )
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("clients",))
    clients = data.clients_of_devices(DRAWN, DEVICES)
    return federation, data.load_examples(host, federation, clients, 26, DRAWN, mesh)


def test_files_are_read_row_by_row_over_both_splits(tmp_path):
    images = np.arange(12 * 4, dtype=np.uint8).reshape(12, 2, 2, 1)
    np.save(tmp_path / "x.npy", images[:7])
    mapped = Split(np.load(tmp_path / "x.npy", mmap_mode="r"), np.zeros(7, np.int32))
    host = HostInputs(Dataset("own", mapped, Split(images[7:], np.zeros(5, np.int32)), ("a",)))
    rows = np.array([0, 3, 6, 7, 11])
    read = host.read(rows, 7)
    np.testing.assert_array_equal(read[:5], images[rows])
    assert not read[5:].any()
    assert (host.shape, host.nbytes, host.bytes_of(3), host.in_memory) == ((12, 2, 2, 1), 48, 12, 0)


def test_a_device_has_the_clients_of_its_slots():
    each = [ids.tolist() for ids in data.clients_of_devices(DRAWN, DEVICES)]
    assert each == [[1, 5], [2], [0, 3], [3]]
    two = [ids.tolist() for ids in data.clients_of_devices(DRAWN, 2)]
    assert two == [[1, 2, 5], [0, 3]]
    assert [ids.tolist() for ids in data.clients_of_devices(DRAWN._replace(order=None))] == [
        [0, 1, 2, 3, 5]
    ]


def test_every_device_has_its_own_clients_examples_and_no_others():
    federation, inputs = apart(np.asarray(toy.federation().inputs))
    always = set(np.asarray(federation.test_index).tolist()) | {0}
    table = np.asarray(federation.index)
    sizes = np.asarray(federation.num_examples)
    for shard, ids in zip(
        inputs.place.addressable_shards, data.clients_of_devices(DRAWN, DEVICES), strict=True
    ):
        place = np.asarray(shard.data)[0]
        values = np.asarray(inputs.values[shard.index[0]])[0]
        rows = {row for client in ids for row in table[client, : sizes[client]].tolist()}
        assert set(np.flatnonzero(place).tolist()) - always == rows - always
        for row in rows | always:
            np.testing.assert_array_equal(values[place[row]], np.asarray(federation.inputs)[row])


@pytest.mark.parametrize("dtype", [np.uint8, pytest.param(np.float32, marks=pytest.mark.thorough)])
def test_what_some_device_has_can_be_read_on_all_to_the_last_bit(dtype):
    inputs = (
        np.random.default_rng(0).integers(0, 256, (len(toy.federation().inputs), 4)).astype(dtype)
    )
    if dtype == np.float32:
        inputs = inputs - 128
        inputs[:4] = [-0.0, 1e-42, -1e38, 3.0]
    federation, there = apart(inputs)
    assert (there.shape, there.ndim, there.dtype) == (inputs.shape, 2, dtype)
    trained = np.concatenate(
        [np.asarray(federation.index)[c, : federation.num_examples[c]] for c in (0, 1, 2, 3, 5)]
    )
    rows = np.concatenate([trained, np.asarray(federation.test_index), [0]])
    found = jax.jit(lambda inputs, rows: inputs[rows])(there, rows)
    assert found.is_fully_replicated
    assert np.asarray(found).tobytes() == inputs[rows].tobytes()


def test_whoever_reads_more_than_is_there_hears_so():
    federation, there = apart(np.asarray(toy.federation().inputs))
    rows = data.NotLoaded(federation.index.shape)
    assert rows.shape == federation.index.shape
    for use in (
        lambda: jnp.isfinite(there),
        lambda: there[rows],
        lambda: rows[0],
        lambda: rows.reshape(-1),
    ):
        with pytest.raises(data.NotOnDevice, match="examples of all clients"):
            use()
