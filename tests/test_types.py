"""A user's script that has types passes mypy --strict: the package says what it exports."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import jax
import numpy as np

import fedjax_ssl as fs
from fedjax_ssl.data import Dataset, Split
from fedjax_ssl.federated import Method, Setup


def loader(size: int = 4) -> Dataset:
    labels = np.arange(60, dtype=np.int32) % 2
    return Dataset("clouds", Split(np.zeros((60, size), np.float32), labels, None), None, ("low", "high"))


def method(setup: Setup) -> Method:
    return fs.methods.build("fedavg", setup)


config = fs.load_config("digits_fedavg", {"rounds": 2})
summary = fs.run(config, "runs/x", quiet=True)
labels = fs.load_run("runs/x").predict(fs.load_dataset("digits").train.x[:3]).argmax(axis=1)
state, metrics = fs.make_train(config)(jax.random.key(0))
print(summary["test_accuracy"], labels, metrics["round"], fs.report.read(["runs"]).metric.name)
fs.register("data", "clouds", loader)
"""


@pytest.mark.thorough
@pytest.mark.promise
def test_a_users_script_passes_mypy_strict(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    checked = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        "script.py",
    ]
    done = subprocess.run(checked, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout
