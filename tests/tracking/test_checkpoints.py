import asyncio
import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_ssl.tracking import CheckpointDamaged, CheckpointError, Checkpoints, checkpoints, state_arrays


class State(NamedTuple):
    params: dict
    rest: tuple


def make_state(seed: int) -> State:
    key = jax.random.key(seed)
    params = {
        "weights": jax.random.normal(key, (7, 5)),
        "half": jnp.asarray([1.5, -0.0, 3.0], jnp.bfloat16),
        "odd": jnp.asarray([jnp.nan, jnp.inf, -0.0, 1e-42], jnp.float32),
        "empty": jnp.zeros((0, 3)),
        "flags": jnp.asarray([True, False]),
        "nothing": None,
    }
    rest = (
        key,
        jax.random.split(jax.random.key(seed, impl="rbg"), 2),
        jnp.uint8(200),
        np.arange(3),
        seed,
        0.5,
        True,
    )
    return State(params, rest)


def assert_same_bits(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, two in zip(*map(state_arrays.to_arrays, (left, right)), strict=True):
        for a, b in zip(one, two, strict=True):
            if isinstance(a, np.ndarray):
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
            else:
                assert a == b


def test_the_state_comes_back_to_the_last_bit(tmp_path):
    state = make_state(3)
    Checkpoints(tmp_path).save(12, state, {"best": np.float32(0.1), "worst": math.inf, "counts": [1, 2]})
    number, restored, extra = Checkpoints(tmp_path).restore(make_state(0))
    assert number == 12
    assert extra == {"best": 0.1, "worst": math.inf, "counts": [1, 2]}
    assert_same_bits(restored, state)
    assert jax.tree.map(type, restored) == jax.tree.map(type, state)
    assert jax.random.bits(restored.rest[0]) == jax.random.bits(state.rest[0])


def test_float64_state_and_abstract_template(tmp_path, float64):
    state = {"total": jnp.asarray([1.0 / 3.0])}
    assert state["total"].dtype == jnp.float64
    Checkpoints(tmp_path).save(0, state)
    template = jax.eval_shape(lambda: state)
    assert_same_bits(Checkpoints(tmp_path).restore(template)[1], state)


def test_state_without_any_element(tmp_path):
    state = {"empty": jnp.zeros((2, 0)), "none": None}
    Checkpoints(tmp_path).save(1, state)
    assert_same_bits(Checkpoints(tmp_path).restore(state)[1], state)


def test_placement_follows_the_template(tmp_path):
    mesh = jax.make_mesh((4,), ("clients",))
    sharded = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("clients")))
    saved = Checkpoints(tmp_path)
    saved.save(1, {"x": jnp.arange(8.0), "step": jnp.int32(1)})
    restored = saved.restore({"x": sharded, "step": jnp.int32(0)})[1]
    assert restored["x"].sharding == sharded.sharding
    assert not restored["step"].committed
    np.testing.assert_array_equal(restored["x"], np.arange(8.0))


def test_only_the_newest_rounds_stay(tmp_path):
    saved = Checkpoints(tmp_path, keep=2)
    assert saved.latest() is None
    for number in (1, 2, 5, 9):
        saved.save(number, {"x": jnp.int32(number)})
        assert saved.latest() == number
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [
        "round_00000005",
        "round_00000005.json",
        "round_00000009",
        "round_00000009.json",
    ]


def test_a_round_can_be_saved_again_and_ends_later_ones(tmp_path):
    saved = Checkpoints(tmp_path)
    for number, value in ((4, 1), (8, 2), (4, 3)):
        saved.save(number, {"x": jnp.int32(value)})
    assert saved.latest() == 4
    assert saved.restore({"x": jnp.int32(0)})[1]["x"] == 3
    assert len(os.listdir(tmp_path / "checkpoints")) == 2


def test_works_inside_a_running_event_loop(tmp_path):
    async def cell_of_a_notebook():
        Checkpoints(tmp_path).save(1, {"x": jnp.arange(3)})
        return Checkpoints(tmp_path).restore({"x": jnp.zeros(3, jnp.int32)})[1]

    assert_same_bits(asyncio.run(cell_of_a_notebook()), {"x": jnp.arange(3)})


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, None])
def test_damage_to_any_file_is_named_and_the_round_before_is_used(tmp_path, damage):
    saved = Checkpoints(tmp_path)
    states = {number: {"x": jax.random.normal(jax.random.key(number), (50, 50))} for number in (1, 2)}
    for number, state in states.items():
        saved.save(number, state)
    folder = tmp_path / "checkpoints"
    files = [file for file in folder.rglob("*") if file.is_file() and "00000002" in str(file.relative_to(folder))]
    assert len(files) > 5
    for file in files:
        content = file.read_bytes()
        if damage is None and file.suffix != ".json":
            file.unlink()
        else:
            file.write_bytes((damage or truncate)(content))
        with pytest.warns(CheckpointDamaged, match="round 2 is damaged") as caught:
            number, state, _ = saved.restore(states[1])
        assert str(file) in str(caught[0].message)
        assert number == 1
        assert_same_bits(state, states[1])
        file.write_bytes(content)
    assert saved.restore(states[2])[0] == 2


