"""The comparison with peers: its plan is the work that ours does. PyTorch and fedjax are not
needed here.
"""

import contextlib
import runpy
import time
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks" / "peers.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


def test_too_few_rounds_for_a_rate_are_refused(script: dict, capsys) -> None:
    with pytest.raises(SystemExit):
        script["main"](["--workloads", "W3", "W2", "--rounds", "50"])
    assert "a rate of W2, from one evaluation to the next, takes 100" in capsys.readouterr().err


def test_what_a_system_started_ends_with_it(script: dict, tmp_path: Path, monkeypatch) -> None:
    child = "import os, time; os.setpgid(0, 0); time.sleep(60)"
    (tmp_path / "slow.py").write_text(
        "import subprocess, sys, time\nworker = subprocess.Popen([sys.executable, '-c', "
        f"{child!r}])\nopen({str(tmp_path / 'worker')!r}, "
        "'w').write(str(worker.pid))\ntime.sleep(60)\n"
    )
    space = script["run_peer"].__globals__
    monkeypatch.setitem(space["SYSTEMS"], "slow", (tmp_path / "slow.py", None))
    with pytest.raises(RuntimeError, match="takes more than 1 s"):
        space["run_peer"]("slow", tmp_path / "plan.npz", tmp_path, limit=1.0)
    stat = Path(f"/proc/{(tmp_path / 'worker').read_text()}/stat")
    until = time.monotonic() + 10
    with contextlib.suppress(OSError):  # it is gone
        while stat.read_text().split()[2] not in "ZX":
            assert time.monotonic() < until


@pytest.mark.thorough
def test_the_plan_repeats_one_round_of_ours(script: dict) -> None:
    plan, before, after, _ = script["one_round_of_ours"]()
    assert plan.examples() == 600 and plan.counts() == (10, 60)
    assert all(len(np.unique(np.concatenate(steps))) == 60 for steps in plan.rounds[0])
    inputs = plan.images.reshape(len(plan.images), -1).astype(np.float64)
    one_hot = np.eye(10)[plan.labels]
    results = []
    for steps in plan.rounds[0]:
        weight = before["1.weight"].astype(np.float64)
        bias = before["1.bias"].astype(np.float64)
        for rows in steps:
            logits = inputs[rows] @ weight.T + bias
            chances = np.exp(logits - logits.max(1, keepdims=True))
            error = (chances / chances.sum(1, keepdims=True) - one_hot[rows]) / len(rows)
            weight = weight - plan.learning_rate * error.T @ inputs[rows]
            bias = bias - plan.learning_rate * error.sum(0)
        results.append((weight, bias))
    for number, name in enumerate(("1.weight", "1.bias")):
        assert np.abs(after[name] - before[name]).max() > 1e-3
        np.testing.assert_allclose(
            after[name], np.mean([one[number] for one in results], axis=0), atol=1e-5
        )
