"""Run folders in any state are read as far as they can be."""

import json
import math
import os

import pytest

from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.folder.stored_run import find_runs, read_run

CONFIG = {"seed": 3, "rounds": 60, "method": {"name": "fedavg"}}
ROW = '{"round": %d, "loss": "NaN", "test_accuracy": 0.5}\n'


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_finished_run(tmp_path):
    by_client = "client,new_examples,net_accuracy,net_balanced_accuracy\nA,5,0.25,0.3\nB,4,,\n"
    folder = write(
        tmp_path,
        config__json=json.dumps(CONFIG),
        metrics__jsonl=ROW % 5 + ROW % 10,
        summary__json='{"test_accuracy": 0.5, "test_loss": "Infinity"}',
        predictions_by_client__csv=by_client,
        client_accuracy__csv='round,"A, left",B\n5,0.1,0.2\n10,0.5,0.75\n15,0.9',
    )
    run = read_run(folder)
    assert (run.config, run.state, run.problems) == (CONFIG, "finished", ())
    assert [row["round"] for row in run.rows] == [5, 10] and math.isnan(run.rows[0]["loss"])
    assert run.summary == {"test_accuracy": 0.5, "test_loss": math.inf}
    assert run.clients == {"model": {"A, left": 0.5, "B": 0.75}, "net": {"A": 0.25}}


def test_an_unfinished_run_is_no_problem(tmp_path):
    run = read_run(write(tmp_path, config__json=json.dumps(CONFIG)))
    assert (run.state, run.problems) == ("not started", ())
    run = read_run(write(tmp_path, metrics__jsonl=ROW % 5 + '{"round": 10, "lo'))
    assert (run.state, run.problems, len(run.rows)) == ("unfinished, round 5 of 60", (), 1)


def test_what_a_sweep_noted_of_a_run_that_failed(tmp_path):
    write(
        tmp_path,
        config__json=json.dumps(CONFIG),
        ended__json='{"status": "failed", "message": "no memory"}',
    )
    assert read_run(tmp_path).state == "failed: no memory"
    write(tmp_path, summary__json="{}")
    assert read_run(tmp_path).state == "finished"


def test_damage_is_named_and_passed_over(tmp_path):
    run = read_run(
        write(
            tmp_path,
            config__json=json.dumps(CONFIG),
            metrics__jsonl=ROW % 5 + "\x00\x00\n" + ROW % 5 + "[1]\n" + ROW % 10,
            summary__json='{"test_acc',
            predictions_by_client__csv="client,net_accuracy\nA,much\n",
            client_accuracy__csv="round,A\n5,0.1,0.2\n",
        )
    )
    assert [row["round"] for row in run.rows] == [5, 10]
    assert run.summary is None and run.clients == {}
    said = "\n".join(run.problems)
    for part in (
        "line 2 is damaged",
        "line 3 repeats round 5",
        "line 4 is damaged",
        "summary.json is damaged",
        "much",
    ):
        assert part in said


@pytest.mark.parametrize(
    "text", ['{"architectures": ["Bert"]}', "[]", "{", '{"seed": 1, "method": "x"}', "[" * 10**5]
)
def test_a_folder_of_another_program(tmp_path, text):
    run = read_run(write(tmp_path, config__json=text))
    assert (run.config, run.state) == ({}, "no run") and "config.json" in run.problems[0]


def test_an_empty_folder_and_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    said = " ".join(read_run(tmp_path).problems)
    assert "config.json is missing" in said and "metrics.jsonl cannot be read" in said


def test_run_folders_are_found_once_at_any_depth(tmp_path):
    names = ["sweep/runs/a_10", "sweep/runs/a_2", "one"]
    folders = [write(tmp_path / name, config__json=json.dumps(CONFIG)) for name in names]
    write(tmp_path / "one" / "checkpoints" / "inner", config__json="{}")  # within a run
    write(tmp_path / ".hidden", config__json="{}")
    os.symlink(tmp_path, tmp_path / "sweep" / "loop")
    by_order = [folders[2], folders[1], folders[0]]
    assert find_runs([tmp_path]) == find_runs(str(tmp_path)) == by_order
    assert find_runs([folders[0], tmp_path, folders[2]]) == [folders[0], folders[2], folders[1]]
    with pytest.raises(RunFolderError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(RunFolderError, match=r"config\.json is a file; give the run folder.*one$"):
        find_runs([folders[2] / "config.json"])
