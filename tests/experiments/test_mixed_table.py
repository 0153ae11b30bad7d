"""experiments/mixed_table.py, in small."""

import csv
import runpy
from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_the_table_runs_and_leaves_table_and_rows(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "experiments" / "mixed_table.py"))
    small = ["rounds=2", "model.name=linear", "optimizer.local_epochs=1"]
    script["main"](["--variants", "channels", "labels", "--seeds", "2", "--output", str(tmp_path), "--set", *small])
    with (tmp_path / "mixed_table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["variant"], row["seed"]) for row in rows] == [
        (variant, seed) for variant in ("channels", "labels") for seed in ("0", "1")
    ]
    assert all(0 < float(row["test_accuracy"]) < 1 for row in rows)
    written = (tmp_path / "mixed_table.md").read_text()
    assert "| mixed: channels alone |" in written and "2 seeds" in written


@pytest.mark.parametrize("name", ["digits_mixed", "mnist_mixed"])
def test_every_variant_has_its_clients(name: str) -> None:
    get_config = runpy.run_path(str(ROOT / "configs" / f"{name}.py"))["get_config"]
    for variant in presets.MIXED_VARIANTS:
        config = configs.resolve(get_config(variant)).supervision
        counts = (config.labelled_clients, config.coarse_clients, config.set_clients)
        kinds = {"labels": (1, 0, 0), "labels_xclp": (1, 0, 0), "coarse": (0, 1, 0), "sets": (0, 0, 1)}
        assert tuple(int(count > 0) for count in counts) == kinds.get(variant, (1, 1, 1))
    with pytest.raises(configs.ConfigError, match="there is no variant 'all' of this config; it has: mixed"):
        get_config("all")
