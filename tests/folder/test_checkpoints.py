import math
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_ssl.folder import files
from fedjax_ssl.folder.checkpoint import CheckpointDamaged, CheckpointError, Checkpoints, to_arrays


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
    for one, two in zip(*map(to_arrays, (left, right)), strict=True):
        for a, b in zip(one, two, strict=True):
            if isinstance(a, np.ndarray):
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
            else:
                assert a == b


def test_the_state_comes_back_to_the_last_bit(tmp_path):
    state = make_state(3)
    Checkpoints(tmp_path).save(
        12, state, {"best": np.float32(0.1), "worst": math.inf, "counts": [1, 2]}
    )
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
        "round_00000005.ckpt",
        "round_00000009.ckpt",
    ]


def test_a_round_can_be_saved_again_and_ends_later_ones(tmp_path):
    saved = Checkpoints(tmp_path)
    for number, value in ((4, 1), (8, 2), (4, 3)):
        saved.save(number, {"x": jnp.int32(value)})
    assert saved.latest() == 4
    assert saved.restore({"x": jnp.int32(0)})[1]["x"] == 3
    assert len(os.listdir(tmp_path / "checkpoints")) == 1


def flipped(content: bytes, place: int) -> bytes:
    place %= len(content)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def replace_by_a_folder(file):
    file.unlink()
    file.mkdir()


HARMS = {
    "empty": lambda file: file.write_bytes(b""),
    "a stump": lambda file: file.write_bytes(file.read_bytes()[:20]),
    "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"0"),
    "a bit of the header": lambda file: file.write_bytes(flipped(file.read_bytes(), 3)),
    "a bit of an array": lambda file: file.write_bytes(
        flipped(file.read_bytes(), file.stat().st_size // 2)
    ),
    "a bit of the digest": lambda file: file.write_bytes(flipped(file.read_bytes(), -1)),
    "the round before": lambda file: file.write_bytes(
        file.with_name("round_00000001.ckpt").read_bytes()
    ),
    "a folder": replace_by_a_folder,
}


@pytest.mark.parametrize("harm", HARMS)
def test_damage_is_named_and_the_round_before_is_used(tmp_path, harm):
    saved = Checkpoints(tmp_path)
    states = {
        number: {"x": jax.random.normal(jax.random.key(number), (50, 50))} for number in (1, 2)
    }
    for number, state in states.items():
        saved.save(number, state)
    file = tmp_path / "checkpoints" / "round_00000002.ckpt"
    HARMS[harm](file)
    with pytest.warns(CheckpointDamaged, match="round 2 is damaged") as caught:
        number, state, _ = saved.restore(states[1])
    assert str(file) in str(caught[0].message)
    assert number == 1
    assert_same_bits(state, states[1])
    saved.save(2, states[2])
    assert saved.restore(states[2])[0] == 2


def test_going_on_after_a_damaged_checkpoint_removes_it(tmp_path):
    saved = Checkpoints(tmp_path)
    for number in (2, 4):
        saved.save(number, {"x": jnp.int32(number)})
    (tmp_path / "checkpoints" / "round_00000004.ckpt").write_text("")
    with pytest.warns(CheckpointDamaged):
        assert saved.restore({"x": jnp.int32(0)})[0] == 2
    saved.save(3, {"x": jnp.int32(3)})
    assert saved.restore({"x": jnp.int32(0)})[0] == 3


def test_without_any_sound_checkpoint_the_error_says_what_to_do(tmp_path):
    saved = Checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        saved.restore({})
    saved.save(1, {"x": jnp.int32(1)})
    (tmp_path / "checkpoints" / "round_00000001.ckpt").write_text("[]")
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


LEFT_BEHIND = ("start", "half", "fsync", "replace")


class Interrupted:
    """An open file that cannot be written to the end."""

    def __init__(self, file, write):
        self.file = file
        self.write = write

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.file.close()

    def writelines(self, content):
        self.write(self.file, content)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "step", ["start", "half", "fsync", "replace", "_sync_folder", "_remove_all_but"]
)
def test_a_save_that_stops_at_any_step_leaves_a_good_checkpoint(
    tmp_path, monkeypatch, step, number
):
    saved = Checkpoints(tmp_path, keep=1)
    saved.save(1, {"x": jnp.int32(1)})

    def stop(*_, **__):
        raise Killed

    def stop_half_way(file, content):
        file.write(next(iter(content)))
        file.flush()
        raise Killed

    with monkeypatch.context() as patch:
        if step in ("start", "half"):
            write = stop if step == "start" else stop_half_way
            patch.setattr(
                files, "open", lambda path, mode: Interrupted(path.open(mode), write), raising=False
            )
        else:
            owner = {"_sync_folder": files, "_remove_all_but": Checkpoints}.get(step, files.os)
            patch.setattr(owner, step, stop)
        with pytest.raises(Killed):
            saved.save(number, {"x": jnp.int32(3)})
    assert (tmp_path / f"checkpoints/.round_{number:08d}.ckpt.tmp").exists() == (
        step in LEFT_BEHIND
    )
    committed = step in ("_sync_folder", "_remove_all_but")
    found, state, _ = Checkpoints(tmp_path).restore({"x": jnp.int32(0)})
    assert (found, int(state["x"])) == ((number, 3) if committed else (1, 1))
    saved.save(4, {"x": jnp.int32(4)})
    assert os.listdir(tmp_path / "checkpoints") == ["round_00000004.ckpt"]


def test_any_state_of_the_server_goes_through(tmp_path):
    """A store per client, optimizer states of optax, counters as pairs of words, nothing at all."""
    params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    transform = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 5))
    )
    state = {
        "optimizer": transform.init(params),
        "clients": jax.vmap(lambda number: jax.tree.map(lambda x: x + number, params))(
            jnp.arange(5.0)
        ),
        "keys": jax.vmap(jax.random.key)(jnp.arange(5)),
        "bytes_up": jnp.asarray([7, 2**32 - 1], jnp.uint32),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "other": ((), None, [optax.EmptyState()]),
    }
    rows = [{"round": number, "loss": math.nan if number == 2 else 0.1} for number in (1, 2)]
    Checkpoints(tmp_path).save(3, state, {"rows": rows})
    number, restored, extra = Checkpoints(tmp_path).restore(state)
    assert number == 3
    assert_same_bits(restored, state)
    assert extra["rows"][0] == rows[0] and math.isnan(extra["rows"][1]["loss"])
