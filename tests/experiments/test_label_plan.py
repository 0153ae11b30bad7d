"""Stored results of planned and random labels are whole."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDY = runpy.run_path(str(ROOT / "experiments" / "label_plan.py"))
TABLES = [name for name in STUDY["TABLES"] if STUDY["path_of"](name).exists()]


def test_stored_rows_have_all_seeds_and_numbers_of_labels():
    numbers = list(map(str, STUDY["PER_CLASS"]))
    for name in TABLES:
        for rows in STUDY["load"](name).values():
            for row in rows.values():
                assert sorted(row["accuracy"], key=int) == numbers
                assert all(sorted(one) == list("01234") for one in row["accuracy"].values())
