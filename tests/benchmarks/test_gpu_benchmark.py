"""`make gpu`: its page, and the whole of it at a tiny scale on a CPU."""

import argparse
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "benchmarks" / "gpu.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


def test_a_result_takes_the_place_of_the_one_before(script: dict) -> None:
    title = script["TITLE"]
    page = script["with_section"]("# Benchmarks\n\ntext\n", f"{title}\n\nold\n\n")
    assert page == f"# Benchmarks\n\ntext\n\n{title}\n\nold\n"
    page += "\n## Sweeps\n\nmore\n"
    page = script["with_section"](page, f"{title}\n\nnew")
    assert page == f"# Benchmarks\n\ntext\n\n{title}\n\nnew\n\n## Sweeps\n\nmore\n"


def test_a_machine_without_a_gpu_is_refused_at_full_scale(script: dict) -> None:
    with pytest.raises(SystemExit, match=r"on the CPU here.*--scale 0\.01"):
        next(script["place"](argparse.Namespace(scale=1.0, parts=["speed"])))


def test_workloads_are_those_of_bench_and_some_in_bfloat16_too(script: dict) -> None:
    found = dict((f"{name} {one.variant}", one) for name, one in script["workloads"](0.01))
    assert {"W2 ", "W1 ", "W1 bf16", "W7 XCLP bf16", "W8 1,024 seeds", "FixMatch bf16"} <= set(
        found
    )
    for name, one in found.items():
        assert ("bf16" in name) == (one.config().precision == "bf16")


@pytest.mark.thorough
def test_all_of_it_runs_at_a_tiny_scale(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    small = ["--scale", "0.01", "--repeats", "1", "--limit", "1", "--write", str(page)]
    subprocess.run(
        [sys.executable, "-m", "experiments.benchmarks.gpu", *small],
        cwd=SCRIPT.parents[2],
        check=True,
        timeout=3600,
    )
    text = page.read_text()
    assert "which says nothing of speed" in text and "**" not in text
    assert "ended with exit code" not in text and "was not compiled" not in text
    for words in (
        "test_contract.py`: ",
        "passed",
        "in the same bits",
        "digits_fedmatch",
        "| W8 ",
        "FixMatch bf16",
        "| 600 | 4,096 |",
    ):
        assert words in text
    with_torch = (
        "PyTorch's compiled step" if importlib.util.find_spec("torch") else "--torch PYTHON"
    )
    assert with_torch in text
