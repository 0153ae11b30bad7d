"""GPUs that are pretended: how the driver's list is read, and how processes share them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedjax_ssl import gpus
from fedjax_ssl.command_line import use_processor
from fedjax_ssl.config import ConfigError, ConfigNote
from fedjax_ssl.gpus import Gpu
from fedjax_ssl.sweep import cluster, workers
from fedjax_ssl.sweep import command as sweep_command

GB = 2**30
H200 = Gpu("GPU-a", "NVIDIA H200", 140 * GB, 139 * GB)
TWO = (H200, H200._replace(id="GPU-b"))
Have = Callable[..., None]


@pytest.fixture(autouse=True)
def no_memory_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*gpus._MEMORY, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")  # so that what a test sets goes with it
        monkeypatch.delenv(name)


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> Have:
    def have(*there: Gpu) -> None:
        monkeypatch.setattr(gpus, "found", lambda: there)

    return have


def test_gpus_are_those_of_the_driver_that_jax_would_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text('#!/bin/sh\necho "GPU-a, NVIDIA H200, 143360, 142336"\necho "$@" >&2\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert gpus.found.__wrapped__() == ()  # JAX has no part for CUDA
    plugins = [SimpleNamespace(name="xla_cuda12")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: plugins)
    assert gpus.found.__wrapped__() == (H200,)
    ran = subprocess.run
    asked = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **more: asked.append(command) or ran(command, **more)
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpus.found.__wrapped__() and asked[0][-1] == "--id=2,5"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert gpus.found.__wrapped__() == ()
    monkeypatch.setenv("JAX_PLATFORMS", "")
    for script in ("exit 6", 'echo "GPU-a, NVIDIA GB10, [N/A], [N/A]"'):
        driver.write_text(f"#!/bin/sh\n{script}\n")
        assert gpus.found.__wrapped__() == ()


def test_every_process_is_bound_to_a_gpu_with_its_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert gpus.environment((), 0, 4) == {}
    alone = [gpus.environment(TWO, place, 2) for place in range(2)]
    assert alone == [{"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}]
    three = [gpus.environment(TWO, place, 3) for place in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in three] == ["GPU-a", "GPU-b", "GPU-a"]
    assert [one.get("XLA_CLIENT_MEM_FRACTION") for one in three] == ["0.447", None, "0.447"]
    half = H200._replace(free=70 * GB)
    assert gpus.environment([half], 0, 1)["XLA_CLIENT_MEM_FRACTION"] == "0.450"
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert gpus.environment([half], 0, 4) == {"CUDA_VISIBLE_DEVICES": "GPU-a"}


def test_a_gpu_that_others_fill_and_more_processes_than_fit_are_one_sentence(have: Have) -> None:
    full = H200._replace(free=GB // 2)
    with pytest.raises(ConfigError, match=r"has 0\.5 of 140\.0 GB free: other processes fill it"):
        gpus.check([full], 1)
    small = Gpu("GPU-a", "Tesla T4", 15 * GB, 4 * GB)
    with pytest.raises(
        ConfigError, match=r"4\.0 of 15\.0 GB free.*at most 3.*--workers.*is 4 on 1"
    ):
        gpus.check([small], 4)
    with pytest.warns(ConfigNote, match="other processes have the rest"):
        gpus.check([small], 3)
    have(full)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES"):
        use_processor(None)
    have(small, H200)
    with pytest.warns(ConfigNote, match="Tesla T4 has 4"):
        use_processor(None)
    assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.240"
    use_processor(None)  # as a worker, whose share was chosen


def _tell_gpu(tell: workers.Tell) -> None:
    tell(workers.Started([os.environ["CUDA_VISIBLE_DEVICES"]]))


@pytest.mark.thorough
def test_workers_take_the_gpus_in_turn_and_a_free_one_again(have: Have) -> None:
    have(*TWO)
    seen: list[str] = []
    tasks = [workers.Task(_tell_gpu, ())] * 3
    workers.do_tasks(tasks, sweep_command.default_workers(), lambda event: seen.extend(event.runs))
    assert sorted(seen[:2]) == ["GPU-a", "GPU-b"] and len(seen) == 3


def test_a_job_with_several_gpus_deals_its_runs_to_them(
    have: Have, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["digits_fedavg", "--seeds=3", "--print", f"--workdir={tmp_path}"]
    assert sweep_command.main([*given, "--slurm=gpus_per_node=8"]) == 0
    said = capsys.readouterr().out
    assert "every job deals its runs to 8 GPUs; the largest has 3 runs, so that GPUs idle" in said
    plan = sweep_command._plan(sweep_command.parser().parse_args(given))
    (tmp_path / "runs").mkdir()
    cluster.plans.save(tmp_path, plan, [])
    have(*TWO)
    dealt = []
    monkeypatch.setattr(
        workers, "do_tasks", lambda tasks, count, *more: dealt.append((tasks, count))
    )
    assert cluster.Job(tmp_path, ("seed=0", "seed=1", "seed=2"))() == {"missing": 3}
    ((tasks, count),) = dealt
    assert count == 2 and sorted(len(task.runs) for task in tasks) == [1, 2]
