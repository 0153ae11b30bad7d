"""The study of docs/pretrained.md: a seed of a row is one run."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "features_study.py"


def write_run(sweep, name, rate):
    config = {
        "method": {"name": "fedavg"},
        "rounds": 60,
        "seed": 0,
        "optimizer": {"local_steps": 10, "learning_rate": rate},
        "partition": {"name": "iid"},
        "supervision": {"labels": 4},
        "model": {},
    }
    summary = {"local_steps": 600, "test_accuracy": 0.5, "train_seconds": 1.0, "bytes_up": 1}
    folder = sweep / "runs" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_two_runs_are_not_one_seed_of_a_row(tmp_path, capsys):
    main = runpy.run_path(str(SCRIPT))["main"]
    with pytest.raises(SystemExit, match="no folder of a sweep"):
        main([str(tmp_path)])
    slow = write_run(tmp_path, "rate=0.03", 0.03)
    main([str(tmp_path)])
    assert "| fedavg, 60 x 10 steps | 50.0" in capsys.readouterr().out
    fast = write_run(tmp_path, "rate=0.1", 0.1)
    with pytest.raises(SystemExit, match="with 4 labels and seed 0") as refused:
        main([str(tmp_path)])
    assert str(refused.value).startswith(f"{slow} and {fast} are both 'fedavg, 60 x 10 steps'")
