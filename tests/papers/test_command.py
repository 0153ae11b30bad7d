"""`fedjax-ssl reproduce` on a paper of our own, and what its mistakes are told."""

import json
import os
from pathlib import Path

import pandas
import pytest

from experiments.papers import Table, results
from experiments.papers import page as pages
from experiments.papers.scales import runs_of
from experiments.papers.table import Cell, load_tables
from fedjax_ssl import cli
from fedjax_ssl.cli import clone
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.stored_run import read_run
from fedjax_ssl.sweep import sweep_plan as plans

PAPER = """
name = "Mine"

[usual]
title = "Digits"
source = "nowhere"
settings = { "model.hidden" = [8] }
columns = { accuracy = {}, steps = { metric = "local_steps" } }
small = { rounds = 1, "optimizer.local_epochs" = 1 }

[[tables]]
name = "mine-table1"
config = "digits"
rows = { FedAvg = { "method.name" = "fedavg" }, Nobody = { missing = "why not" } }
paper = { FedAvg = ["80.0 ± 1.0", ""] }

[[tables]]
name = "mine-figure2"
config = "mnist"
"""
CODE = 'TABLES = {"mine-figure2": {"rows": {"FedAvg": {"method.name": "fedavg"}}}}'


@pytest.fixture
def paper(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDJAX_SSL_DATA", str(tmp_path / "nothing"))
    Path("mine.toml").write_text(PAPER)
    Path("mine.py").write_text(CODE)
    return ["--papers", "mine.toml"]


def call(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["reproduce", *arguments])
    except SystemExit as end:  # of argparse
        code = end.code
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_description_says_how_many_cells_run(paper, capsys):
    _, out, _ = call(capsys, "mine-table1", "--columns", "accuracy", *paper)
    assert "scale small: 2 runs in 1 of 4 cells" in out
    assert (
        "start it with: fedjax-ssl reproduce mine-table1 --columns accuracy --papers mine.toml "
        "--run\n" in out
    )


def test_a_row_counts_once_and_a_seed_can_be_set(paper, capsys):
    _, out, _ = call(capsys, "mine-table1", "--rows", "FedAvg", "FedAvg", "--set", "seed=7", *paper)
    assert "scale small: 2 runs in 2 of 4 cells" in out


@pytest.mark.thorough
@pytest.mark.promise
def test_a_table_runs_goes_on_and_keeps_its_folder_to_itself(paper, capsys):
    words = ["mine-table1", "--run", "--seeds", "1", "--workdir", "here", "--workers", "1", *paper]
    code, out, _ = call(capsys, *words)
    assert code == 0 and "(80.0 ± 1.0)" in out
    runs = {
        path: (path / "summary.json").stat().st_mtime_ns for path in Path("here/runs").iterdir()
    }
    assert len(runs) == 1  # both columns are numbers of one run
    table = pandas.read_csv("here/table.csv").set_index("column")
    summary = json.loads((next(iter(runs)) / "summary.json").read_text())
    assert table.ours["accuracy"] == pytest.approx(100 * summary["test_accuracy"])
    assert table.difference["accuracy"] == pytest.approx(table.ours["accuracy"] - 80)
    assert table.paper_spread["accuracy"] == 1 and table.seeds.tolist() == [1, 1]

    code, out, _ = call(capsys, *words)
    assert code == 0 and "1 run, 1 of them done" in out
    assert all((path / "summary.json").stat().st_mtime_ns == time for path, time in runs.items())

    for other in (["mine-figure2"], ["mine-table1", "--scale", "smoke"]):
        code, _, error = call(capsys, *other, "--run", "--workdir", "here", *paper)
        assert (
            code == 2 and "here holds mine-table1 at scale small; give another --workdir" in error
        )
    code, _, error = call(
        capsys, "mine-table1", "--run", "--set", "rounds=2", "--workdir", "here", *paper
    )
    assert code == 2 and "other settings" in error and "rounds" in error


def test_numbers_of_a_run_whose_metrics_are_gone_are_no_others(tmp_path):
    cell = Cell("A", "B", "digits", {}, "test_accuracy", "selected", "", "")
    (tmp_path / "summary.json").write_text(
        '{"rounds": 2, "selected_round": 1, "test_accuracy": 0.5}'
    )
    rows = '{"round": 1, "test_accuracy": 0.7}\n{"round": 2, "test_accuracy": 0.5}\n'
    (tmp_path / "metrics.jsonl").write_text(rows)
    assert results.measure(read_run(tmp_path), cell) == 0.7
    (tmp_path / "metrics.jsonl").unlink()
    assert results.measure(read_run(tmp_path), cell) is None


def test_a_description_says_cells_and_data(paper, capsys):
    code, out, _ = call(capsys, "mine-table1", "--scale", "paper", *paper)
    assert code == 0 and "1 row" not in out
    assert "missing: Nobody, accuracy: why not" in out and "data: digits" in out
    code, out, _ = call(capsys, "mine-figure2", "--scale", "smoke", *paper)
    assert code == 0 and "stand_in:stand_in" in out
    code, out, _ = call(capsys, "--list", *paper)
    assert (
        code == 0 and "mine-table1" in out and "2 tables" in out and "Digits; no results yet" in out
    )
    code, out, _ = call(capsys, "--page", *paper)
    # stored results of other papers
    assert code == 0 and "fedul" not in out.partition(pages.HEAD)[2]


def test_stored_cells_stay_with_what_they_come_from(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    small = {"name": "50 digits"}
    table = Table(
        name="mine-table1",
        title="Digits",
        source="nowhere",
        config="digits",
        rows={"A": {}, "B": {}},
        columns={"2,000 labels": {"small": small}},
        paper={"B": ("81.0",)},
    )

    def result(row: str, command: str, *values: float) -> results.Result:
        origin = results.Origin("CPU", "0123456789", 0.5, command)
        cell = results.Measured(row, "2,000 labels", values, 1, 0.5, origin)
        return results.Result(table.name, "small", [cell], origin)

    results.store(table, result("B", "first --data mnist=a/mnist.npz", 0.5, 0.7))
    results.store(table, result("A", "second '--data=cifar10=my files/cifar10_jpeg.npz'", 0.4, 0.2))
    (found,) = results.stored("mine-table1")
    assert [(cell.row, cell.values) for cell in found.cells] == [
        ("A", [0.4, 0.2]),
        ("B", [0.5, 0.7]),
    ]
    text = results.markdown(table, found)
    assert "| A | 30.0 ± 14.1 |\n| B | 60.0 ± 14.1 (81.0) |" in text and "|  | 50 digits |" in text
    assert (
        "- data: cifar10_jpeg.npz in place of cifar10\n" in text and "in place of mnist" not in text
    )
    assert (
        "- `first --data mnist=a/mnist.npz` (B, 50 digits): 0.5 minutes of runs on CPU, commit "
        "0123456" in text
    )

    with pytest.raises(ConfigError, match=r"has more seeds: B, 2,000 labels \(2, here 1\)"):
        results.store(table, result("B", "third", 0.9))
    results.store(table, result("A", "no number"))
    results.store(table, result("B", "fourth", 0.9, 0.9, 0.9))
    (found,) = results.stored("mine-table1")
    assert [len(cell.values) for cell in found.cells] == [
        2,
        3,
    ] and "first" not in results.markdown(table, found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine-table"], "there is no table 'mine-table'. Did you mean 'mine-table1'?"),
        ([], "name a table"),
        (["mine-table1", "--rows", "FedAvgg"], "has no row 'FedAvgg'. Did you mean 'FedAvg'?"),
        (
            ["mine-table1", "--data", "mnits=a.npz"],
            "unknown dataset 'mnits'. Did you mean 'mnist'?",
        ),
        (
            ["mine-table1", "--data", "mnist=a.npz"],
            "--data mnist: these cells have other data: digits",
        ),
        (
            ["mine-figure2", "--data", "mnist=a.npz", "--scale", "smoke"],
            "--data does nothing at the scale smoke",
        ),
        (["mine-table1", "--data", "mnist"], "not of the form NAME=PATH"),
        (
            ["mine-table1", "--data", "digits=a.npz", "--data", "digits=b.npz"],
            "--data names digits twice",
        ),
        (
            ["mine-table1", "--set", "seed=3", "--seeds", "2"],
            "--seeds and --set seed=... are both given",
        ),
        (
            ["fedmatch-table2", "--rows", "Local-SL", "--columns", "LS"],
            "the paper has no cell Local-SL, LS",
        ),
        (["mine-table1", "--set", "roundz=3"], "Did you mean 'rounds'?"),
        (["mine-table1", "--scale", "big"], "unknown scale 'big'"),
        (["mine-table1", "--store"], "--store does nothing without --run"),
        (["mine-table1", "--run", "--workers", "0"], "--workers is 0; it must be at least 1"),
        (
            ["mine-table1", "--run", "--scale", "smoke", "--store"],
            "--store keeps no numbers of stand-in data",
        ),
        (
            ["mine-figure2", "--run", "--data", "mnist=gone.npz"],
            "error: gone.npz is not there\nWith --data",
        ),
        (
            ["mine-figure2", "--run", "--set", "data.download=False"],
            "put train-images-idx3-ubyte.gz (9,912,422 bytes",
        ),
    ],
)
def test_a_mistake_gets_one_message(paper, capsys, arguments, message):
    code, _, error = call(capsys, *arguments, *([] if "fedmatch-table2" in arguments else paper))
    assert code == 2 and message in error, error
    assert not Path("runs").exists()


@pytest.mark.filterwarnings("ignore::fedjax_ssl.errors.ConfigNote")
@pytest.mark.thorough
@pytest.mark.parametrize("every", [pytest.param(False, marks=pytest.mark.promise), True])
def test_every_cell_has_a_config(every):
    for table in load_tables().values():
        for scale in table.scales:
            cells = table.make_cells(scale)
            assert cells and not any(cell.missing for cell in cells)
            # one of every column of the paper's, of every row of the small ones and of every table
            if not every:
                by = {"paper": "column", "small": "row", "medium": "row"}.get(scale)
                kinds = [by and getattr(cell, by) for cell in cells]
                cells = [*dict(zip(kinds, cells, strict=True)).values()]
            assert len(runs_of(table, scale, cells, seeds=[0])) == len(cells)


def test_cells_that_predict_otherwise_are_runs_of_their_own():
    table = load_tables()["xclp-table2"]
    runs = runs_of(table, "smoke", table.make_cells("smoke", rows=["Client 1"]))
    planned = plans.named((run.name, run.config) for run in runs).runs
    assert [run.config["prediction"]["predictors"] for run in planned] == ["network", "xclp"]
    assert len({run.program for run in planned}) == 1


def test_what_is_asked_for_is_not_made_tiny():
    table = load_tables()["fedul-table1"]
    cells = table.make_cells("smoke")[:1]
    (run,) = runs_of(table, "smoke", cells, settings={"precision": "bf16", "rounds": 3})
    assert (run.config.precision, run.config.rounds, run.config.eval_every) == ("bf16", 3, 1)


def test_a_precision_is_given_once(capsys):
    code, _, error = call(capsys, "fedul-table1", "--precision=bf16", "--set=precision=bf16")
    assert code == 2 and "--precision and --set precision=... are both given" in error


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*load_tables()])
def test_every_table_runs_on_stand_in_data(name, tmp_path, capsys):
    workers = str(os.cpu_count() or 1)
    code, out, error = call(
        capsys,
        name,
        "--run",
        "--scale",
        "smoke",
        "--workdir",
        str(tmp_path / "here"),
        "--workers",
        workers,
    )
    assert code == 0, out + error


@pytest.mark.parametrize("command", ["reproduce", "bench"])
def test_without_a_clone_a_sentence_says_what_to_do(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clone, "_CLONE", tmp_path)
    assert cli.main([command, "fedul-table1"]) == 2
    said = capsys.readouterr().err
    assert "is in a clone of the project and not in the installed package" in said
    assert said.count("\n") == 1
