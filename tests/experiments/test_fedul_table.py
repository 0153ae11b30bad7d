"""experiments/fedul_table.py, in small."""

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "fedul_table.py"


@pytest.fixture
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.thorough
def test_the_table_runs_and_leaves_table_and_rows(
    script: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--sets", "5", "--seeds", "1", "--rounds", "2", "--network", "linear", "--output", str(tmp_path)]
    script["main"](["--splits", "noniid", "--methods", "fedul", *common])
    with (tmp_path / "fedul_table.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert [row[name] for name in ("split", "sets", "method", "seed")] == ["noniid", "5", "fedul", "0"]
    assert 0 < float(row["test_error"]) < 0.9  # chance
    assert float(row["epoch_seconds"]) > 0
    written = (tmp_path / "fedul_table.md").read_text(encoding="utf-8")
    assert "| noniid | 5 |" in written
    assert "not an experiment of the paper" in written and "2 rounds" in written
    assert "[ 1/1] noniid, 5, fedul" in capsys.readouterr().out


def test_for_mnist_the_numbers_of_the_paper_stand_beside_ours(script: dict) -> None:
    cells = [
        script["Cell"]("iid", "10", "fedul", np.array([0.01, 0.03]), 1.25),
        script["Cell"]("iid", "5", "fedpl", np.array([0.04, 0.04]), 1.0),
        script["Cell"]("iid", "labels", "fedavg", np.array([0.02]), 0.5),
    ]
    lines = script["table"](cells, published=True).splitlines()
    assert lines[0].split("|")[3:6] == [" fedul ", " paper ", " s/epoch "]
    assert "| iid | 10 | 2.00 ± 1.00 | 0.78 ± 0.06 | 1.25 |" in lines[2]
    assert "| 4.00 ± 0.00 |  | 1 |" in lines[3]
    assert lines[4].startswith("| iid | a tenth of the labels |") and lines[4].endswith("| 2.00 | 1.79 ± 0.09 | 0.5 |")


@pytest.mark.parametrize("method", ["fedul", "fedpl", "fedllp", "fedllp_vat", "fedavg"])
def test_every_cell_of_the_mnist_table_has_a_config(script: dict, method: str) -> None:
    options = script["_parse"](["--dataset", "mnist", "--path", "some.npz", "--network", "mlp", "--rounds", "8"])
    config = script["make_config"]("noniid", "20", method, options)
    assert (config.method.name, config.partition.name, config.rounds) == (method, "majority", 8)
    assert config.data.balanced_test and script["make_config"]("iid", "20", method, options).partition.name == "random"
    assert (config.data.path, config.model.to_dict()) == ("some.npz", {"name": "mlp"})
    if method == "fedavg":
        assert (config.supervision.name, config.supervision.fraction) == ("fraction", 0.1)
    else:
        assert (config.supervision.sets, config.method.l1) == (20, 5e-6)
    assert config.method.get("warmup_rounds", 4) == 4
    differences = script["differences"](options)
    assert any("network mlp" in line for line in differences)
    assert any("test error: mean over the clients" in line for line in differences)
    assert any("standardized by the training images" in line for line in differences)
