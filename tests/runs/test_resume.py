"""A run that is killed and started again ends in the same numbers, bit for bit."""

import json
from pathlib import Path

import pytest

from fedjax_ssl import presets
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.runs.loop import run

ROUNDS = 10
TIMES = ("seconds", "client_updates_per_second")
CHILD = """
import sys
from tests.runs.test_resume import experiment
from fedjax_ssl.runs.loop import run
run(experiment(), sys.argv[1])
"""


def experiment(**fields):
    config = presets.digits_by_writer("network_pseudo_label", 2)
    config.rounds = ROUNDS
    config.eval_every = 1
    config.method.warmup_rounds = 3
    config.optimizer.local_epochs = 1
    config.data.test_clients = 9
    config.update_from_flattened_dict(fields)
    return config


def rows_of(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def results_of(folder: Path) -> dict:
    summary = json.loads((folder / "summary.json").read_text())
    measured = ("seconds", "per_second", "peak_memory", "versions", "device", "command")
    return {
        name: value for name, value in summary.items() if not any(part in name for part in measured)
    }


@pytest.mark.thorough
def test_checkpoints_only_at_the_end(tmp_path):
    """How often checkpoints are written may change between starts: it does not change the
    result.
    """
    run(experiment(checkpoint_every=0), tmp_path)
    assert Checkpoints(tmp_path).latest() == ROUNDS
    before = results_of(tmp_path)
    run(experiment(checkpoint_every=4), tmp_path)
    assert results_of(tmp_path) == before
