"""Claims of papers, from made-up results alone; marks of numbers that are not what they seem."""

import json
from pathlib import Path

import pytest

from fedjax_ssl.errors import ConfigError
from fedjax_ssl.folder.stored_run import read_run
from fedjax_ssl.reproduce import claims, results
from fedjax_ssl.reproduce import page as pages
from fedjax_ssl.reproduce.claims import Claim, Pair, above
from fedjax_ssl.reproduce.marks import signs
from fedjax_ssl.reproduce.results import Measured, Origin, Result
from fedjax_ssl.reproduce.table import Cell, Table, load_tables

TABLE = Table(
    name="mine-table1",
    title="Digits",
    source="nowhere",
    config="digits",
    rows={"Ours": {}, "Theirs": {}, "Others": {"small": {"steps": "it goes through its sets"}}},
    columns={"5 labels": {}, "20 labels": {}},
    paper={"Ours": ("84.1 ± 0.4", ""), "Theirs": ("80.0", "")},
    steps=5,
    wanted={"5 labels": ("Ours", "Theirs")},
)
ORIGIN = Origin("CPU", "0123456789", 0.5, "fedjax-ssl reproduce mine-table1 --run", "jax 1.2")
BEST = Claim(
    paper="Mine",
    text="ours is best",
    source="Table 1",
    pairs=above("mine-table1", "Ours", ["Theirs", "Others"], ["5 labels", "20 labels"]),
    lacks="too few rounds",
)


def stored(
    scale: str, marks: dict[str, tuple[str, ...]] | None = None, **values: tuple[float, ...]
) -> Result:
    """Results with 5 labels; a row's values are its seeds'."""
    cells = [
        Measured(
            row,
            "5 labels",
            own,
            3,
            0.1,
            ORIGIN,
            steps=20.0 if row == "Others" else 5.0,
            marks=(marks or {}).get(row, ()),
        )
        for row, own in values.items()
    ]
    return Result("mine-table1", scale, cells, ORIGIN)


def judged(*found: Result, claim: Claim = BEST) -> claims.Row:
    return claims.row_of(claim, {"mine-table1": TABLE}, found)


def test_a_claim_is_judged_by_stored_results_alone():
    assert judged().state == "not run"
    row = judged(stored("small", Ours=(0.8, 0.82), Theirs=(0.7, 0.72), Others=(0.5, 0.5)))
    assert (row.state, row.scale, row.held, row.compared) == ("shown", "small", 2, 2)
    assert row.numbers == "5 labels: Ours 81.0 ± 1.4, Theirs 71.0 ± 1.4, Others 50.0 ± 0.0"
    assert "[`fedjax-ssl reproduce mine-table1 --run --scale small`](#mine-table1-small)" in (
        claims.line(row)
    )
    # one of two methods was not run
    row = judged(stored("small", Ours=(0.8,), Theirs=(0.7,)))
    assert (row.state, row.held, row.compared) == ("partly", 1, 1)
    row = judged(stored("small", Ours=(0.8,), Theirs=(0.7,), Others=(0.9,)))
    assert (row.state, row.held, row.compared) == ("partly", 1, 2)
    row = judged(stored("small", Ours=(0.4,), Theirs=(0.7,), Others=(0.9,)))
    assert row.state == "not shown" and "too few rounds" in claims.line(row)


def test_the_papers_scale_says_more_where_both_say_as_much():
    both = [stored(one, Ours=(0.8,), Theirs=(0.7,), Others=(0.6,)) for one in ("small", "paper")]
    assert judged(*both).scale == "paper"


def test_differences_within_the_standard_error_show_nothing():
    row = judged(stored("small", Ours=(0.6, 0.8), Theirs=(0.64, 0.65), Others=(0.1, 0.1)))
    assert (row.state, row.held, row.compared) == ("partly", 1, 2)


@pytest.mark.parametrize("letter", ["d", "c"])
def test_cells_at_chance_or_diverged_show_nothing(letter):
    found = stored("small", {"Theirs": ("", letter)}, Ours=(0.8, 0.8), Theirs=(0.1, 0.1))
    assert judged(found).state == "not run"


