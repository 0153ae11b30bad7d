"""Every method over two processes of two devices each: the same bits as one process with four."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedjax_ssl.runs.loop import run
from tests.runs import distributed_runs
from tests.runs.distributed_runs import ON_HOST, config_of
from tests.runs.test_distributed import LIMIT, Ended, assert_same_run, start

pytestmark = pytest.mark.filterwarnings("ignore::fedjax_ssl.config.ConfigNote")
NAMES = ("fedavg", "semifl", "xclp")  # plain, with a server that trains, with a graph of the cohort


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A folder with all runs of the same two processes, `two`, and with those of this one, `one`:
    at the same time.

    All of them train even where one test is asked for.
    """
    folder = tmp_path_factory.mktemp("runs")
    names = [*NAMES, *ON_HOST]
    command = ["-m", distributed_runs.__name__, str(folder / "two"), *names]
    with ThreadPoolExecutor() as threads:
        two = threads.submit(start, command, folder / "log", limit=10 * LIMIT)
        for name in names:
            run(config_of(name), folder / "one" / name)
        return folder, two.result()


@pytest.mark.promise
@pytest.mark.thorough
@pytest.mark.parametrize("name", [*NAMES, *ON_HOST])
def test_two_processes_have_the_bits_of_one(name: str, ended: tuple[Path, Ended]) -> None:
    folder, two = ended
    said = [re.split(r"^run (.+)$", log, flags=re.MULTILINE) for log in two.logs]
    assert all(f"process {index} of 2" in log[0] for index, log in enumerate(said))
    logs = [dict(zip(log[1::2], log[2::2], strict=True)) for log in said]
    assert all(name in log for log in logs), [text[-2000:] for text in two.logs]
    assert_same_run(folder / "two" / name, folder / "one" / name)
    if name in ON_HOST:
        assert (
            "process 1 of 2: the 2 devices of this process have the examples of " in logs[1][name]
        )


@pytest.mark.thorough
def test_the_two_processes_end_by_themselves(ended: tuple[Path, Ended]) -> None:
    assert ended[1].codes == [0, 0], ended[1].logs
