"""A sweep as a whole: runs as `run` makes them, tables, going on after any end, workers,
clusters, searches.
"""

import csv
import dataclasses
import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl.cli import main
from fedjax_ssl.errors import ConfigError, ConfigNote
from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.folder.run_folder import RunFolder
from fedjax_ssl.runs import divergence
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.program import OutOfMemory, described
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.sweep import cluster, results, search, workers
from fedjax_ssl.sweep import command as sweep_command
from fedjax_ssl.sweep import sweep_plan as plans
from fedjax_ssl.sweep.axes import parse_axis, points
from tests.runs.test_resume import rows_of
from tests.saved import state_of

SMALL = ("rounds=4", "eval_every=2", "optimizer.local_epochs=1", "data.test_clients=9")


def planned(folder, *texts, seeds=(0, 1), config="digits_fedavg"):
    plan = plans.from_settings(
        config, points([parse_axis(text) for text in (*SMALL, *texts)], seeds)
    )
    (folder / "runs").mkdir(parents=True)
    plans.save(folder, plan, ["fedjax-ssl", "sweep"])
    return plan


def command(folder, *texts, workers=1, **options):
    given = [f"--set={text}" for text in (*SMALL, *texts)]
    given += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return ["sweep", "digits_fedavg", *given, f"--workers={workers}", f"--workdir={folder}"]


def table(folder):
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines()))


@pytest.mark.promise
@pytest.mark.thorough
def test_runs_are_those_of_run_a_failure_stops_nobody_and_what_is_done_is_not_done_again(tmp_path):
    plan = planned(tmp_path, seeds=(0,))
    wrong = {**plan.runs[0].config["data"], "test_clients": 100}
    broken = dataclasses.replace(
        plan.runs[0], name="broken", config={**plan.runs[0].config, "data": wrong}
    )
    runs = [broken, *plan.runs]
    told = []
    plans.save(tmp_path, plans.Plan(plan.fields, tuple(runs)), [])
    with pytest.warns(ConfigNote, match="1 class without a label in training"):
        workers.do_runs(told.append, tmp_path, [one.name for one in runs])
    ended = {one.run: one.end.status for one in told if isinstance(one, workers.Ended)}
    assert ended == {"broken": "failed", "seed=0": "done"}
    alone = configs.load("digits_fedavg", [text.split("=") for text in SMALL])
    run(alone, tmp_path / "alone")
    mine = results.folder_of(tmp_path, "seed=0")
    assert rows_of(mine) == rows_of(tmp_path / "alone")
    assert state_of(mine) == state_of(tmp_path / "alone")
    # The folder is one of `run`: the same config finds it complete.
    assert (
        run(alone, mine)["test_accuracy"]
        == json.loads((mine / "summary.json").read_text())["test_accuracy"]
    )
    rows = results.write(tmp_path, plans.Plan(plan.fields, tuple(runs)))
    assert [row["status"] for row in rows] == ["failed", "done"]
    assert (
        "test_clients" in rows[0]["message"] and table(tmp_path)[0]["message"] == rows[0]["message"]
    )
    assert float(table(tmp_path)[1]["test_accuracy"]) == rows[1]["test_accuracy"]
    assert [one.name for one in results.unfinished(tmp_path, runs)] == ["broken"]


SURFACE = (
    *("model.name=linear", "model.hidden=None"),
    *("supervision.name=fraction", "supervision.labels=None"),
)


def planned_surface():
    """Plan two runs with other labels and clients."""
    fields = ("supervision.fraction", "participation.probability")
    common = dict(text.split("=") for text in (*SMALL, *SURFACE))
    swept = [
        common | dict(zip(fields, values, strict=True)) for values in (("0.1", "0.5"), ("0.5", "1"))
    ]
    return plans.from_settings("digits_fedavg", swept)


