import json
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_ssl
from fedjax_ssl import config as configs
from fedjax_ssl.folder import environment
from fedjax_ssl.folder.environment import (
    command,
    device_description,
    git_commit,
    peak_memory_bytes,
    versions,
)
from fedjax_ssl.folder.files import encode_json
from fedjax_ssl.folder.stored_run import read_object
from fedjax_ssl.runs.rounds import TOTALS
from fedjax_ssl.runs.summary import summarize

PACKAGE = Path(fedjax_ssl.__file__).parent
FIELDS = """method dataset seed rounds test_accuracy best_test_accuracy compile_seconds train_seconds
client_updates_per_second examples_per_second peak_memory_bytes bytes_up bytes_down versions device command
dropped_clients local_steps"""


def summary_of(accuracies, seconds=4.0, **last):
    config = configs.default("xclp")
    config.rounds = 20
    config.method.warmup_rounds = 0
    row = {
        **dict.fromkeys(TOTALS, 0),
        "clients": 50,
        "examples": 1000,
        "bytes_up": 2_500_000_000_000,
    }
    rows = [
        {**row, "round": 10 * (at + 1), "test_accuracy": one} for at, one in enumerate(accuracies)
    ]
    rows[-1] |= last
    return summarize(
        configs.resolve(config), rows, {"compile_seconds": 1.5, "train_seconds": seconds}, []
    )


def test_the_summary_has_the_documented_fields_and_survives_the_file(tmp_path):
    summary = summary_of([0.9, 0.8], pseudo_label_accuracy=np.float32(0.1), test_loss=math.nan)
    assert list(summary) == [*FIELDS.split(), "test_loss", "pseudo_label_accuracy"]
    assert (summary["test_accuracy"], summary["best_test_accuracy"]) == (0.8, 0.9)
    assert (summary["client_updates_per_second"], summary["examples_per_second"]) == (25.0, 500.0)
    assert summary["bytes_up"] == 5_000_000_000_000
    (tmp_path / "summary.json").write_text(encode_json(summary, indent=2))
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    back = read_object(tmp_path / "summary.json")
    assert back["pseudo_label_accuracy"] == 0.1 and math.isnan(back["test_loss"])
    assert {name: back[name] for name in FIELDS.split()} == {
        name: summary[name] for name in FIELDS.split()
    }


def test_without_test_data_and_without_training_there_are_no_numbers():
    summary = summary_of([None], seconds=0.0)
    assert summary["test_accuracy"] is None and summary["best_test_accuracy"] is None
    assert summary["client_updates_per_second"] is None and summary["examples_per_second"] is None


def test_versions_name_what_decides_the_numbers():
    found = versions()
    assert found["jax"] == jax.__version__ and found["numpy"] == np.__version__
    assert found["python"].startswith("3.")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            [f"{PACKAGE}/main.py", "--config", "a b.py"],
            "python -m fedjax_ssl.main --config 'a b.py'",
        ),
        ([f"{PACKAGE}/report/__main__.py", "runs"], "python -m fedjax_ssl.report runs"),
        (
            [sys.executable, "run", "digits"],
            f"{Path(sys.executable).resolve().name} run digits",
        ),  # an installed program
        (["study.py", "5"], "python study.py 5"),
        (["-c"], "python -c"),
        ([""], "python"),
    ],
)
def test_the_command_is_written_as_it_was_typed(monkeypatch, arguments, expected):
    monkeypatch.setattr(sys, "argv", arguments)
    assert command() == expected


def test_a_commit_is_told_only_for_a_tracked_file(tmp_path, monkeypatch):
    def git(*arguments):
        settings = [
            "user.name=a",
            "user.email=a@b.c",
            "commit.gpgsign=false",
            "core.hooksPath=none",
        ]
        options = [word for setting in settings for word in ("-c", setting)]
        assert environment._git(tmp_path, *options, *arguments) is not None

    # set when a Git hook runs the tests
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    module = tmp_path / "environment.py"
    module.write_text("")
    monkeypatch.setattr(environment, "__file__", str(module))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit() is None  # no checkout
    git("init")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "--message", "first")
    assert git_commit() is None  # somebody else's checkout
    git("add", "environment.py")
    git("commit", "--message", "second")
    commit = git_commit()
    assert len(commit) == 40
    module.write_text("changed")
    assert git_commit() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit() is None  # no Git
    assert "git_commit" not in versions()


def test_device_and_memory():
    assert device_description().startswith("CPU (") and device_description().endswith("4 devices)")
    before = peak_memory_bytes()
    assert 50_000_000 < before < 500_000_000_000
    ballast = np.ones(40_000_000)
    assert peak_memory_bytes() >= before and ballast.size


class FakeDevice:
    platform = "gpu"
    device_kind = "NVIDIA H200"

    def __init__(self, peak):
        self.peak = peak

    def memory_stats(self):
        return None if self.peak is None else {"peak_bytes_in_use": self.peak}


@pytest.mark.parametrize(
    ("peaks", "text", "bytes_used"), [([7], "NVIDIA H200", 7), ([7, 9], "2 x NVIDIA H200", 9)]
)
def test_accelerators(monkeypatch, peaks, text, bytes_used):
    devices = [FakeDevice(peak) for peak in peaks]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    assert device_description() == text
    assert peak_memory_bytes() == bytes_used
