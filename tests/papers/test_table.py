"""Tables as data: how the settings of a cell come together, and which tables are refused."""

import dataclasses
from pathlib import Path

import pytest

from experiments.papers.table import Table, find_table, load_tables
from fedjax_ssl.errors import ConfigError

TABLE = Table(
    name="mine-table1",
    title="Digits",
    source="nowhere",
    config="digits",
    settings={"rounds": 9, "optimizer.learning_rate": 0.1},
    rows={"A": {"rounds": 8}, "B": {"missing": "a method that nobody has"}},
    columns={
        "x": {"rounds": 7, "small": {"rounds": 3}},
        "y": {"config": "digits_xclp", "metric": "test_error"},
    },
    cells={("A", "y"): {"rounds": 6}, ("B", "x"): None},
    paper={"A": ("1.5 ± 0.1", "")},
    small={"rounds": 4, "seeds": 2},
    small_cells={"rows": ["A"]},
)


def test_later_parts_replace_what_earlier_ones_set() -> None:
    first, second, third = TABLE.make_cells("paper")
    assert first.settings == {"rounds": 7, "optimizer.learning_rate": 0.1}
    assert (first.config, first.metric, first.paper, first.missing) == (
        "digits",
        "test_accuracy",
        "1.5 ± 0.1",
        "",
    )
    assert (second.config, second.metric, second.settings["rounds"]) == (
        "digits_xclp",
        "test_error",
        6,
    )
    assert (third.row, third.column, third.missing) == ("B", "y", "a method that nobody has")
    assert [cell.settings["rounds"] for cell in TABLE.make_cells("small")] == [3, 4]


def test_medium_adds_its_settings_to_those_of_small() -> None:
    with pytest.raises(ConfigError, match="no scale medium; it has smoke, small, paper"):
        TABLE.make_cells("medium")
    columns = {**TABLE.columns, "x": {"small": {"rounds": 3, "name": "a"}, "medium": {"name": "b"}}}
    table = dataclasses.replace(
        TABLE, columns=columns, medium={"rounds": 50, "seeds": 5, "reduced": "fewer rounds"}
    )
    own = {"rounds": 50, "optimizer.learning_rate": 0.1}
    assert [cell.settings for cell in table.make_cells("medium")] == [own, own]
    assert [cell.settings["rounds"] for cell in table.make_cells("small")] == [3, 4]
    shown = [
        (table.name_at(scale, "columns", "x"), table.seeds_at(scale), table.reduced_at(scale))
        for scale in ("small", "medium", "paper")
    ]
    assert shown == [("a", 2, ""), ("b", 5, "fewer rounds"), ("x", 1, "")]


def test_cells_are_chosen_by_name() -> None:
    assert [(cell.row, cell.column) for cell in TABLE.make_cells("small", rows=["B"])] == [
        ("B", "y")
    ]
    with pytest.raises(ConfigError, match="no column 'z'"):
        TABLE.make_cells("paper", columns=["z"])
    table = dataclasses.replace(TABLE, columns={"x": {"small": {"name": "half x"}}, "y": {}})
    assert [table.make_cells("small", ["A"], [name])[0].column for name in ("x", "half x")] == [
        "x",
        "x",
    ]
    with pytest.raises(ConfigError, match="It has: half x; y"):
        table.make_cells("small", columns=["z"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Table 1"}, "not of the form"),
        ({"columns": {}}, "no rows or no columns"),
        ({"cells": {("A", "z"): {}}}, "there is no cell"),
        ({"paper": {"A": ("1",)}}, "one number"),
        ({"paper": {"A": ("84,1", "")}}, "'84,1' of 'A' is not of the form"),
        ({"small_cells": {"rows": ["C"]}}, "there is no cell"),
        ({"why": {"tiny": "too few rounds"}}, "why names the scale 'tiny'"),
        ({"medium": {"rounds": 5}}, "medium does not say what is 'reduced'"),
        (
            {"rows": {"A": {"small": {"name": "B"}}, "B": {}}},
            "two rows have one name at the scale small",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TABLE, **change)


def test_a_table_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'mine-table1'"):
        find_table("mine-table", {"mine-table1": TABLE})


def test_a_file_without_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    for text, words in (
        ("", "has no tables"),
        ("tables", "cannot be read"),
        ('[[tables]]\nname = "mine-table1"\ncolour = 3', "a.toml: .*'colour'"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            load_tables([path])
    path.with_suffix(".py").write_text("import nothing_like_it")
    with pytest.raises(ConfigError, match=r"a.py cannot be read.*nothing_like_it"):
        load_tables([path])
