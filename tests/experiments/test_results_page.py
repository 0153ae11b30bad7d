"""The page of results is what the stored results say."""

import json

import pytest

from experiments import results_page

TABLES = sorted(results_page.STORED.glob("*.json"))


def test_the_page_is_made_from_the_stored_results():
    assert results_page.PAGE.read_text(encoding="utf-8") == results_page.page()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_stored_table_is_whole(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert stored["section"] in results_page.ORDER
    assert all(len(row) == len(stored["columns"]) for row in stored["rows"])
    assert "seed" in stored["measured"] or "seed" in stored["setting"]
    assert stored["shows"].endswith(".") and (
        "jax" in stored["measured"] or "CPU" in stored["measured"]
    )
