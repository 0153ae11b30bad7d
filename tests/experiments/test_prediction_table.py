"""experiments/prediction_table.py: its tables from made-up runs, and a small real run that fails half way."""

import csv
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(ROOT / "experiments" / "prediction_table.py"))


def runs(script: dict) -> list:
    accuracies = {"xclp": (0.9, 0.8), "xclp_labelled": (0.7, 0.9), "per_client_lp": (0.5, 0.4), "network": (0.6, 0.6)}
    return [
        script["Run"]("inputs", 0.1, seed, None, name, value, value)
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]


def test_means_deviations_and_paired_orderings(script: dict) -> None:
    lines = script["share_table"](runs(script)).splitlines()
    assert "| inputs | xclp | 85.0 ± 7.1 |" in lines and "| inputs | network | 60.0 ± 0.0 |" in lines
    left_out = [
        script["Run"]("left_out", 1.0, 0, client, name, value, value)
        for client, (network, xclp) in enumerate([(0.5, 0.8), (0.9, 0.9), (0.7, 0.6)])
        for name, value in (("network", network), ("xclp", xclp))
    ]
    assert "| xclp | 80.0 | 90.0 | 60.0 | 76.7 |" in script["left_out_table"](left_out).splitlines()
    found = list(script["orderings"](runs(script), left_out))
    assert "T1, inputs: xclp_labelled above network for 1 of 1 shares (+20.0 at 10%)" in found
    assert "T3, inputs: xclp above xclp_labelled for 1 of 1 shares (+5.0 at 10%)" in found
    assert "T6, inputs: xclp above per_client_lp for 1 of 1 shares (+40.0 at 10%)" in found
    assert "T2: xclp above FedAvg's network for 1 of 3 left-out clients, equal for 1" in found


@pytest.mark.thorough
def test_what_was_run_is_kept_when_the_next_run_fails(script: dict, tmp_path: Path, capsys) -> None:
    config = tmp_path / "one_predict.py"
    config.write_text(
        "from fedjax_ssl import presets\n"
        "def get_config(variant):\n"
        "    config = presets.one_shot(variant, rounds=0)\n"
        "    config.prediction.update(predictors='xclp', num_bits=64, unlabelled='with')\n"
        "    return config\n"
    )
    arguments = [str(config), "--fractions", "0.5", "--seeds", "1", "--variant", "code", "--output", str(tmp_path)]
    assert script["main"]([*arguments, "--features", "inputs", "network"]) == 2
    captured = capsys.readouterr()
    assert "leaves random" in captured.err and "inputs, 50% labelled, seed 0: xclp" in captured.out
    with (tmp_path / "prediction_table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["xclp"]
    assert all(float(row["accuracy"]) > 0.5 for row in rows)  # chance is 0.1


def test_bad_arguments_are_refused(script: dict, capsys) -> None:
    for arguments, message in (
        (["nothing.py"], "nothing.py is not a file"),
        ([__file__, "--fractions", "0"], "shares"),
    ):
        with pytest.raises(SystemExit, match="2"):
            script["main"](arguments)
        assert message in capsys.readouterr().err
