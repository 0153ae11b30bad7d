"""Examples dealt to devices: who has whose, and what is read from all of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_ssl import data, runs
from fedjax_ssl.data import Dataset, DealtInputs, Drawn, HostInputs, Split
from tests import toy

DEVICES = 4
DRAWN = Drawn(  # two rounds of four slots; C = 6 in empty ones
    np.int32(0),
    np.array([[0, 2, 3, 5], [1, 3, 6, 6]]),
    np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool),
    np.array([[3, 1, 0, 2], [0, 3, 1, 2]]),
)


def dealt(inputs):
    """The toy federation with these inputs, and the inputs as two rounds have them on four devices."""
    federation = dataclasses.replace(toy.federation(), inputs=jnp.asarray(inputs))
    host = HostInputs(Dataset("toy", Split(inputs, np.zeros(len(inputs), np.int32)), None, ("a",), input_max=1.0))
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("clients",))
    always = runs.share_out(data.always_there(host, federation), mesh)
    clients = data.clients_of_devices(DRAWN, DEVICES)
    own = data.deal_out(host, always, federation, clients, 26, mesh)
    return federation, DealtInputs(always.values, always.place, DRAWN, own=own, mesh=mesh)


def test_a_device_has_the_clients_of_its_slots():
    each = [ids.tolist() for ids in data.clients_of_devices(DRAWN, DEVICES)]
    assert each == [[1, 5], [2], [0, 3], [3]]
    two = [ids.tolist() for ids in data.clients_of_devices(DRAWN, 2)]
    assert two == [[1, 2, 5], [0, 3]]


@pytest.mark.parametrize("backend", ["cpu", pytest.param("gpu", marks=pytest.mark.thorough)])
def test_every_device_has_its_own_clients_examples_and_no_others(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)  # "gpu": put together on the device
    federation, inputs = dealt(np.asarray(toy.federation().inputs))
    always = set(np.asarray(federation.test_index).tolist()) | {0}
    table, sizes = np.asarray(federation.index), np.asarray(federation.num_examples)
    for shard, ids in zip(inputs.own.place.addressable_shards, data.clients_of_devices(DRAWN, DEVICES), strict=True):
        place, values = np.asarray(shard.data)[0], np.asarray(inputs.own.values[shard.index[0]])[0]
        rows = {row for client in ids for row in table[client, : sizes[client]].tolist()}
        assert set(np.flatnonzero(place).tolist()) - always == rows - always
        for row in rows | always:
            np.testing.assert_array_equal(values[place[row]], np.asarray(federation.inputs)[row])


@pytest.mark.parametrize("dtype", [np.uint8, pytest.param(np.float32, marks=pytest.mark.thorough)])
def test_what_some_device_has_can_be_read_on_all_to_the_last_bit(dtype):
    inputs = np.random.default_rng(0).integers(0, 256, (len(toy.federation().inputs), 4)).astype(dtype)
    if dtype == np.float32:
        inputs = inputs - 128
        inputs[:4] = [-0.0, 1e-42, -1e38, 3.0]
    federation, there = dealt(inputs)
    everywhere = data.of_all_devices(there)
    assert (everywhere.shape, everywhere.ndim, everywhere.dtype) == (inputs.shape, 2, dtype)
    trained = np.concatenate([np.asarray(federation.index)[c, : federation.num_examples[c]] for c in (0, 1, 2, 3, 5)])
    rows = np.concatenate([trained, np.asarray(federation.test_index), [0]])
    found = jax.jit(lambda inputs, rows: data.of_all_devices(inputs)[rows])(there, rows)
    assert found.is_fully_replicated
    assert np.asarray(found).tobytes() == inputs[rows].tobytes()


def test_what_takes_them_for_a_whole_array_is_refused():
    _, there = dealt(np.asarray(toy.federation().inputs))
    for inputs in (there, data.of_all_devices(there)):
        with pytest.raises(data.NotOnDevice):
            jnp.isfinite(inputs)
    plain = np.zeros(3)
    assert data.of_all_devices(plain) is plain
