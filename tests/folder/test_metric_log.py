import csv

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.folder.rows import MetricLog


def read_csv(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_in_both_files_and_come_back(tmp_path):
    log = MetricLog(tmp_path)
    log.append({"round": 1, "test_accuracy": jnp.float32(0.1), "name": "a,b"})
    log.append({"round": np.int64(3), "test_accuracy": 0.5, "name": None})
    expected = [
        {"round": 1, "test_accuracy": 0.1, "name": "a,b"},
        {"round": 3, "test_accuracy": 0.5, "name": None},
    ]
    assert log.rows() == MetricLog(tmp_path).rows() == expected
    assert read_csv(tmp_path) == [
        {"round": "1", "test_accuracy": "0.1", "name": "a,b"},
        {"round": "3", "test_accuracy": "0.5", "name": ""},
    ]


def test_new_columns_widen_the_csv_and_missing_ones_are_empty(tmp_path):
    log = MetricLog(tmp_path)
    log.append({"round": 1, "loss": 2.0})
    log.append({"round": 2, "coverage": 0.5})
    log.append({"round": 3, "loss": 1.0})
    assert read_csv(tmp_path) == [
        {"round": "1", "loss": "2.0", "coverage": ""},
        {"round": "2", "loss": "", "coverage": "0.5"},
        {"round": "3", "loss": "1.0", "coverage": ""},
    ]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_last_row_is_dropped_from_both_files(tmp_path, cut):
    log = MetricLog(tmp_path)
    for number in (1, 2):
        log.append({"round": number, "test_accuracy": 0.25})
    for name in ("metrics.jsonl", "metrics.csv"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-cut])
    again = MetricLog(tmp_path)
    assert [row["round"] for row in again.rows()] == [1]
    again.append({"round": 2, "test_accuracy": 0.75})
    assert [row["test_accuracy"] for row in MetricLog(tmp_path).rows()] == [0.25, 0.75]
    assert [row["test_accuracy"] for row in read_csv(tmp_path)] == ["0.25", "0.75"]


def test_resuming_drops_the_rows_after_the_checkpoint(tmp_path):
    log = MetricLog(tmp_path)
    for number in (2, 4, 6):
        log.append({"round": number, "loss": 1.0} | ({"late": 1} if number > 4 else {}))
    log.truncate(after_round=4)
    log.append({"round": 6, "loss": 0.5})
    for rows in (log.rows(), MetricLog(tmp_path).rows()):
        assert rows == [
            {"round": number, "loss": loss} for number, loss in ((2, 1.0), (4, 1.0), (6, 0.5))
        ]
    assert [row["round"] for row in read_csv(tmp_path)] == ["2", "4", "6"]
    log.truncate(after_round=0)
    assert log.rows() == MetricLog(tmp_path).rows() == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"loss": 1.0}, '"round"'),
        ({"round": -1}, "at least 0"),
        ({"round": True}, "at least 0"),
        ({"round": 1.0}, "at least 0"),
        ({"round": 3}, "already there"),
        ({"round": 4, "recall": np.ones(2)}, "recall"),
        ({"round": 4, "recall": [0.5]}, "recall"),
    ],
)
def test_a_row_that_cannot_be_stored_changes_nothing(tmp_path, row, message):
    log = MetricLog(tmp_path)
    log.append({"round": 3})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=message):
        log.append(row)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert log.rows() == [{"round": 3}]


@pytest.mark.parametrize("line", ["{half", '{"loss": 1}', "[1]", '{"round": 1}'])
def test_damage_before_the_end_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"round": 1}}\n{line}\n{{"round": 3}}\n')
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2 is damaged"):
        MetricLog(tmp_path)
