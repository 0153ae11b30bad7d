"""A run goes on with the numbers of clients that it began with."""

import shutil

import numpy as np
import pytest

from fedjax_ssl.folder.folder import RunFolderError
from fedjax_ssl.runs.loop import run
from fedjax_ssl.trained import load_run
from tests.test_resume import experiment

CLIENTS = 5
FIELDS = {"method.warmup_rounds": 1, "participation.probability": "there.csv"}


@pytest.mark.thorough
def test_a_trace_with_other_numbers_is_noticed(tmp_path, monkeypatch):
    """One that is longer, for a run that gets longer, is not another one."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).uniform(0.5, 1, (4, CLIENTS)).round(2)

    def start(rounds, trace):
        np.savetxt("there.csv", trace, delimiter=",")
        return run(experiment(**{**FIELDS, "rounds": rounds}), "run")

    start(2, rows[:2])
    shutil.copytree("run", "copy")
    assert start(4, rows)["rounds"] == 4
    shutil.rmtree("run")
    shutil.copytree("copy", "run")
    other = rows.copy()
    other[1, 2] = 0.5
    with pytest.raises(
        RunFolderError, match=r"there.csv \(config.participation.probability\): its 2"
    ):
        start(4, other)
    # A model predicts without it.
    (tmp_path / "there.csv").unlink()
    assert load_run("run").predict(np.zeros((1, 8, 8, 1), np.uint8)).shape == (1, 10)
