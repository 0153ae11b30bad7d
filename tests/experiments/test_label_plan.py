"""The page's tables of planned and random labels are what the stored results say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUDY = runpy.run_path(str(ROOT / "experiments" / "label_plan.py"))
TABLES = [name for name in STUDY["TABLES"] if STUDY["path_of"](name).exists()]


def test_the_page_is_made_from_the_stored_results():
    page = STUDY["PAGE"].read_text(encoding="utf-8").partition(STUDY["MARK"])[2]
    assert page == "\n\n".join(["", *map(STUDY["section"], TABLES)]) + "\n"


def test_stored_rows_have_all_seeds_and_numbers_of_labels():
    numbers = list(map(str, STUDY["PER_CLASS"]))
    for name in TABLES:
        for rows in STUDY["load"](name).values():
            for row in rows.values():
                assert sorted(row["accuracy"], key=int) == numbers
                assert all(sorted(one) == list("01234") for one in row["accuracy"].values())
