"""experiments/fedmt_table.py, in small."""

import csv
import runpy
from pathlib import Path
from typing import Any

import ml_collections
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "fedmt_table.py"


@pytest.fixture
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


@pytest.mark.thorough
def test_the_table_runs_and_leaves_table_matrix_and_rows(
    script: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    globals_of_script, make_config = script["main"].__globals__, script["make_config"]

    def small(*row: Any) -> ml_collections.ConfigDict:
        config = make_config(*row)
        config.model = type(config.model)({"name": "linear"})
        config.optimizer.local_epochs = 1
        return config

    monkeypatch.setitem(globals_of_script, "make_config", small)
    rows = ["--rows", "FedMT(E)", "--spaces", "halves"]
    script["main"]([*rows, "--seeds", "1", "--rounds", "2", "--output", str(tmp_path)])
    with (tmp_path / "fedmt_table.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["method"], row["coarse_labels"], row["seed"]) == ("FedMT(E)", "halves", "0")
    assert 0.2 < float(row["test_accuracy"]) < 1  # chance is 0.1
    written = (tmp_path / "fedmt_table.md").read_text(encoding="utf-8")
    assert "| true, coarse label 1 | 0 | 0 | 0 | 0 | 0 | 1 | 1 | 1 | 1 | 1 |" in written
    assert "| estimated, coarse label 0 | " in written and "2 rounds" in written


def test_every_row_has_a_config_of_its_own(script: dict) -> None:
    options = script["_parse"](["--path", "mnist.npz", "--clients", "7"])
    known = script["make_config"]("FedMT(T), all examples", "parity", "50", options)
    assert (known.data.path, known.partition.num_clients) == ("mnist.npz", 7)
    assert (known.supervision.server_labels, known.method.gate) == (50, "none")
    upper = script["make_config"](script["ALL_LABELS"], script["NO_SPACE"], "all", options)
    assert (upper.method.name, upper.supervision.name, upper.supervision.server_labels) == ("fedavg", "all", None)
    semifl = script["make_config"]("SemiFL, no coarse labels", script["NO_SPACE"], "50", options)
    assert (semifl.method.name, semifl.supervision.name, semifl.supervision.labels) == ("semifl", "server", 50)
    transfer = script["make_config"]("fedtrans, new head alone", "parity", "20", script["_parse"](["--rounds", "6"]))
    assert (transfer.method.name, transfer.method.finetune, transfer.method.coarse_rounds) == ("fedtrans", "head", 3)
    assert (transfer.supervision.correspondence, transfer.supervision.server_labels) == ("parity", 20)
    assert transfer.model.aux_head and transfer.optimizer.schedule_rounds == 3
