"""experiments/digits_table.py, in small."""

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "digits_table.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


def cells(script: dict) -> list:
    nothing = np.full(2, np.nan)
    return [
        script["Cell"]("fedavg", "5", np.array([0.70, 0.74]), nothing),
        script["Cell"]("xclp", "5", np.array([0.90, 0.92]), np.array([0.95, 0.97])),
        script["Cell"]("fedavg", "all", np.array([0.93, 0.93]), nothing),
    ]


@pytest.mark.thorough
def test_digits_table_runs_and_leaves_table_rows_and_plot(
    script: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script["main"](
        [
            "--methods",
            "network_pseudo_label",
            "--labels",
            "5",
            "--seeds",
            "2",
            "--rounds",
            "4",
            "--output",
            str(tmp_path),
        ]
    )
    with (tmp_path / "digits_table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["labels_per_writer"], row["seed"]) for row in rows] == [
        ("network_pseudo_label", "5", "0"),
        ("network_pseudo_label", "5", "1"),
        ("fedavg", "all", "0"),
        ("fedavg", "all", "1"),
    ]
    for row in rows:
        assert 0.2 < float(row["test_accuracy"]) <= 1.0  # chance is 0.1
    assert [bool(row["pseudo_label_accuracy"]) for row in rows] == [True, True, False, False]
    assert (tmp_path / "digits_table.png").read_bytes().startswith(b"\x89PNG")
    written = (tmp_path / "digits_table.md").read_text(encoding="utf-8")
    assert "| network_pseudo_label |" in written and "4 rounds" in written
    printed = capsys.readouterr().out
    assert "[ 1/2] network_pseudo_label" in printed and written in printed


def test_digits_table_writes_means_deviations_and_paired_gains(script: dict) -> None:
    lines = script["table"](cells(script)).splitlines()
    assert "| fedavg | 72.0 ± 2.8 |" in lines
    assert "| xclp | 91.0 ± 1.4 |" in lines
    assert "| fedavg, all labels | 93.0 ± 0.0 |" in lines
    assert "| xclp | +19.0 ± 1.4 |" in lines
    assert "| xclp | 96.0 ± 1.4 |" in lines


def test_digits_table_with_one_seed_has_no_deviation(script: dict) -> None:
    assert script["spread"](np.array([0.5])) == "50.0"
    assert script["spread"](np.array([np.nan])) == "-"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--labels", "0"], "at least 1"), (["--methods", "fedmatch"], "invalid choice: 'fedmatch'")],
)
def test_digits_table_refuses_bad_arguments(
    script: dict, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script["main"](arguments)
    assert message in capsys.readouterr().err