def test_as_good_is_not_worse_by_more_than_is_said():
    places = ("Ours", "5 labels"), ("Theirs", "5 labels")
    found = stored("small", Ours=(0.68,), Theirs=(0.7,))
    for level, state in ((3, "shown"), (1, "not shown")):
        pairs = [Pair("mine-table1", *places, level)]
        claim = Claim(paper="Mine", text="as good", source="Table 1", pairs=pairs)
        assert judged(found, claim=claim).state == state


def test_a_claim_without_cells_needs_a_proof_or_says_what_it_lacks():
    with pytest.raises(ConfigError, match="names no cells"):
        Claim(paper="Mine", text="ours is secure", source="section 3")
    claim = Claim(paper="Mine", text="ours is secure", source="section 3", proof="tests/a.py")
    assert judged(claim=claim).state == "shown"


def test_every_claim_names_cells_that_there_are():
    tables = load_tables()
    found = claims.load_claims()
    assert len(found) == 27
    for claim in found:
        for pair in claim.pairs:
            cells = {cell.place for cell in tables[pair.table].make_cells("paper")}
            assert cells.issuperset(pair.places), (claim.text, pair)


def test_readme_has_the_five_strongest_claims():
    tables = load_tables()
    rows = [claims.row_of(claim, tables, results.stored()) for claim in claims.load_claims()]
    strongest = pages.strongest(rows)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert len(strongest) == 5
    for line in strongest:
        assert line in readme, f"README.md lacks\n{line}"


def test_what_is_to_be_run_next_is_listed_with_what_is_there():
    tables = {"mine-table1": TABLE}
    command = (
        "fedjax-ssl reproduce mine-table1 --run --scale paper --store --columns '5 labels' "
        "--rows Ours Theirs"
    )
    assert f"| `{command}` | not run yet |" in pages.to_run(tables, [])
    found = [stored("paper", Ours=(0.8,))]
    assert f"| `{command}` | 1 of 2 cells |" in pages.to_run(tables, found)


def test_marks_stand_in_the_table_and_are_explained():
    marks = {"Ours": ("d", ""), "Theirs": ("s", "s")}
    text = results.markdown(
        TABLE, stored("small", marks, Ours=(0.2, 0.8), Theirs=(0.7, 0.7), Others=(0.5, 0.5))
    )
    assert "| Ours | 50.0 ± 42.4 [d] (84.1 ± 0.4) |" in text
    assert "| Others | 50.0 ± 0.0 [n] |" in text
    assert "- [d] training diverged" in text and "Ours, 5 labels (1 of 2 seeds)" in text
    assert (
        "- [s] the model of the first stage" in text and "Theirs, 5 labels (2 of 2 seeds)" in text
    )
    assert "Others, 5 labels (20: it goes through its sets)" in text
    assert "0.5 minutes of runs on CPU, commit 0123456, jax 1.2" in text


def test_a_smoke_table_has_no_number_of_the_paper():
    text = results.markdown(TABLE, stored("smoke", Ours=(0.2,)))
    assert "84.1" not in text and "the paper's" not in text.partition("results of")[0]


def run_folder(tmp_path: Path, losses: list[float], **summary: object) -> Path:
    rows = [
        {"round": place + 1, "loss": loss, "local_steps": 100, "clients": 5}
        for place, loss in enumerate(losses)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "summary.json").write_text(json.dumps({"rounds": len(rows)} | summary))
    (tmp_path / "config.json").write_text(
        json.dumps({"seed": 0, "method": {"name": "xclp", "warmup_rounds": 2}})
    )
    (tmp_path / "model.json").write_text(json.dumps({"class_names": list("0123456789")}))
    return tmp_path


@pytest.mark.parametrize(
    ("losses", "summary", "value", "marks"),
    [
        ([2.3, 1.9, 1.5], {"selected_round": 3}, 0.4, ""),
        ([2.3, 7e9, 1e6], {"selected_round": 1}, 0.3, "ds"),
        ([2.3, 1.9, 2.2], {"selected_round": 3}, 0.11, "c"),
        ([200.0, 90.0, 30.0], {"selected_round": 3, "diverged": "it has"}, 0.3, "d"),
    ],
)
def test_marks_of_a_run(tmp_path, losses, summary, value, marks):
    run = read_run(run_folder(tmp_path, losses, **summary))
    cell = Cell("A", "B", "digits", {}, "test_accuracy", "selected", "", "")
    assert signs(run, cell, value) == (20.0, marks)
