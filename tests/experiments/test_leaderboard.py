"""The leaderboard's tables are what its stored results say, and its rows are configs that load."""

import runpy
import shlex
from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.methods import METHODS

ROOT = Path(__file__).resolve().parents[2]
BOARD = runpy.run_path(str(ROOT / "experiments" / "leaderboard.py"))
ROWS = [
    (name, row)
    for name, table in BOARD["TABLES"].items()
    for row, one in table.rows.items()
    if one.method in METHODS
]


@pytest.mark.parametrize("name", BOARD["TABLES"])
def test_stored_rows_have_all_seeds_and_the_command_of_their_table(name):
    table = BOARD["TABLES"][name]
    for row, stored in BOARD["load"](name).items():
        assert stored["seeds"] == list(range(table.seeds))
        assert len(set(stored["splits"])) == table.seeds
        words = BOARD["command"](name, row, table.place)
        assert stored["command"].split()[:3] == shlex.join(["fedjax-ssl", *words]).split()[:3]


@pytest.mark.thorough
def test_every_row_is_a_config_that_loads():
    for name, row in ROWS:
        words = BOARD["command"](name, row, None)
        settings = dict(word[2:].split("=", 1) for word in words if "=" in word)
        config = configs.load(words[1], settings)
        assert config.method.name == BOARD["TABLES"][name].rows[row].method


def test_rows_are_sorted_and_differences_are_paired_by_seed():
    stored = {
        row: {
            "seeds": [0, 1],
            "accuracy": accuracy,
            "worst_client": worst,
            "rounds": 5,
            "bytes": 2e6,
            "steps": 60.0,
            "clients": 10.0,
            "splits": splits,
            "diverged": 0,
            "processor_seconds": 9.0,
            "device": "CPU",
            "commit": "abc",
            "versions": {"jax": "1"},
            "command": f"fedjax-ssl sweep {row}",
        }
        for row, accuracy, worst, splits in (
            ("fedavg", [0.5, 0.7], [0.4, 0.6], ["aa", "bb"]),
            ("sage", [0.6, 0.8], [None, None], ["aa", "bb"]),
            ("xclp", [0.9, 0.9], [0.8, 0.8], ["aa", "cc"]),
        )
    }
    text = BOARD["section"]("digits", stored)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert [line.split(" ")[1] for line in lines[2:]] == ["xclp", "sage", "fedavg"]
    assert "| sage | 70.0 ± 127.1 | +10.0 ± 0.0 | - | 6.0 § | 2.0 |" in text
    assert "| xclp † | 90.0 ± 0.0 | - | 80.0 ± 0.0 |" in text
    assert "†: other splits" in text and "§: others have 12." in text
    assert "ahead of labels alone: sage." in text