def test_going_on_after_a_damaged_checkpoint_removes_it(tmp_path):
    saved = Checkpoints(tmp_path)
    for number in (2, 4):
        saved.save(number, {"x": jnp.int32(number)})
    (tmp_path / "checkpoints" / "round_00000004.json").write_text("")
    with pytest.warns(CheckpointDamaged):
        assert saved.restore({"x": jnp.int32(0)})[0] == 2
    saved.save(3, {"x": jnp.int32(3)})
    assert saved.restore({"x": jnp.int32(0)})[0] == 3


def test_without_any_sound_checkpoint_the_error_says_what_to_do(tmp_path):
    saved = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        saved.restore({})
    saved.save(1, {"x": jnp.int32(1)})
    (tmp_path / "checkpoints" / "round_00000001.json").write_text("[]")
    with (
        pytest.warns(CheckpointDamaged),
        pytest.raises(CheckpointError, match=r"all 1 are damaged.*--workdir"),
    ):
        saved.restore({"x": jnp.int32(1)})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"x": jnp.zeros(3)}, r"state\['x'\]: stored float32\[2\], expected float32\[3\]"),
        ({"x": jnp.zeros(2, jnp.int32)}, r"expected int32\[2\]"),
        ({"y": jnp.zeros(2)}, r"(?s)stored float32\[2\], expected nothing.*stored nothing"),
        ({"x": jax.random.key(0)}, "threefry|fry"),
    ],
)
def test_another_structure_is_an_error_and_no_damage(tmp_path, template, message):
    saved = Checkpoints(tmp_path)
    saved.save(1, {"x": jnp.zeros(2)})
    with pytest.raises(CheckpointError, match=message):
        saved.restore(template)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(ValueError, match="round=-1"):
        Checkpoints(tmp_path).save(-1, {})
    with pytest.raises(ValueError, match="cannot be stored"):
        Checkpoints(tmp_path).save(0, {}, {"array": np.ones(2)})


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("step", ["_write_arrays", "_digests", "write_atomically", "_remove_obsolete", "rmtree"])
def test_a_save_that_stops_at_any_step_leaves_a_good_checkpoint(tmp_path, monkeypatch, step, number):
    saved = Checkpoints(tmp_path, keep=1)
    saved.save(1, {"x": jnp.int32(1)})

    def stop(*_, **__):
        raise Killed

    owner = {"_write_arrays": Checkpoints, "_remove_obsolete": Checkpoints, "rmtree": checkpoints.shutil}
    with monkeypatch.context() as patch:
        patch.setattr(owner.get(step, checkpoints), step, stop)
        with pytest.raises(Killed):
            saved.save(number, {"x": jnp.int32(3)})
    committed = step in ("_remove_obsolete", "rmtree")
    found, state, _ = Checkpoints(tmp_path).restore({"x": jnp.int32(0)})
    assert (found, int(state["x"])) == ((number, 3) if committed else (1, 1))
    saved.save(4, {"x": jnp.int32(4)})
    assert len(os.listdir(tmp_path / "checkpoints")) == 2


SAVE_FOR_EVER = """
import sys
import jax, jax.numpy as jnp
from fedjax_ssl.tracking import Checkpoints

saved = Checkpoints(sys.argv[1])


def make(number):
    key = jax.random.key(number)
    return {"x": jax.random.normal(key, (300, 100)), "key": key}


number = 0
if saved.latest() is not None:
    number, state, extra = saved.restore(make(0))
    assert extra == {"round": number}
    assert bool(jnp.all(state["x"] == make(number)["x"])) and state["key"] == make(number)["key"]
print(number, flush=True)
while True:
    number += 1
    saved.save(number, make(number), {"round": number})
"""


@pytest.mark.thorough
def test_sigkill_at_any_moment_leaves_a_good_checkpoint(tmp_path):
    moments = random.Random(0)
    started = []
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SAVE_FOR_EVER, tmp_path], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                started.append(int(process.stdout.readline()))
                first = started[-1] + 1
                # The first save loads and compiles; kill somewhere in the ones after it.
                while not (tmp_path / "checkpoints" / f"round_{first:08d}.json").exists():
                    assert process.poll() is None
                    time.sleep(0.002)
                time.sleep(moments.uniform(0.0, 0.2))
            finally:
                process.send_signal(signal.SIGKILL)
    assert started[0] == 0
    assert all(late > early for early, late in itertools.pairwise(started))
    template = {"x": jnp.zeros((300, 100)), "key": jax.random.key(0)}
    number, state, _ = Checkpoints(tmp_path).restore(template)
    assert_same_bits(state["key"], jax.random.key(number))


def test_the_manifest_can_be_read_by_a_person(tmp_path):
    Checkpoints(tmp_path).save(7, {"key": jax.random.key(0)}, {"best": 0.5})
    manifest = json.loads((tmp_path / "checkpoints" / "round_00000007.json").read_text())
    assert (manifest["round"], manifest["extra"]) == (7, {"best": 0.5})
    assert manifest["leaves"][0]["name"] == "['key']" and manifest["leaves"][0]["dtype"] == "uint32"
