"""Settings of the test process; the environment has to be ready before jax is imported."""

import gc
import os
from importlib.metadata import version
from pathlib import Path

NUM_DEVICES = 4

# jax 0.10 can dead-lock when collective programs need more threads than its pool has: NPROC sets
# its size.
os.environ["NPROC"] = str(2 * NUM_DEVICES + 2)
# Virtual devices, so that sharding is tested without an accelerator; a hanging collective ends the
# process. Most of the suite's time is compiling, which takes half as long without the optimizations
# of the last compiler stage, again half as long with the older code generator for fused operations,
# and a tenth less where a program is not cut into parts.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={NUM_DEVICES}",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        *["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]
        * version("jax").startswith("0.10."),  # XLA ends at a flag it lacks
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60",
        "--xla_cpu_collective_call_terminate_timeout_seconds=120",
    ]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(__file__).resolve().parent.parent / ".cache" / "jax-tests"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ["MPLBACKEND"] = "agg"

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")


# Files whose tests take longest together, the longest first, so that no process is left with one of
# them at the end.
SLOW_FILES = [
    "test_contract.py",
    "test_notebook.py",
    "test_sweep.py",
    "test_residence.py",
    "test_faults.py",
    "test_distributed.py",
    "test_resume.py",
    "test_toy_methods.py",
    "test_train.py",
    "test_load.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow files come first; otherwise the order stays."""
    places = {name: place for place, name in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_collection_finish() -> None:
    """What was imported stays; looking for dead objects among all that tracing makes would take
    a tenth of it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


# Tests that may be skipped in CI, and why. Any other skip there fails the run.
MAY_SKIP = {
    "tests/encoding/test_encoders.py": "PyTorch is not among the development tools",
    "tests/report/test_in_a_browser.py": "no browser is installed where CI runs",
    "tests/data/sources/test_folder.py": "some file systems refuse names that are not text",
}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that skipped a test which is not on the list."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None:
        return
    skipped = [report.nodeid for report in reporter.stats.get("skipped", ())]
    unexpected = [name for name in skipped if name.partition("::")[0] not in MAY_SKIP]
    if unexpected:
        reporter.write_line(
            "skipped, but not in MAY_SKIP of tests/conftest.py: " + ", ".join(unexpected), red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def float64():
    """Runs the test with 64-bit types enabled: for comparisons to the digits of a worked
    example.
    """
    with jax.enable_x64(True):
        yield
