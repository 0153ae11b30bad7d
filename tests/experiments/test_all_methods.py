"""experiments/all_methods.py, in small."""

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "all_methods.py"


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT))


def row(script: dict, method: str, accuracy: float, sent: float) -> object:
    values = np.array([accuracy, accuracy + 0.02])
    sent_bytes = np.full(2, sent)
    steps = np.full(2, 50.0)
    curve = (values[:, None], np.array([10]))
    return script["Row"](
        method, 10, values, values, np.full(2, np.nan), sent_bytes, sent_bytes, steps, *curve, 3.0
    )


def test_the_best_comes_first_and_bytes_are_relative_to_fedavg(script: dict) -> None:
    text = script["table"](
        [row(script, "fedavg", 0.7, 4e6), row(script, "xclp", 0.8, 1e6), row(script, "own", 0.6, 0)]
    )
    lines = [line.split(" | ") for line in text.splitlines()[2:]]
    assert [line[0].strip("| ") for line in lines] == ["xclp", "fedavg", "own"]
    assert [line[4] for line in lines] == ["0.25", "1.00", "0.00"]
    assert lines[0][1] == "81.0 ± 1.4"


def test_settings_of_one_method_are_parsed(
    script: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    options = script["_parse"](["--set", "semifl.threshold=0.8", "semifl.optimizer.name=adam"])
    assert options.set == {"semifl": {"method.threshold": 0.8, "optimizer.name": "adam"}}
    with pytest.raises(SystemExit):
        script["_parse"](["--set", "semifl.treshold=0.8"])
    assert (
        "the config has no field 'method.treshold'. Did you mean 'method.threshold'"
        in capsys.readouterr().err
    )


@pytest.mark.thorough
def test_methods_share_a_number_of_local_steps(script: dict, tmp_path: Path) -> None:
    arguments = "--methods fedavg xclp semifl --seeds 2 --steps 300 --output"
    script["main"]([*arguments.split(), str(tmp_path)])
    with (tmp_path / "all_methods.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [entry["method"] for entry in rows[::2]] == ["fedavg", "xclp", "fedavg, all labels"]
    steps = [float(entry["steps"]) for entry in rows]
    assert steps[:2] == [300.0, 300.0]
    # Two rounds of whole epochs over all examples are more than was asked for, and the least.
    assert all(300 < taken < 3000 for taken in steps[2:]) and {
        entry["rounds"] for entry in rows[4:]
    } == {"2"}
    text = (tmp_path / "all_methods.md").read_text(encoding="utf-8")
    assert "- not run: semifl: method 'semifl' learns from class labels at the server" in text
    assert (tmp_path / "all_methods.png").read_bytes().startswith(b"\x89PNG")