@pytest.mark.promise
@pytest.mark.thorough
def test_labels_and_probabilities_are_numbers_of_one_program():
    plan = planned_surface()
    assert len(plan.runs) == 2 and len(plan.programs) == 1
    shared = Shared()
    given = [plans.config_of(one) for one in plan.runs]
    shared.align(given)
    few, many = (shared.program(config) for config in given)
    assert few.code == many.code
    assert described((few.template(), few.inputs)) == described((many.template(), many.inputs))
    labels = [int(one.built.federation.num_labelled.sum()) for one in (few, many)]
    assert labels[0] < labels[1]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["surface", "private"])
def test_runs_of_a_surface_have_the_bits_of_run_and_compile_once(tmp_path, monkeypatch, kind):
    if kind == "surface":
        plan = planned_surface()
        plans.save(tmp_path, plan, [])
    else:
        swept = ("privacy.noise=1.0,2.0", "privacy.clip=0.2,0.5")
        plan = planned(tmp_path, *swept, seeds=(0,), config="digits_private:noise")
    shared = []

    class Kept(Shared):
        def __init__(self, own_process=False):
            super().__init__(own_process)
            shared.append(self)

    monkeypatch.setattr(workers, "Shared", Kept)
    workers.do_runs(lambda told: None, tmp_path, [one.name for one in plan.runs])
    (one_program,) = shared
    assert [kind for kind, *_ in one_program.compiled].count("block") == 1
    for one in plan.runs:
        run(plans.config_of(one), tmp_path / one.name)
        assert rows_of(results.folder_of(tmp_path, one.name)) == rows_of(tmp_path / one.name)


@pytest.mark.promise
@pytest.mark.thorough
def test_runs_that_do_not_fit_together_are_done_half_as_many_at_a_time(tmp_path, monkeypatch):
    plan = planned(tmp_path, seeds=(0, 1, 2, 3, 4))
    tried = []

    def run_batch(points, shared):
        tried.append([point.config.seed for point in points])
        return [
            OutOfMemory("small") if len(points) > 2 else {"seed": point.config.seed}
            for point in points
        ]

    monkeypatch.setattr(workers, "run_batch", run_batch)
    points = [workers.Point(plans.config_of(run), tmp_path / run.name) for run in plan.runs]
    with pytest.warns(
        configs.ConfigNote, match="5 runs at a time do not fit on the device: 2 at a time"
    ):
        ended = [result for result, _ in workers.in_batches(points, Shared(), 5)]
    assert tried == [[0, 1, 2, 3, 4], [0, 1], [2, 3], [4]]
    assert [one["seed"] for one in ended] == [0, 1, 2, 3, 4]


@pytest.mark.promise
@pytest.mark.thorough
def test_tasks_are_programs_and_those_that_would_leave_workers_idle_are_cut_into_parts(tmp_path):
    plan = planned(tmp_path, "optimizer.batch_size=5,10", seeds=(0, 1, 2, 3))
    assert [len(task.runs) for task in workers.tasks(tmp_path, plan, 2)] == [4, 4]
    assert [len(task.runs) for task in workers.tasks(tmp_path, plan, 1, together=True)] == [8]
    halves = workers.tasks(tmp_path, plan, 2, together=True)
    assert [len({one.program for one in task.runs}) for task in halves] == [1, 1]
    parts = workers.tasks(tmp_path, plan, 4)
    assert [len({one.program for one in task.runs}) for task in parts] == [1, 1, 1, 1]
    assert [len(task.runs) for task in workers.tasks(tmp_path, plan, 3)] == [2, 2, 2, 2]
    for one in plan.runs[:5]:
        results.mark(results.folder_of(tmp_path, one.name), results.STOPPED, "")
    assert [[one.name for one in task.runs] for task in workers.tasks(tmp_path, plan, 1)] == [
        [one.name for one in plan.runs[5:]]
    ]
    three = planned(tmp_path / "three", "optimizer.batch_size=2,5,10", seeds=(0, 1, 2, 3))
    dealt = workers.tasks(tmp_path / "three", three, 2)
    assert [len(task.runs) for task in dealt] == [2, 4, 4, 2]
    assert dealt[0].runs[0].program == dealt[-1].runs[0].program
    many = planned(tmp_path / "many", "optimizer.batch_size=5,10", seeds=range(60))
    sizes = [len(task.runs) for task in workers.tasks(tmp_path / "many", many, 2)]
    assert sizes == [20] * 6


