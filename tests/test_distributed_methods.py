"""Every method over two processes of two devices each: the same bits as one process with four."""

import re
from pathlib import Path

import pytest

from fedjax_ssl import methods
from fedjax_ssl.experiment.run import run
from fedjax_ssl.experiment.tables import load_config
from tests.methods import cases
from tests.test_distributed import ROOT, assert_same_run, launch

NAMES = sorted(methods.available())


def test_every_method_has_a_config() -> None:
    for name in NAMES:
        assert (ROOT / "configs" / cases.of(name).config.partition(":")[0]).is_file(), name


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::fedjax_ssl.config.ConfigNote")
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_have_the_bits_of_one(name: str, tmp_path: Path) -> None:
    logs = logs_of_same_runs(name, tmp_path, {"rounds": 3, "eval_every": 1})
    assert all(re.search(rf"process {index} of 2", log) for index, log in enumerate(logs))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::fedjax_ssl.config.ConfigNote")
@pytest.mark.parametrize("name", ["xclp", "protofssl"])  # which look at the whole cohort's examples outside training
def test_two_processes_with_their_own_clients_examples_have_the_bits_of_one(name: str, tmp_path: Path) -> None:
    changes = {"rounds": 3, "eval_every": 1, "federated.cohort_size": 3}
    logs = logs_of_same_runs(name, tmp_path, changes, "--config.data.residence=host")
    assert "process 1 of 2: the 2 devices of this process have the examples of " in logs[1]


def logs_of_same_runs(name: str, folder: Path, changes: dict[str, int], *of_two: str) -> list[str]:
    """Runs a method in one process and in two, these with `of_two` as well; returns the logs of the two."""
    path, _, argument = cases.of(name).config.partition(":")
    config = load_config(ROOT / "configs" / path, argument or None)
    assert config.method.name == name
    changes = {**changes, "federated.devices": 4}
    for field in {"warmup_rounds", "coarse_rounds"} & set(config.method):
        changes[f"method.{field}"] = 1  # so that both stages have their turn
    config.update_from_flattened_dict(changes)
    run(config, folder / "one")
    overrides = [f"--config.{field}={value}" for field, value in changes.items()]
    ended = launch(folder / "two", *overrides, *of_two, config=f"{ROOT / 'configs' / cases.of(name).config}")
    assert ended.codes == [0, 0], ended.logs
    assert_same_run(folder / "two", folder / "one")
    return ended.logs
