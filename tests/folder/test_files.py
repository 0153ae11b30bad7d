import json
import math
import os

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.folder import files


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    target = tmp_path / "config.json"
    files.write_atomically(target, "old")

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        files.write_atomically(target, "new, and longer than the old")
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["config.json"]


def test_a_left_over_temporary_file_is_replaced(tmp_path):
    target = tmp_path / "config.json"
    (tmp_path / ".config.json.tmp").write_text("left by a killed process")
    files.write_atomically(target, b"\x00bytes")
    assert target.read_bytes() == b"\x00bytes"
    assert os.listdir(tmp_path) == ["config.json"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), 0.1),
        (jnp.asarray(0.1, jnp.float32), 0.1),
        (jnp.asarray([0.25], jnp.bfloat16), 0.25),
        (np.float64(0.1) + np.float64(0.2), 0.1 + 0.2),
        (np.int64(3), 3),
        (jnp.int32(-1), -1),
        (np.bool_(True), True),
        ((1, "a", None), [1, "a", None]),
        ({"rate": np.float32(1e-3)}, {"rate": 1e-3}),
    ],
)
def test_plain_value_has_python_types_only(value, expected):
    plain = files.plain_value(value)
    assert plain == expected
    assert type(plain) is type(expected)


@pytest.mark.parametrize("bits", [0x3F800001, 0x00000001, 0x7F7FFFFF, 0x3DCCCCCD])
def test_a_float32_reads_back_as_the_same_bits(bits):
    value = np.uint32(bits).view(np.float32)
    assert np.float32(files.plain_value(value)).view(np.uint32) == bits


@pytest.mark.parametrize("value", [np.zeros(3), object(), {1, 2}])
def test_plain_value_refuses_what_is_no_single_value(value):
    with pytest.raises(TypeError, match="single number"):
        files.plain_value(value)


def test_non_finite_floats_are_valid_json_and_come_back():
    text = files.encode_json({"a": [math.nan, math.inf], "b": {"c": -math.inf}, "d": 1.5})
    strict = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert strict == {"a": ["NaN", "Infinity"], "b": {"c": "-Infinity"}, "d": 1.5}
    back = files.decode_json(text)
    assert math.isnan(back["a"][0])
    assert back["a"][1] == math.inf and back["b"]["c"] == -math.inf and back["d"] == 1.5
