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
    path, _, argument = cases.of(name).config.partition(":")
    config = load_config(ROOT / "configs" / path, argument or None)
    assert config.method.name == name
    changes = {"rounds": 3, "eval_every": 1, "federated.devices": 4}
    for field in {"warmup_rounds", "coarse_rounds"} & set(config.method):
        changes[f"method.{field}"] = 1  # so that both stages have their turn
    config.update_from_flattened_dict(changes)
    run(config, tmp_path / "one")
    overrides = [f"--config.{field}={value}" for field, value in changes.items()]
    ended = launch(tmp_path / "two", *overrides, config=f"{ROOT / 'configs' / cases.of(name).config}")
    assert ended.codes == [0, 0], ended.logs
    assert all(re.search(rf"process {index} of 2", log) for index, log in enumerate(ended.logs))
    assert_same_run(tmp_path / "two", tmp_path / "one")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["xclp", "fedmatch", "protofssl"])  # a graph, helpers, prototypes of the cohort
def test_examples_that_each_process_has_for_its_own_clients_give_the_same_bits(name: str, tmp_path: Path) -> None:
    path, _, argument = cases.of(name).config.partition(":")
    config = load_config(ROOT / "configs" / path, argument or None)
    changes = {"rounds": 3, "eval_every": 2, "federated.cohort_size": 3}
    config.update_from_flattened_dict(changes)
    run(config, tmp_path / "one")
    overrides = [f"--config.{field}={value}" for field, value in changes.items()]
    overrides.append("--config.data.residence=host")
    ended = launch(tmp_path / "two", *overrides, config=f"{ROOT / 'configs' / cases.of(name).config}")
    assert ended.codes == [0, 0], ended.logs
    assert "process 1 of 2: the 2 devices of this process have the examples of " in ended.logs[1]
    assert_same_run(tmp_path / "two", tmp_path / "one")
