"""The tables of experiments/, in small: every row has a config that resolves, and a run leaves
table and rows.
"""

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets

ROOT = Path(__file__).resolve().parents[2]


def script_of(name):
    return runpy.run_path(str(ROOT / "experiments" / f"{name}.py"))


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "arguments", "rows", "line"),
    [
        (
            "digits_table",
            "--methods network_pseudo_label --labels 5 --seeds 2 --rounds 4",
            [
                "network_pseudo_label,5,0",
                "network_pseudo_label,5,1",
                "fedavg,all,0",
                "fedavg,all,1",
            ],
            "| fedavg, all labels |",
        ),
        (
            "mixed_table",
            "--variants channels labels --seeds 1 --set rounds=2 model.name=linear "
            "optimizer.local_epochs=1",
            ["channels,0", "labels,0"],
            "| mixed: channels alone |",
        ),
    ],
)
def test_a_small_run_leaves_table_and_rows(name, arguments, rows, line, tmp_path):
    given = [*arguments.split(), "--output", str(tmp_path)]
    script_of(name)["main"](given)
    written = (tmp_path / f"{name}.csv").read_text().splitlines()[1:]
    assert all(any(found.startswith(row) for found in written) for row in rows)
    assert line in (tmp_path / f"{name}.md").read_text(encoding="utf-8")


def test_means_deviations_and_paired_gains():
    script = script_of("digits_table")
    nothing = np.full(2, np.nan)
    cells = [
        script["Cell"]("fedavg", "5", np.array([0.70, 0.74]), nothing),
        script["Cell"]("xclp", "5", np.array([0.90, 0.92]), np.array([0.95, 0.97])),
        script["Cell"]("fedavg", "all", np.array([0.93, 0.93]), nothing),
    ]
    lines = script["table"](cells).splitlines()
    for line in ("| fedavg | 72.0 ± 2.8 |", "| xclp | +19.0 ± 1.4 |", "| xclp | 96.0 ± 1.4 |"):
        assert line in lines
    assert (script["spread"](np.array([0.5])), script["spread"](np.array([np.nan]))) == (
        "50.0",
        "-",
    )


@pytest.mark.parametrize("name", ["digits_mixed", "mnist_mixed"])
def test_every_variant_of_a_mixed_federation_has_its_clients(name):
    get_config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]
    for variant in presets.MIXED_VARIANTS:
        config = configs.resolve(get_config(variant)).supervision
        counts = (config.labelled_clients, config.coarse_clients, config.set_clients)
        kinds = {
            "labels": (1, 0, 0),
            "labels_xclp": (1, 0, 0),
            "coarse": (0, 1, 0),
            "sets": (0, 0, 1),
        }
        assert tuple(int(count > 0) for count in counts) == kinds.get(variant, (1, 1, 1))


@pytest.mark.thorough
def test_predictions_that_were_made_are_kept_when_the_next_run_fails(tmp_path, capsys):
    config = tmp_path / "one_predict.py"
    config.write_text(
        "from fedjax_ssl import presets\n"
        "def get_config(variant):\n"
        "    config = presets.one_shot(variant, rounds=0)\n"
        "    config.prediction.update(predictors='xclp', num_bits=64, unlabelled='with')\n"
        "    return config\n"
    )
    arguments = [
        str(config),
        "--fractions",
        "0.5",
        "--seeds",
        "1",
        "--variant",
        "code",
        "--output",
        str(tmp_path),
    ]
    assert (
        script_of("prediction_table")["main"]([*arguments, "--features", "inputs", "network"]) == 2
    )
    assert "leaves random" in capsys.readouterr().err
    (row,) = rows_of(tmp_path / "prediction_table.csv")
    assert row["name"] == "xclp" and float(row["accuracy"]) > 0.5  # chance is 0.1
