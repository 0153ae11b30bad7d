"""Claims of papers, from made-up results alone; marks of numbers that are not what they seem."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from experiments.papers import claims, results
from experiments.papers import page as pages
from experiments.papers.claims import Claim
from experiments.papers.marks import signs
from experiments.papers.results import Measured, Origin, Result
from experiments.papers.table import (
    LABELLED_ONLY,
    Cell,
    Table,
    load_tables,
    without_unlabelled,
)
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.folder.stored_run import read_run

CONTROL = without_unlabelled("Ours")
TABLE = Table(
    name="mine-table1",
    title="Digits",
    source="nowhere",
    config="digits",
    rows={
        "Ours": {},
        "Theirs": {},
        "Others": {"small": {"steps": "it goes through its sets"}},
        CONTROL: {},
        LABELLED_ONLY: {},
    },
    columns={"5 labels": {}, "20 labels": {"small": {"other": "letters in place of digits"}}},
    paper={"Ours": ("84.1 ± 0.4", "89.0"), "Theirs": ("80.0", "")},
    steps=5,
    wanted={"5 labels": ("Ours", "Theirs")},
)
ORIGIN = Origin("CPU", "0123456789", 0.5, "fedjax-ssl reproduce mine-table1 --run", "jax 1.2")
PAIR = {"table": "mine-table1", "row": "Ours", "over": ["Theirs"], "columns": ["5 labels"]}
GOOD = (0.80, 0.82, 0.81)
BASELINE = (0.68, 0.69, 0.69)
LESS = (0.70, 0.72, 0.70)
BEST = Claim(
    paper="Mine",
    text="ours is best",
    source="Table 1",
    pairs=[PAIR],
    unlabelled=True,
    baseline=LABELLED_ONLY,
    lacks="too few rounds",
)
IN_BOTH = dataclasses.replace(BEST, pairs=[PAIR | {"columns": ["5 labels", "20 labels"]}])


def stored(
    scale: str,
    marks: dict[str, tuple[str, ...]] | None = None,
    column: str = "5 labels",
    seeds: tuple[int, ...] = (),
    origin: Origin = ORIGIN,
    **values: tuple[float, ...],
) -> Result:
    """Results of a column; a row's values are its seeds'. Control and baseline are there too."""
    named = {"control": CONTROL, "baseline": LABELLED_ONLY}
    cells = [
        Measured(
            named.get(row, row),
            column,
            own,
            3,
            0.1,
            origin,
            steps=20.0 if row == "Others" else 5.0,
            marks=(marks or {}).get(row, ()),
            seeds=seeds if row == "Ours" else (),
        )
        for row, own in values.items()
    ]
    return Result("mine-table1", scale, cells, origin)


def judged(*found: Result, claim: Claim = BEST) -> claims.Row:
    return claims.judge(claim, {"mine-table1": TABLE}, found)


def test_a_claim_is_shown_ahead_of_all_and_of_its_control():
    assert judged().state == "not run"
    found = stored("small", Ours=GOOD, Theirs=LESS, control=LESS, baseline=BASELINE)
    row = judged(found)
    assert (row.state, row.scale, row.held, row.columns) == ("shown", "small", 1, 1)
    # by seed 10, 10 and 11 points: 10.33 ± 4.303 x 0.577 / 3^0.5
    assert row.numbers == (
        f"5 labels: Ours 81.0, over Theirs +10.3 ± 1.4, over {CONTROL} +10.3 ± 1.4, over "
        f"{LABELLED_ONLY} +12.3 ± 1.4"
    )
    assert "| mine-table1-small |" in claims.line(row)
    assert "| [mine-table1-small](#mine-table1-small) |" in claims.line(row, ["mine-table1-small"])


@pytest.mark.parametrize(
    ("rows", "state", "said"),
    [
        ({"Theirs": LESS, "baseline": BASELINE}, "not shown", f"{CONTROL} not run"),
        ({"Theirs": LESS, "control": LESS}, "not shown", f"{LABELLED_ONLY} not run"),
        (
            {"Theirs": LESS, "control": (0.81, 0.80, 0.82), "baseline": BASELINE},
            "not shown",
            f"over {CONTROL} +0.0 ± 4.3",
        ),
        (
            {"Theirs": (0.9, 0.91, 0.9), "control": LESS, "baseline": BASELINE},
            "not shown",
            "over Theirs -9.3",
        ),
        # more than one standard error, and less than a 95 % interval
        (
            {"Theirs": (0.77, 0.82, 0.78), "control": LESS, "baseline": BASELINE},
            "not shown",
            "over Theirs +2.0 ± 4.3",
        ),
        (
            {"Theirs": LESS[:2], "control": LESS, "baseline": BASELINE},
            "too few seeds",
            "over Theirs +10.0 (2 seeds)",
        ),
        # at chance by its mark, and far below what labels alone give
        (
            {"Theirs": (0.1, 0.1, 0.1), "control": LESS, "baseline": BASELINE},
            "not shown",
            "Theirs untrained",
        ),
        (
            {"Theirs": (0.3, 0.34, 0.3), "control": LESS, "baseline": BASELINE},
            "not shown",
            "Theirs untrained",
        ),
    ],
)
def test_a_claim_is_not_shown(rows, state, said):
    marks = {"Theirs": ("", "", "c")} if rows["Theirs"][0] == 0.1 else None
    row = judged(stored("small", marks, Ours=GOOD, **rows))
    assert row.state == state and said in row.numbers, row
    assert "too few rounds" in claims.line(row)


def test_seeds_are_paired_by_number():
    rows = {"Theirs": LESS, "control": LESS, "baseline": BASELINE}
    assert judged(stored("small", Ours=GOOD, seeds=(1, 2, 3), **rows)).state == "too few seeds"
    assert judged(stored("small", Ours=GOOD, seeds=(2, 1, 0), **rows)).state == "shown"


def test_an_error_is_better_where_it_is_smaller():
    table = dataclasses.replace(TABLE, metric="test_error")
    found = stored("small", Ours=LESS, Theirs=GOOD, control=GOOD, baseline=GOOD)
    assert claims.judge(BEST, {"mine-table1": table}, [found]).state == "shown"


def test_a_column_that_is_missing_or_fails_is_counted():
    rows = {"Ours": GOOD, "Theirs": LESS, "control": LESS, "baseline": BASELINE}
    row = judged(stored("paper", **rows), claim=IN_BOTH)
    assert row.state == claims.PARTLY and "| shown in 1 of 2 columns |" in claims.line(row)
    behind = {"Ours": LESS, "Theirs": GOOD, "control": LESS, "baseline": BASELINE}
    both = stored("paper", **rows), stored("paper", column="20 labels", **behind)
    assert (judged(*both, claim=IN_BOTH).held, judged(*both, claim=IN_BOTH).columns) == (1, 2)


def test_data_that_are_not_the_papers_say_nothing_of_it():
    rows = {"Ours": GOOD, "Theirs": LESS, "control": LESS, "baseline": BASELINE}
    letters = stored("small", column="20 labels", **rows)
    elsewhere = ORIGIN._replace(command=f"{ORIGIN.command} --data digits=mnist.npz")
    row = judged(letters, stored("small", origin=elsewhere, **rows), claim=IN_BOTH)
    assert row.state == "not run"
    copied = ORIGIN._replace(command=f"{ORIGIN.command} --data digits=digits_jpeg.npz")
    assert judged(stored("small", origin=copied, **rows)).state == "shown"
    text = results.markdown(TABLE, letters)
    assert "89.0" not in text and "in brackets the paper's\n" not in text
    assert "not the paper's in more than scale: letters in place of digits" in text
    own = dataclasses.replace(IN_BOTH, setting="letters")
    assert judged(letters, claim=own).held == 1


def test_the_largest_scale_with_enough_seeds_decides():
    rows = {"Ours": GOOD, "Theirs": LESS, "control": LESS, "baseline": BASELINE}
    small = stored("small", **rows)
    assert judged(small, stored("paper", **(rows | {"Theirs": GOOD}))).state == "not shown"
    assert judged(small, stored("paper", Ours=GOOD[:1], Theirs=GOOD[:1])).state == "shown"


@pytest.mark.parametrize("row", ["Ours", "Theirs"])
def test_cells_whose_training_diverged_show_nothing(row):
    rows = {"Ours": GOOD, "Theirs": LESS}
    assert judged(stored("small", {row: ("", "d", "")}, **rows)).state == "not run"


def test_as_good_is_an_interval_above_what_is_said():
    found = stored("small", Ours=(0.68, 0.69, 0.68), Theirs=(0.70, 0.70, 0.70))
    # -1.67 ± 1.43
    for level, state in ((4, "shown"), (3, "not shown")):
        pairs = [PAIR | {"level": level}]
        claim = Claim(paper="Mine", text="as good", source="Table 1", pairs=pairs)
        assert judged(found, claim=claim).state == state


def test_a_claim_without_cells_needs_a_proof_or_says_what_it_lacks():
    with pytest.raises(ConfigError, match="names no cells"):
        Claim(paper="Mine", text="ours is secure", source="section 3")
    with pytest.raises(ConfigError, match="no labelled-only baseline"):
        dataclasses.replace(BEST, baseline="")
    claim = Claim(paper="Mine", text="ours is secure", source="section 3", proof="tests/a.py")
    assert judged(claim=claim).state == "shown"
    assert judged(claim=dataclasses.replace(claim, proof_seeds=1)).state == "too few seeds"


def test_every_claim_names_cells_and_proofs_that_there_are():
    tables = load_tables()
    root = Path(__file__).parents[2]
    for claim in claims.load_claims():
        for pairs in claim.columns.values():
            for pair in pairs:
                cells = {cell.place for cell in tables[pair.table].make_cells("paper")}
                assert cells.issuperset(pair.places), (claim.text, pair)
        for path in filter(None, claim.proof.split(", ")):
            assert (root / path).is_file(), claim.text


def test_small_scales_on_other_data_say_so():
    for table in load_tables().values():
        for cell in table.make_cells("small"):
            (paper,) = table.make_cells("paper", [cell.row], [cell.column])
            named = [(one.config, one.settings.get("data.name")) for one in (cell, paper)]
            assert cell.other or named[0] == named[1], (table.name, cell.place)


def test_the_numbers_of_readmes_results_stand_on_the_pages_of_results():
    root = Path(__file__).parents[2]
    numbers = re.findall(r"\+\d+\.\d ± \d+\.\d", (root / "README.md").read_text(encoding="utf-8"))
    text = (root / "docs" / "results.md").read_text(encoding="utf-8")
    assert len(numbers) >= 5
    assert not [number for number in numbers if number not in text]


def test_what_is_to_be_run_next_is_listed_with_what_is_there():
    command = (
        "fedjax-ssl reproduce mine-table1 --run --scale paper --store --columns '5 labels' "
        "--rows Ours Theirs"
    )
    assert pages.to_run(TABLE, []) == [f"0 of 2 cells there: {command}"]
    found = [stored("paper", Ours=(0.8,))]
    assert pages.to_run(TABLE, found) == [f"1 of 2 cells there: {command}"]


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


def test_steps_are_said_by_column():
    first = stored("small", Ours=(0.2,), Others=(0.5,))
    second = stored("small", column="20 labels", Ours=(0.2,), Theirs=(0.7,))
    both = first._replace(cells=[*first.cells, *second.cells])
    said = "local steps of a client in a round: 5 labels: Ours 5; Others 20; 20 labels: 5"
    assert said in results.notes(TABLE, both)
    assert "local steps of a client in a round: 5 in every cell" in results.notes(TABLE, second)


def test_every_reduced_setting_is_listed_with_the_papers():
    table = load_tables()["fedmatch-table1"]
    cells = [
        Measured(row, "IID LC", GOOD, 25, 0.1, ORIGIN, steps=5.0)
        for row in ("FedProx-FixMatch", "FedMatch")
    ]
    said = results.notes(table, Result(table.name, "small", cells, ORIGIN))
    shared = next(note for note in said if note.startswith("settings, in brackets the paper's: "))
    assert "`rounds=25` (200)" in shared and "l2_weight" not in shared
    own = next(note for note in said if note.startswith("settings of FedMatch: "))
    assert "`method.l2_weight=3.3` (10.0)" in own


def test_a_smoke_table_has_no_number_of_the_paper():
    text = results.markdown(TABLE, stored("smoke", Ours=(0.2,)))
    assert "84.1" not in text and "the paper's" not in text.partition("results of")[0]


def run_folder(tmp_path: Path, losses: list[float], clients: int = 5, **summary: object) -> Path:
    rows = [
        {"round": place + 1, "loss": loss, "local_steps": 100, "clients": clients}
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


def test_a_server_that_trains_alone_has_no_local_steps(tmp_path):
    run = read_run(run_folder(tmp_path, [2.3, 1.9], clients=0))
    cell = Cell("A", "B", "digits", {}, "test_accuracy", "last", "", "")
    assert signs(run, cell, 0.4).steps == 0