@pytest.mark.promise
@pytest.mark.thorough
def test_the_time_left_is_of_the_methods_that_wait():
    spent = {"fedavg": [10.0, 12.0], "xclp": [100.0]}
    assert workers.time_left(["xclp", "xclp", "fedavg"], spent, 1) == ", about 0:03:31 left"
    assert workers.time_left(["xclp", "xclp"], spent, 2) == ", about 0:01:40 left"
    assert workers.time_left(["semifl"], {"fedavg": [10.0]}, 4).endswith(
        "0:00:10 left, with 1 method not timed so far"
    )
    assert workers.time_left([], spent, 1) == workers.time_left(["fedavg"], {}, 1) == ""


@pytest.mark.parametrize(
    ("chosen", "more"),
    [(4, ""), (2, ", 70.0% in the round of the best validation accuracy")],
)
def test_a_run_in_a_few_words_says_an_accuracy_once(chosen, more):
    summary = {"rounds": 4, "test_accuracy": 0.8, "selected_round": chosen}
    said = results.brief({**summary, "selected_test_accuracy": 0.7})
    assert said == f"test accuracy 80.0%{more}"


@pytest.mark.promise
@pytest.mark.thorough
def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path, capsys):
    given = command(tmp_path / "a", "optimizer.batch_size=5,10", seeds=3, slurm="partition=gpu")
    assert (
        main(
            [
                *given[:-3],
                "--config.optimizer.momentum=0.5",
                f"--workdir={tmp_path / 'a'}",
                "--dry-run",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "6 runs, 2 compiled programs" in shown and "optimizer.batch_size: 5, 10" in shown
    assert main([*given, "--submit=slurm", "--print"]) == 0
    shown = capsys.readouterr().out
    assert (
        "an array of 2 jobs for slurm, 24 h each, partition=gpu" in shown
        and "program 1, 3 runs" in shown
    )
    assert not (tmp_path / "a").exists()


@pytest.mark.promise
@pytest.mark.thorough
def test_mistakes_are_told_at_once(tmp_path, capsys):
    for name, file in (("run", "config.json"), ("sweep", "sweep.json"), ("search", "search.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    search = "--search=optuna"
    for folder, given, said in (
        ("new", [search], "nothing to choose"),
        (
            "new",
            [search, "--set=optimizer.learning_rate=0.01..1"],
            r"--set data.validation_fraction=0.2",
        ),
        ("new", [search, "--print"], "leave --zip, --random, --submit and --print out"),
        ("new", ["--set=optimizer.learning_rate=0.01..1"], "how many points"),
        ("new", ["--trials=3"], "--trials does nothing without --search"),
        ("new", ["--hours=3"], "--hours does nothing without --submit"),
        ("run", [], "folder of a single run"),
        ("run/config.json", [], "run/config.json is a file"),
        ("run/config.json/below", ["--dry-run"], "run/config.json is a file"),
        ("run", ["--submit=slurm", "--slurm=gpu"], "folder of a single run"),
        ("run", [search], "folder of a single run"),
        ("sweep", [search], "folder of a sweep, whose results would be lost"),
        ("search", [], "folder of a search, whose results would be lost"),
    ):
        assert main(["sweep", "digits_fedavg", *given, f"--workdir={tmp_path / folder}"]) == 2
        output = capsys.readouterr()
        assert said in output.err and output.out == ""  # no plan of what cannot be
    for folder in ("sweep", "search"):
        with pytest.raises(
            RunFolderError, match=f"is the folder of a {folder}; give another --workdir"
        ):
            RunFolder(tmp_path / folder, {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--rounds", "3"], "given as --rounds=VALUE, or --set rounds=VALUES for several"),
        (
            ["--set", "rounds=3", "eval_every=1"],
            "unexpected argument 'eval_every=1'. Fields of the config are",
        ),
        (
            ["--model.hidden=8,4"],
            "--set model.hidden=8,4 tries each of them; a tuple stands in brackets: "
            "--model.hidden=",
        ),
    ],
)
@pytest.mark.promise
@pytest.mark.thorough
def test_a_word_that_the_command_does_not_know_is_told_with_the_nearest(capsys, given, said):
    try:
        code = main(["sweep", "digits_fedavg", *given, "--dry-run"])
    except SystemExit as end:
        code = end.code
    assert code == 2 and said in capsys.readouterr().err


@pytest.mark.thorough
def test_the_command_grows_a_sweep_and_writes_its_table(tmp_path, capsys):
    folder = tmp_path / "a"
    assert main(command(folder, "optimizer.learning_rate=0.1,0.3", seeds=2, workers=2)) == 0
    first = table(folder)
    assert [row["status"] for row in first] == ["done"] * 4 and "[4/4]" in capsys.readouterr().out
    assert main(command(folder, "optimizer.learning_rate=0.1,0.3", seeds=3)) == 0
    assert len(table(folder)) == 6 and "[2/2]" in capsys.readouterr().out
    assert not list(folder.glob("runs/*/*.png"))
    assert table(folder)[0] == first[0]
    assert main(command(folder, "optimizer.learning_rate=0.1", seeds=3)) == 2
    assert "3 runs that this command leaves out" in capsys.readouterr().err


@pytest.mark.promise
@pytest.mark.thorough
def test_zeros_in_the_names_of_clients_are_kept(tmp_path):
    plan = planned(tmp_path, "data.left_out_client=01,02,10", seeds=None)
    results.write(tmp_path, plan)
    assert [row["data.left_out_client"] for row in table(tmp_path)] == ["01", "02", "10"]
    assert [run.config["data"]["left_out_client"] for run in plan.runs] == ["01", "02", 10]


@pytest.mark.thorough
def test_diverged_runs_are_called_so_in_the_end_in_the_table_and_by_the_exit_code(tmp_path, capsys):
    given = command(tmp_path / "a", "optimizer.learning_rate=0.1,1e30", seeds=1)
    for _ in range(2):  # they are not done again
        assert main(given) == divergence.EXIT_CODE
        said = capsys.readouterr()
        assert "1 run diverged: lr=1e+30,seed=0. The table says what to lower." in said.err
    assert [row["status"] for row in table(tmp_path / "a")] == ["done", "diverged"]
    assert "training has diverged: from round" in table(tmp_path / "a")[1]["message"]


@pytest.mark.thorough
def test_killed_at_random_moments_it_ends_in_the_same_table(tmp_path):
    def given(folder):
        return [
            sys.executable,
            "-m",
            "fedjax_ssl.cli",
            *command(folder, "optimizer.learning_rate=0.1,0.3", seeds=3),
        ]

    subprocess.run(given(tmp_path / "whole"), check=True, stdout=subprocess.DEVNULL)
    draws = random.Random(0)
    for _ in range(5):
        process = subprocess.Popen(
            given(tmp_path / "killed"), stdout=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(draws.uniform(1, 12))
        process.send_signal(signal.SIGKILL)
        process.wait()
    time.sleep(1)  # the worker of the last one sees that it is alone
    subprocess.run(given(tmp_path / "killed"), check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "killed" / "results.csv").read_text() == (
        tmp_path / "whole" / "results.csv"
    ).read_text()
    for folder in (tmp_path / "whole" / "runs").iterdir():
        assert rows_of(tmp_path / "killed" / "runs" / folder.name) == rows_of(folder)
        assert state_of(tmp_path / "killed" / "runs" / folder.name) == state_of(folder)


@pytest.mark.thorough
def test_a_worker_that_dies_fails_its_run_and_the_others_go_on(tmp_path, monkeypatch):
    plan = planned(tmp_path, seeds=(0, 1, 2))
    (tmp_path / "deadly.py").write_text(
        "import os, sys\n"
        "from fedjax_ssl.sweep import workers\n"
        "whole = workers.run_batch\n"
        "def deadly(points, shared):\n"
        "    if points[0].config.seed == 1: os.kill(os.getpid(), 9)\n"
        "    return whole(points, shared)\n"
        "def do_runs(*given):\n"
        "    workers.run_batch = deadly\n"
        "    workers.do_runs(*given)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(workers, "do_runs", importlib.import_module("deadly").do_runs)
    workers.execute(tmp_path, plan, 1)
    assert [(row["status"], row["message"]) for row in table(tmp_path)] == [
        ("done", ""),
        ("failed", "its process ended by SIGKILL; was the memory enough?"),
        ("done", ""),
    ]


@pytest.mark.filterwarnings("ignore::fedjax_ssl.errors.ConfigNote")
@pytest.mark.thorough
@pytest.mark.parametrize(
    "config", [pytest.param("digits_xclp", marks=pytest.mark.promise), "digits_semifl"]
)
def test_vectorized_runs_are_single_runs_but_for_rounding(tmp_path, config):
    extra = ("method.warmup_rounds=2",) if config == "digits_xclp" else ()
    plan = planned(tmp_path, *extra, "optimizer.learning_rate=0.05,0.1", config=config)
    workers.do_runs(lambda told: None, tmp_path, [one.name for one in plan.runs], at_once=4)
    for one in plan.runs:
        run(plans.config_of(one), tmp_path / "alone" / one.name)
        mine = rows_of(results.folder_of(tmp_path, one.name))
        alone = rows_of(tmp_path / "alone" / one.name)
        for row, other in zip(mine, alone, strict=True):
            assert row["bytes_up"] == other["bytes_up"]
            np.testing.assert_allclose(row["test_loss"], other["test_loss"], rtol=2e-3)


@pytest.mark.thorough
def test_jobs_of_a_cluster_do_their_programs_and_can_be_started_again(tmp_path):
    pytest.importorskip("submitit")
    plan = planned(tmp_path, "optimizer.batch_size=5,10", seeds=(0,))
    jobs = cluster.hand_in(workers.tasks(tmp_path, plan, 1), tmp_path, "local", {}, 1.0)
    assert [job.result() for job in jobs] == [{"done": 1}, {"done": 1}]
    assert [row["status"] for row in table(tmp_path)] == ["done", "done"]
    again = cluster.Job(tmp_path, tuple(one.name for one in plan.runs))
    assert again.checkpoint().function() == {"done": 2}


@pytest.mark.thorough
def test_slurm_gets_one_array(tmp_path, monkeypatch, capsys):
    pytest.importorskip("submitit")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, script in (
        ("srun", "exit 0"),
        ("sbatch", f'cp "$1" {tmp_path}/batch.sh; echo Submitted batch job 42'),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    given = command(tmp_path / "a", "optimizer.batch_size=5,10", slurm="partition=gpu", hours=2)
    assert main([*given, "--slurm=gpus_per_node=1", "--submit=slurm"]) == 0
    assert "handed in 2 jobs: 42_0, 42_1" in capsys.readouterr().out
    script = (tmp_path / "batch.sh").read_text()
    for line in (
        "--array=0-1",
        "--partition=gpu",
        "--gpus-per-node=1",
        "--time=120",
        "--job-name=sweep_a",
    ):
        assert line in script
    assert len(plans.load(tmp_path / "a").runs) == 2


SEARCH = ("data.validation_fraction=0.2", "optimizer.learning_rate=0.001..1")


def study_in(folder, *more):
    given = [*command(folder, *SEARCH)[1:], "--search=optuna", *more]
    wanted = search.search_of(sweep_command.parser().parse_args(given), folder)
    (folder / search.FILE).write_text(json.dumps({"command": [], **dataclasses.asdict(wanted)}))
    return wanted


@pytest.mark.thorough
def test_two_workers_share_a_study_that_is_killed_and_goes_on(tmp_path):
    optuna = pytest.importorskip("optuna")
    folder = tmp_path / "a"
    given = [*command(folder, *SEARCH, workers=2), "--search=optuna"]
    started = [sys.executable, "-m", "fedjax_ssl.cli", *given, "--trials=8"]
    process = subprocess.Popen(started, stdout=subprocess.PIPE, text=True, start_new_session=True)
    for line in itertools.islice(iter(process.stdout.readline, ""), 40):
        if line.startswith("trial="):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(2)
    assert main([*given, "--trials=10"]) == 0
    found = search.current(search.open_study(search.load(folder), folder))
    assert len(found) == 10
    states = {trial.state for trial in found}
    assert states <= {optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED}
    rows = table(folder)
    assert len(rows) == 10 and {row["status"] for row in rows} <= {"done", "stopped"}
    done = [row for row in rows if row["status"] == "done"]
    assert all(float(row["score"]) == float(row["selected_validation_accuracy"]) for row in done)


@pytest.mark.thorough
def test_a_search_goes_on_without_a_trial_whose_process_is_killed(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    (tmp_path / "deadly.py").write_text(
        "import os, pathlib\n"
        "def score(labels, probabilities):\n"
        "    calls = pathlib.Path(os.environ['CALLS'])\n"
        "    calls.write_text((calls.read_text() if calls.exists() else '') + 'x')\n"
        "    if len(calls.read_text()) == 3:\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return 1.0\n"
    )
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    given = [*command(tmp_path / "a", *SEARCH, "metrics=deadly:score"), "--search=optuna"][1:]
    assert main([*given, "--trials=3"]) == 1
    said = capsys.readouterr()
    assert "its process ended by SIGKILL; was the memory enough?" in said.out
    assert "1 trial cut off as its process was killed" in said.err
    assert main([*given, "--trials=4"]) == 0
    assert [row["status"] for row in table(tmp_path / "a")] == ["done"] * 4


@pytest.mark.thorough
def test_a_bad_trial_is_pruned_and_trials_together_share_a_program(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna")
    study = study_in(tmp_path, "--trials=6", "--pruner=median", "--sampler=random")

    class Slow(optuna.pruners.BasePruner):
        def prune(self, study, trial):
            return trial.params["optimizer.learning_rate"] < 0.05

    monkeypatch.setattr(optuna.pruners, "MedianPruner", Slow)
    search.run_trials(print, tmp_path, 0, at_once=3)
    opened = search.open_study(study, tmp_path)
    states = [trial.state.name for trial in opened.trials]
    assert len(states) == 6 and {"PRUNED", "COMPLETE"} == set(states)
    search.write_table(opened, study, tmp_path)
    pruned = next(row for row in table(tmp_path) if row["state"] == "pruned")
    assert pruned["message"] == "stopped by the pruner" and pruned["status"] == "stopped"
    assert 0 < len(rows_of(results.folder_of(tmp_path, pruned["run"]))) < 4


@pytest.mark.promise
@pytest.mark.thorough
def test_commas_of_a_field_that_holds_several_values_are_its_own():
    words = ["--data.missing_marks=?,NA", "--metrics=f1,ece", "--data.ignore='a,b'"]
    assert list(sweep_command._with_fields(words)) == [
        *("--set", "data.missing_marks='?,NA'"),
        *("--set", "metrics='f1,ece'"),
        *("--set", "data.ignore='a,b'"),
    ]
    with pytest.raises(ConfigError, match="has several values"):
        list(sweep_command._with_fields(["--method.name=fedavg,xclp"]))


@pytest.mark.promise
@pytest.mark.thorough
def test_runs_that_predict_one_class_are_named_with_what_helps():
    config = {"partition": {"name": "natural"}, "data": {"standardize": "auto"}}
    runs = [plans.PlannedRun(f"seed={seed}", "", {}, config) for seed in range(2)]
    stuck = {"scores": {"classes": ["a", "b"], "support": [3, 4], "precision": [0.4, None]}}
    fine = {"scores": {**stuck["scores"], "precision": [0.4, 0.9]}}
    (said,) = sweep_command._learned_nothing(zip(runs, (fine, stuck), strict=True))
    assert "learned nothing, in seed=1" in said and "--data.standardize=client" in said
    assert not list(sweep_command._learned_nothing([(runs[0], fine), (runs[1], None)]))
