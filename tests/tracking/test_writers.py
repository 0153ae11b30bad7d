import sys
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from fedjax_ssl.tracking import open_writers

ROWS = [
    {"round": 2, "test_accuracy": jnp.float32(0.5), "note": "text", "missing": None},
    {"round": 4, "test_accuracy": 0.75},
]


class FakeTensorBoard:
    def __init__(self, folder, purge_step):
        self.calls = [("open", folder, purge_step)]

    def add_scalar(self, name, value, global_step):
        self.calls.append((name, value, global_step))

    def close(self):
        self.calls.append("close")


class FakeRun:
    def __init__(self, **arguments):
        self.arguments, self.calls = arguments, []

    def log(self, values, step):
        self.calls.append((values, step))

    def finish(self):
        self.calls.append("finish")


def write_all(writers):
    for writer in writers:
        for row in ROWS:
            writer.write(row)
        writer.close()


def test_tensorboard_gets_the_numbers_of_each_row(tmp_path, monkeypatch):
    made = []

    def summary_writer(folder, purge_step):
        made.append(FakeTensorBoard(folder, purge_step))
        return made[-1]

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=summary_writer))
    write_all(open_writers(["tensorboard"], tmp_path, config={}, resume_round=2))
    assert made[0].calls == [
        ("open", str(tmp_path / "tensorboard"), 3),
        ("test_accuracy", 0.5, 2),
        ("test_accuracy", 0.75, 4),
        "close",
    ]
    open_writers(["tensorboard"], tmp_path, config={})
    assert made[1].calls == [("open", str(tmp_path / "tensorboard"), None)]


def test_wandb_goes_on_under_the_same_identifier(tmp_path, monkeypatch):
    runs = []

    def init(**arguments):
        runs.append(FakeRun(**arguments))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    for _ in range(2):
        write_all(open_writers(["wandb"], tmp_path, config={"layers": (1, 2)}))
    assert runs[0].calls == [({"test_accuracy": 0.5}, 2), ({"test_accuracy": 0.75}, 4), "finish"]
    assert runs[0].arguments == runs[1].arguments
    assert runs[0].arguments["config"] == {"layers": [1, 2]} and len(runs[0].arguments["id"]) == 32


def test_an_unknown_writer_and_a_missing_extra_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"unknown writer 'csv'; there are 'tensorboard', 'wandb'"):
        open_writers(["csv"], tmp_path, config={})
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[tensorboard\]'"):
        open_writers(["tensorboard"], tmp_path, config={})
    assert open_writers([], tmp_path, config={}) == []
