"""Viewers: what they are told, in which order, and what happens where one is missing or fails."""

import math
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from fedjax_ssl.config.sections import VIEWERS
from fedjax_ssl.folder import writers
from fedjax_ssl.folder.writers import Writer, WriterFailed, WriterSettings, open_writers

ROWS = [
    {
        "round": 2,
        "test_accuracy": jnp.float32(0.5),
        "note": "text",
        "missing": None,
        "undefined": math.nan,
    },
    {"round": 4, "test_accuracy": 0.75},
]
CONFIG = {"seed": 3, "model": {"name": "mlp", "hidden": (8, 4), "norm": None}}
SUMMARY = {
    "test_accuracy": 0.75,
    "rounds": 4,
    "device": "CPU",
    "versions": {"jax": "1"},
    "predictions": [],
}


class FakeRun:
    def __init__(self, **arguments):
        self.arguments = arguments
        self.calls = []
        self.summary = {}

    def log(self, values, step):
        self.calls.append((values, step))

    def finish(self, exit_code):
        self.calls.append(exit_code)


@pytest.fixture
def fakes(monkeypatch):
    """wandb as it looks to us, and a viewer that remembers what it was told."""
    runs = []
    told = []

    def init(**arguments):
        runs.append(FakeRun(**arguments))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace())
    other = Writer(lambda values, step: told.append(step), told.append, told.append)
    monkeypatch.setitem(writers._OPEN, "tensorboard", lambda *arguments: other)
    return SimpleNamespace(wandb=runs, told=told)


def write_all(tmp_path, names, finish=True, **settings):
    with open_writers(WriterSettings(names, **settings), tmp_path, config=CONFIG) as opened:
        for row in ROWS:
            opened.write(row)
        if finish:
            opened.finish(SUMMARY)


def test_wandb_goes_on_under_the_same_identifier(tmp_path, fakes):
    write_all(tmp_path, ("wandb",), finish=False)
    write_all(tmp_path, ("wandb",), offline=True)
    first, second = fakes.wandb
    # not complete
    assert first.calls == [({"test_accuracy": 0.5}, 2), ({"test_accuracy": 0.75}, 4), 1]
    assert second.calls[-1] == 0 and second.summary == {"test_accuracy": 0.75}
    assert "mode" not in first.arguments and second.arguments.pop("mode") == "offline"
    assert first.arguments == second.arguments
    assert first.arguments["config"] == {
        "seed": 3,
        "model": {"name": "mlp", "hidden": [8, 4], "norm": None},
    }
    assert first.arguments["project"] == "fedjax_ssl" and len(first.arguments["id"]) == 32


def test_tensorboard_has_scalars_hyperparameters_and_final_metrics(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX import proto
    from tensorboardX.record_writer import RecordWriter  # noqa: F401

    write_all(tmp_path, ("tensorboard",))
    with open_writers(
        WriterSettings(("tensorboard",)), tmp_path, config=CONFIG, resume_round=2
    ) as opened:
        opened.write({"round": 4, "test_accuracy": 0.7})
    events = [
        proto.event_pb2.Event.FromString(record)
        for file in sorted((tmp_path / "tensorboard").rglob("events*"))
        for record in records(file)
    ]
    points = [
        (value.tag, event.step, value.simple_value)
        for event in events
        for value in event.summary.value
    ]
    assert [point for point in points if point[0] == "test_accuracy"].count(
        ("test_accuracy", 2, 0.5)
    ) == 1
    assert ("test_accuracy", 4, 0.75) in points
    # what came after round 2 is hidden
    assert any(event.session_log.status and event.step == 3 for event in events)
    tags = {tag for tag, _, _ in points}
    assert {"_hparams_/session_start_info", "_hparams_/session_end_info"} <= tags


def records(file):
    """The records of an event file: each behind its length and a checksum, and before another
    one.
    """
    content = file.read_bytes()
    place = 0
    while place < len(content):
        length = int.from_bytes(content[place : place + 8], "little")
        yield content[place + 12 : place + 12 + length]
        place += 16 + length


def test_a_viewer_that_fails_is_left_out_and_the_others_go_on(tmp_path, fakes):
    opened = open_writers(WriterSettings(("wandb", "tensorboard")), tmp_path, config=CONFIG)
    fakes.wandb[0].log = None
    with pytest.warns(
        WriterFailed, match="wandb failed and gets no more metrics; the run goes on without it"
    ):
        opened.write(ROWS[0])
    opened.write(ROWS[1])
    opened.close()
    opened.close()
    assert fakes.told == [2, 4, False]


def test_a_viewer_that_cannot_be_reached_is_named(tmp_path, monkeypatch, fakes):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
    with pytest.raises(ValueError, match=r"wandb cannot be started: .*tracking\.offline=True"):
        open_writers(WriterSettings(("tensorboard", "wandb")), tmp_path, config=CONFIG)
    assert fakes.told == [False]  # what was open is closed


def test_a_missing_package_is_named_before_anything_is_opened(tmp_path, monkeypatch, fakes):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install 'fedjax_ssl\[tensorboard\]'"):
        open_writers(WriterSettings(("wandb", "tensorboard")), tmp_path, config=CONFIG)
    assert not fakes.wandb


@pytest.mark.thorough
def test_the_real_wandb_keeps_an_offline_record(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    write_all(tmp_path, ("wandb",), offline=True)
    assert list(tmp_path.rglob("offline-run-*/*.wandb"))


def test_every_viewer_of_the_config_can_be_opened() -> None:
    assert writers._MODULES.keys() == {*VIEWERS}
