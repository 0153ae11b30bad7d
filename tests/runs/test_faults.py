"""Runs that are killed at any moment, and files and names that are no config: the seed of the kills
is printed.

`make thorough` kills at the same few moments every time; at fifty from a seed of your own:

    FEDJAX_SSL_FUZZ=17 pytest -s -m thorough tests/runs/test_faults.py
"""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.runs.loop import run
from tests.runs.test_resume import CHILD, experiment, results_of, rows_of

GIVEN = os.environ.get("FEDJAX_SSL_FUZZ")
SEED = int(GIVEN or 17)
KILLS = 10 if GIVEN is None else 50


def arrays_of(folder: Path) -> dict[int, dict[str, str]]:
    """The arrays of all checkpoints, without the times that their headers hold."""
    checkpoints = Checkpoints(folder)
    found = {}
    for round in checkpoints.rounds():
        arrays, *_ = checkpoints._read(round)
        found[round] = {
            name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()
        }
    return found


@pytest.mark.promise
@pytest.mark.thorough
def test_kills_over_the_whole_life_of_a_run_lose_no_bit(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    moments = random.Random(SEED)
    run(experiment(), tmp_path / "whole")
    kills = starts = 0
    whole = (
        rows_of(tmp_path / "whole"),
        results_of(tmp_path / "whole"),
        arrays_of(tmp_path / "whole"),
    )
    while kills < KILLS:
        folder = tmp_path / f"killed_{starts}"
        starts += 1
        longest = 3.0
        while not (folder / "summary.json").exists():
            begin = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-c", CHILD, str(folder)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moments.uniform(0.5, longest) if kills < KILLS else None)
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
                longest += 0.5  # so that a slow machine gets to the end
            _, said = process.communicate()
            assert process.returncode in (0, -signal.SIGKILL), said.decode()
            assert b"Traceback" not in said, said.decode()
            assert time.monotonic() - begin < 600
        assert (rows_of(folder), results_of(folder), arrays_of(folder)) == whole
    print(f"{kills} kills in {starts} runs")


@pytest.mark.thorough
def test_ctrl_c_during_imports_ends_with_one_line() -> None:
    for module in ("numpy", "jax._src.core", "flax.core", "optax"):
        line = [sys.executable, "-X", "importtime", "-m", "fedjax_ssl.cli", "run", "digits_fedavg"]
        with subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for text in process.stderr:
                if text.rstrip().endswith(f" {module}"):
                    break
            process.send_signal(signal.SIGINT)
            rest = [text for text in process.stderr if not text.startswith("import time:")]
        assert process.returncode == 130, rest
        assert "".join(rest).strip() == "stopped before anything was done", rest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(3)\n", "it ends Python when it is read"),
        (
            "import ml_collections\ndef get_config():\n    return ml_collections.ConfigDict({})\n",
            "a config without ",
        ),
    ],
)
def test_a_file_that_is_no_config_is_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        configs.load(str(path))


@pytest.mark.parametrize(
    "name",
    [
        "math:pi",
        ":",
    ],
)
def test_a_name_that_builds_nothing_is_one_message(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"no name; give module:function|no function that builds one"
    ):
        configs.load("digits_fedavg", [("method.name", name)])


def test_a_function_that_takes_something_else_is_one_message() -> None:
    from fedjax_ssl.methods import METHODS

    with pytest.raises(ValueError, match="could not build method 'os:system'"):
        METHODS.build("os:system", object())
