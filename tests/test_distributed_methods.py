"""Every method over two processes of two devices each: the same bits as one process with four."""

import re
from pathlib import Path

import pytest

from fedjax_ssl import methods
from fedjax_ssl.experiment.run import run
from tests import distributed_runs
from tests.distributed_runs import CONFIGS, ON_HOST, config_of
from tests.methods import cases
from tests.test_distributed import LIMIT, Ended, assert_same_run, start

NAMES = sorted(methods.available())


def test_every_method_has_a_config() -> None:
    for name in NAMES:
        assert (CONFIGS / cases.of(name).config.partition(":")[0]).is_file(), name


@pytest.fixture(scope="module")
def over_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """All runs, in the same two processes."""
    folder = tmp_path_factory.mktemp("two")
    command = ["-m", distributed_runs.__name__, str(folder), *NAMES, *ON_HOST]
    return folder, start(command, folder / "log", limit=10 * LIMIT)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::fedjax_ssl.config.ConfigNote")
@pytest.mark.parametrize("name", [*NAMES, *ON_HOST])
def test_two_processes_have_the_bits_of_one(name: str, over_two: tuple[Path, Ended], tmp_path: Path) -> None:
    folder, ended = over_two
    said = [re.split(r"^run (.+)$", log, flags=re.MULTILINE) for log in ended.logs]
    assert all(f"process {index} of 2" in log[0] for index, log in enumerate(said))
    logs = [dict(zip(log[1::2], log[2::2], strict=True)) for log in said]
    assert all(name in log for log in logs), [list(log) for log in logs]
    run(config_of(name), tmp_path)
    assert_same_run(folder / name, tmp_path)
    if name in ON_HOST:
        assert "process 1 of 2: the 2 devices of this process have the examples of " in logs[1][name]


@pytest.mark.thorough
def test_the_two_processes_end_by_themselves(over_two: tuple[Path, Ended]) -> None:
    _, ended = over_two
    assert ended.codes == [0, 0], ended.logs
