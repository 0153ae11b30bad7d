"""experiments/fedmatch_table.py: the configs of its rows, its table, one small run."""

import argparse
import runpy
from pathlib import Path

import numpy as np
import pytest

from fedjax_ssl import config as configs

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "fedmatch_table.py"
TABLE = runpy.run_path(str(SCRIPT))


def options(variant="lc,iid,0.25", config="cifar10_fedmatch", path="images.npz"):
    return argparse.Namespace(config=config, variant=variant, path=path, clients=4, rounds=2, unlabelled_ratio=3)


@pytest.mark.parametrize("method", TABLE["METHODS"])
@pytest.mark.parametrize("variant", ["lc,iid,0.25", "ls,noniid,0.25"])
def test_every_row_has_a_config_that_resolves(method, variant):
    config = configs.resolve(TABLE["make_config"](method, options(variant)))
    assert config.partition.num_clients == 4 and config.rounds == 2 and not config.data.pool_splits
    if method in ("fixmatch", "uda"):
        assert (config.method.labelled_weight, config.method.unlabelled_ratio) == (10.0, 3)
    # Weight 10 of the supervised loss is a learning rate ten times as high where there is no other loss.
    assert config.optimizer.learning_rate == pytest.approx(1e-2 if method.endswith("labels") or " " in method else 1e-3)


def test_table_has_last_and_best_accuracy_and_mean_costs():
    metrics = {"test_accuracy": np.array([[0.3, 0.2]]), "s2c": np.array([[1.0, 0.5]]), "round": np.array([[1, 2]])}
    rows = [TABLE["Row"]("fedmatch", metrics, 3.0)]
    cells = [cell.strip() for cell in TABLE["table"](rows).splitlines()[-1].split("|")[1:-1]]
    assert cells == ["fedmatch", "20.0", "30.0", "-", "-", "-", "75.0", "-", "3"]
    assert TABLE["_evaluations"](rows).splitlines()[1] == "fedmatch,0,1,0.3,,,,1.0,"


@pytest.mark.thorough
def test_a_small_run_leaves_both_files(tmp_path):
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (480, 32, 32, 3), np.uint8), np.tile(np.arange(10, dtype=np.int32), 48)
    np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    given = ["--path", str(tmp_path / "images.npz"), "--variant", "lc,iid,0.0625", "--clients", "5", "--rounds", "2"]
    TABLE["main"]([*given, "--methods", "fedmatch", "labels only", "--output", str(tmp_path / "out")])
    assert (tmp_path / "out" / "fedmatch_table.md").read_text().count("\n| ") == 3
    assert len((tmp_path / "out" / "fedmatch_table.csv").read_text().splitlines()) == 1 + 2 * 2
