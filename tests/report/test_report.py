"""The report: its numbers by hand, its exports, and what it says of folders that are not as they
should be.
"""

import contextlib
import csv
import io
import itertools
import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from fedjax_ssl import cli
from fedjax_ssl.report import ReportError, read, read_runs
from fedjax_ssl.report.curves import curves_of, maps_of, profile
from fedjax_ssl.report.exports import TABLES, lines
from fedjax_ssl.report.numbers import around_text, compare
from fedjax_ssl.report.page import render
from fedjax_ssl.report.runs import choose_baseline
from fedjax_ssl.report.verdict import verdict
from tests.report.folders import add_scores, write_run, write_sweep

BEFORE = [0.80, 0.83, 0.79, 0.82]
AFTER = [0.85, 0.84, 0.86, 0.88]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two methods, two learning rates, three seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, ("fedavg", "xclp"), (0.03, 0.3), 3, clients=11)
    return folder


def page_of(folder, *options):
    assert cli.main(["report", str(folder), "--output", str(folder / "report.html"), *options]) == 0
    return (folder / "report.html").read_text()


def payload_of(page):
    return json.loads(re.search(r'id="payload">(.*?)</script>', page, re.DOTALL)[1])


def lines_of(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


@pytest.fixture
def two(tmp_path):
    for seed, (before, after) in enumerate(zip(BEFORE, AFTER, strict=True)):
        write_run(tmp_path / f"a{seed}", seed=seed, accuracy=before, picture=False)
        write_run(tmp_path / f"b{seed}", seed=seed, accuracy=after, method="xclp", picture=False)
    return tmp_path


def test_mean_spread_and_paired_interval_by_hand(two):
    report = read([two])
    first, second = report.cells(report.metric)
    assert first[:4] == (
        4,
        pytest.approx(np.mean(BEFORE)),
        pytest.approx(np.std(BEFORE, ddof=1)),
        0,
    )
    assert first.difference is None
    # Differences 0.05, 0.01, 0.07, 0.06; their deviation is 0.0262996, and t(0.975, 3) is
    # 3.1824463.
    half = 3.1824463 * 0.0262996 / 2
    assert second[3:] == pytest.approx((4, 0.0475, 0.0475 - half, 0.0475 + half), abs=1e-7)
    page = page_of(two)
    rows = report.frame[report.frame["counts"]]
    assert list(rows[rows["group"] == 1]["test_accuracy"]) == AFTER
    assert read_runs([two])["test_accuracy"].equals(report.frame["test_accuracy"])
    assert ">81.0 ± 1.8</td>" in page  # the table as text, not only as data
    assert "85.8 ± 1.7" in page and "+4.7 [+0.6, +8.9]" in page


def test_only_common_seeds_are_paired(two):
    shutil.rmtree(two / "a3")
    assert " (3 pairs)" in page_of(two)
    for values, baseline, expected in (
        ({0: 1.0, 5: 3.0}, {0: 0.5, 1: 9.0}, (1, 0.5, None, None)),
        ({0: 1.0}, {1: 1.0}, (0, None, None, None)),
        ({0: np.inf}, {0: 1.0}, (0, None, None, None)),
        ({0: 1.0, 1: 2.0}, {0: 0.0, 1: 1.0}, (2, 1.0, 1.0, 1.0)),
    ):
        assert compare(pd.Series(values), pd.Series(baseline))[3:] == expected


def test_groups_are_named_by_what_differs(sweep, tmp_path):
    names = [group.name for group in read([sweep]).groups]
    assert names == [f"{m}, learning_rate={r}" for m in ("fedavg", "xclp") for r in ("0.03", "0.3")]
    for rounds in (40, 80):  # where a run finds its data makes no other group
        write_run(tmp_path / f"run_{rounds}", rounds=rounds, settings={"data.root": f"/{rounds}"})
        shutil.copytree(tmp_path / f"run_{rounds}", tmp_path / f"same_{rounds}")
    report = read([tmp_path])
    assert [group.name for group in report.groups] == ["rounds=40", "rounds=80"]
    assert [len(group.runs) for group in report.groups] == [1, 1]
    assert "seed 0 of rounds=40 is there already" in " ".join(report.problems)


def test_baseline_by_name_words_or_folder(sweep):
    groups = read([sweep]).groups
    assert choose_baseline(groups, "xclp, learning_rate=0.3") is groups[3]
    assert (
        choose_baseline(groups, "xclp learning_rate=0.03")
        is choose_baseline(groups, "xclp 0.03")
        is groups[2]
    )
    assert choose_baseline(groups, str(sweep / "runs" / "xclp_lr0.3_seed1")) is groups[3]
    with pytest.raises(ReportError, match="fits 2 groups"):
        choose_baseline(groups, "xclp")
    with pytest.raises(ReportError, match="unknown group"):
        choose_baseline(groups, "xclq")


def test_no_difference_to_what_was_tested_on_other_data(tmp_path):
    for name, data in (("a", "digits"), ("b", "digits"), ("c", "glyphs")):
        for seed in range(2):
            settings = {"data.name": data, "optimizer.learning_rate": 0.2 if name == "b" else 0.1}
            write_run(tmp_path / f"{name}{seed}", seed=seed, settings=settings, picture=False)
    report = read([tmp_path])
    cells = report.cells(report.metric)
    assert [cell.difference is None for cell in cells] == [True, False, True]
    said = verdict(report)
    assert "best of 2 groups" in said and said.endswith(
        "1 other group with other test examples or labels: not compared here."
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "test_fingerprint",
            "bb",
            "no difference to path=/a0.1, tested on other examples: path=/a0.2",
        ),
        (
            "labels_seen",
            60,
            "no difference to path=/a0.1, with another number of labels: path=/a0.2",
        ),
    ],
)
def test_no_difference_where_test_examples_or_labels_differ(tmp_path, field, value, said):
    for rate in (0.1, 0.2, 0.3):
        for seed in range(2):
            folder = tmp_path / f"{rate}{seed}"
            # what was tested on counts
            settings = {"optimizer.learning_rate": rate, "data.path": f"/a{rate}"}
            write_run(folder, seed=seed, settings=settings, picture=False)
            summary = json.loads((folder / "summary.json").read_text())
            summary |= {"test_fingerprint": "aa", "labels_seen": 50}
            if rate == 0.2 and seed:
                summary[field] = value
            (folder / "summary.json").write_text(json.dumps(summary))
    report = read([tmp_path])
    assert [cell.difference is None for cell in report.cells(report.metric)] == [True, True, False]
    assert said in report.problems
    labels = ["50", "50 to 60" if field == "labels_seen" else "50", "50"]
    assert [*lines(report)["labels"]] == labels
    assert f'data-title="labels">{labels[1]}</td>' in render(report, "report")


def test_curves_are_means_over_the_seeds(sweep):
    payload = payload_of(page_of(sweep))
    rows = [
        [json.loads(line) for line in lines_of(sweep / f"runs/xclp_lr0.3_seed{seed}")]
        for seed in range(3)
    ]
    values = np.array([[row["test_accuracy"] for row in run] for run in rows])
    curve = payload["curves"][3]
    mean, deviation = curve["y"]["test_accuracy"]
    np.testing.assert_allclose(mean, values.mean(0), rtol=1e-4)
    np.testing.assert_allclose(deviation, values.std(0, ddof=1), rtol=1e-4)
    assert curve["x"]["round"] == list(range(5, 61, 5))
    np.testing.assert_allclose(curve["x"]["bytes"], 4228400 * np.arange(1, 13), rtol=1e-4)
    seconds = np.cumsum([[row["seconds"] for row in run] for run in rows], axis=1).mean(0)
    np.testing.assert_allclose(curve["x"]["seconds"], seconds, rtol=1e-4)
    assert curve["x"]["local_steps"][-1] == 12 * 1334


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    """Runs with three noises and two clip norms, two seeds each; the largest noise has one norm."""
    folder = tmp_path_factory.mktemp("private")
    for noise, clip, seed in itertools.product((1.0, 2.0, 10.0), (0.1, 0.3), (0, 1)):
        if (noise, clip) == (10.0, 0.3):
            continue
        settings = {"privacy.noise": noise, "privacy.clip": clip}
        path = write_run(
            folder / f"{noise}-{clip}-{seed}",
            seed=seed,
            settings=settings,
            accuracy=1 / noise + clip / 10 + seed / 50,
            picture=False,
        )
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        lines = [json.dumps(row | {"epsilon": row["round"] / noise}) for row in rows]
        (path / "metrics.jsonl").write_text("\n".join([*lines, ""]))
        summary = json.loads((path / "summary.json").read_text())
        delta = 0.07 if noise == 1.0 else 0.001
        outside = ["open, trained without privacy"] * (noise == 2.0)
        summary |= {"delta": delta, "outside_epsilon": outside}
        (path / "summary.json").write_text(json.dumps(summary))
    return folder


def test_maps_have_the_groups_that_differ_in_two_numbers(private, sweep):
    report = read([private])
    (found,) = maps_of(report.groups)
    assert (found.across, found.down, found.name) == ("privacy.clip", "privacy.noise", "")
    assert (found.columns, found.rows) == ([0.1, 0.3], [1.0, 2.0, 10.0])
    assert found.cells[-1][1] is None
    cell = report.cells(report.metric)[found.cells[1][0]]
    # two seeds, 0.02 apart: half of the interval is t(0.975, 1) times 0.01
    assert around_text(cell, "%") == "52.0 ± 12.7"
    assert around_text(compare(pd.Series([0.5])), "%", sign=True) == "+50.0"
    assert maps_of(read([sweep]).groups) == []
    page = render(report, "command")
    assert 'class="map"' in page and ">52.0 ± 12.7</td>" in page


def test_accuracy_is_drawn_over_epsilon_too(private):
    report = read([private])
    groups = report.groups
    (weak,) = [line for line in report.problems if line.startswith("epsilon is no protection")]
    assert "delta is above 0.001: " in weak and weak.count("1.0-0.") == 4
    (opened,) = [line for line in report.problems if line.startswith("what the weights of config")]
    assert "start_from have learned is not in epsilon: " in opened and opened.count("2.0-0.") == 4
    curve = curves_of(groups[0], ["test_accuracy"], 100)
    assert curve["x"]["epsilon_spent"] == [5.0 * number for number in range(1, 13)]


def test_worst_tenth_of_the_clients(sweep):
    found = profile([np.linspace(0, 1, 21), np.linspace(0, 1, 21)])
    # three: 0, 0.05, 0.1
    assert list(found.values())[:4] == [21, pytest.approx(0.5), pytest.approx(0.05), 0.0]
    assert list(profile([[0.25]]).values()) == [1, 0.25, 0.25, 0.25, [0.25]]
    page = page_of(sweep)
    assert "worst tenth" in page and set(payload_of(page)["clients"]["network"]) == set("0123")


def test_csv_holds_unrounded_numbers(two):
    page_of(two, "--export", "csv", "--export", "md", "--export", "latex")
    lines = list(csv.DictReader(io.StringIO((two / "report.csv").read_text())))
    assert [line["method.name"] for line in lines] == ["fedavg", "xclp"]
    assert float(lines[1]["mean"]) == pytest.approx(np.mean(AFTER), abs=1e-12)
    assert (lines[0]["difference"], lines[0]["pairs"], lines[1]["pairs"]) == ("", "0", "4")
    assert float(lines[1]["sent_both_ways"]) == 12 * 4228400
    text = (two / "report.md").read_text().splitlines()
    assert text[0].startswith("| group | runs | test accuracy (%) | difference to fedavg")
    assert text[2].startswith("| fedavg | 4 | 81.0 ± 1.8 | - |")
    tex = (two / "report.tex").read_text()
    assert r"81.0 $\pm$ 1.8" in tex and tex.count(r"\\") == 3 and r"test accuracy (\%)" in tex


def test_the_command_is_that_of_the_sweep(sweep, tmp_path):
    assert '<pre tabindex="0">fedjax-ssl sweep digits --seeds 5</pre>' in page_of(sweep)
    write_run(tmp_path / "runs" / "one", command="python -m fedjax_ssl.sweep.work", picture=False)
    (tmp_path / "sweep.json").write_text(
        json.dumps({"command": ["fedjax-ssl", "sweep", "digits", "--set", "a=1,2"]})
    )
    page = page_of(tmp_path)
    assert "fedjax-ssl sweep digits --set a=1,2" in page and "sweep.work" not in page


def test_hostile_names_stay_text(tmp_path):
    hostile = "</script><script>alert(1)</script>\"'&|\\ _{}$"
    write_run(tmp_path / "a", settings={"data.path": hostile})
    write_run(tmp_path / "b", settings={"data.path": "=1+1"})
    page = page_of(tmp_path)
    assert "<script>alert" not in page and page.count("</script>") == 3
    assert hostile in payload_of(page)["groups"][0]
    report = read([tmp_path])
    made = {kind: export(report) for kind, (_, export) in TABLES.items()}
    assert (
        "\\|" in made["md"]
        and r"\{\}\$" in made["latex"]
        and r"\textbackslash \space \_" in made["latex"]
    )
    assert [line["data.path"] for line in csv.DictReader(io.StringIO(made["csv"]))] == [
        hostile,
        "'=1+1",
    ]


def test_a_page_asks_for_nothing(sweep):
    page = page_of(sweep)
    assert "default-src 'none'" in page
    assert not re.search(r'src="(?!data:)', page) and not re.search(r"(url\(|@import)", page)
    assert set(re.findall(r'href="([^#"]*)[#"]', page)) == {""}


def test_an_unfinished_run_is_in_no_number(tmp_path, capsys):
    for seed in range(3):
        write_run(tmp_path / f"{seed}", seed=seed, done=30 if seed == 2 else None)
    write_run(tmp_path / "alone", method="xclp", done=20)
    write_run(tmp_path / "waiting", method="xclp", seed=1, done=0)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "config.json").write_text("{}")  # of another program
    page = page_of(tmp_path)
    assert "<td>2</td>" in page and "<td>2.0</td>" not in page  # a seed
    said = capsys.readouterr().err
    assert f"not finished, not in the numbers: {tmp_path}/2 (unfinished, round 30 of 60), " in said
    assert f"no result, left out: {tmp_path}/waiting" in said
    payload = payload_of(page)
    assert "2 of 3" in page and payload["metrics"]["test_accuracy"]["cells"][1][0] == "-"
    assert [curve["x"]["round"][-1] for curve in payload["curves"]] == [60, 20]


def test_diverged_runs_are_marked_in_the_terminal_the_table_and_the_page(tmp_path, capsys):
    for rate in (0.1, 1e30):
        write_run(tmp_path / f"{rate}", settings={"optimizer.learning_rate": rate})
    summary = tmp_path / "1e+30" / "summary.json"
    fields = {"diverged_in_round": 3, "diverged": "training has diverged: ..."}
    summary.write_text(json.dumps(json.loads(summary.read_text()) | fields))
    page = page_of(tmp_path, "--export", "csv")
    said = capsys.readouterr()
    assert "1, 1 diverged" in said.out and "diverged, from round 3 on" in said.err
    assert "1, 1 diverged" in page
    rows = csv.DictReader((tmp_path / "report.csv").read_text().splitlines())
    assert [row["diverged"] for row in rows] == ["0", "1"]


def test_runs_without_test_data_are_compared_by_what_they_have(tmp_path):
    page = page_of(write_run(tmp_path / "a", test=False))
    assert "All runs have one config" in page and ">fedavg<" in page
    assert payload_of(page)["curves"][0]["y"]["loss"][1] is None  # a single run: no band
    assert read([tmp_path]).metric.name == "loss"
    write_run(tmp_path / "b", seed=1)
    report = read([tmp_path])
    (cell,) = report.cells(report.metric)
    assert report.metric.name == "test_accuracy" and cell.runs == 1
    write_run(tmp_path / "c", seed=2, accuracy=float("nan"))
    assert "not finite" in page_of(tmp_path)


def test_predictions_without_training(tmp_path):
    folder = write_run(tmp_path / "a", rounds=0, clients=14)
    summary = json.loads((folder / "summary.json").read_text())
    summary["predictions"] = [
        {"name": "xclp_paper", "accuracy": 0.9, "balanced_accuracy": 0.8, "coverage": 1.0}
    ]
    (folder / "summary.json").write_text(json.dumps(summary))
    report = read([folder])
    assert report.metric.name in {one.name for one in report.metrics}
    page = page_of(folder, "--metric", "xclp_paper_accuracy")
    assert "90.0" in page and 'id="curves"' not in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["runs/one/config.json"], "config.json is a file; give the run folder"),
        (["empty"], "no run in empty"),
        (["runs", "--metric", "test_acuracy"], "Did you mean 'test_accuracy'?"),
        (["runs", "--baseline", "fedprox"], "unknown group"),
        (["runs", "--output", "runs/one/config.json/x.html"], "cannot be written"),
    ],
)
def test_mistakes_end_in_one_message(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs" / "one", picture=False)
    (tmp_path / "empty").mkdir()
    assert cli.main(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and said in captured.err and not captured.out
    assert not (tmp_path / "report.html").exists()


def test_a_client_that_is_left_out_is_called_by_its_name_in_the_groups(tmp_path):
    for number, name in enumerate(("north", "02")):
        folder = write_run(tmp_path / name, settings={"data.left_out_client": number}, rounds=10)
        file = folder / "summary.json"
        file.write_text(
            json.dumps(
                json.loads(file.read_text()) | {"left_out_client": name, "data": {"inputs": name}}
            )
        )
    write_run(tmp_path / "other", settings={"data.left_out_client": "02"}, seed=1, rounds=10)
    report = read([tmp_path])
    assert sorted(group.name for group in report.groups) == [
        "left_out_client=02",
        "left_out_client=north",
    ]
    assert [len(group.runs) for group in report.groups if group.name.endswith("02")] == [2]


def test_a_sentence_says_who_is_ahead_and_whether_it_may_be_chance(two, capsys):
    # the interval is that of test_mean_spread_and_paired_interval_by_hand
    said = (
        "xclp is the best of 2 groups in test accuracy: 85.8 ± 1.7 %. That is 4.7 points above "
        "fedavg (baseline), more than chance (95% interval +0.6 to +8.9 over 4 common seeds)."
    )
    assert said in page_of(two) and said in " ".join(capsys.readouterr().out.split())
    for folder in ("b0", "b2", "b3"):
        shutil.rmtree(two / folder)
    assert "on 1 common seed, which cannot tell a difference from chance" in verdict(read([two]))
    assert "is level with xclp, the next." in verdict(read([two], metric="test_loss"))
    assert "local steps" not in verdict(read([two]))
    for file in two.glob("b?/metrics.jsonl"):
        file.write_text(file.read_text().replace('"local_steps": 1334', '"local_steps": 4002'))
    assert "It took 3 times the local steps of fedavg: with " in verdict(read([two]))
    for file in two.glob("*/summary.json"):
        selected = 0.9 if file.parent.name.startswith("a") else 0.8
        text = json.dumps(json.loads(file.read_text()) | {"selected_test_accuracy": selected})
        file.write_text(text)
    assert "But fedavg is the best of the models that `predict` uses" in verdict(read([two]))
    shutil.rmtree(two / "b1")
    assert verdict(read([two])) == ""


@pytest.fixture
def ill(tmp_path):
    """Two groups of two runs: one ranks the ill almost right, the other finds nobody ill."""
    for seed in range(2):
        good = write_run(tmp_path / f"a{seed}", seed=seed, picture=False)
        add_scores(good, [0, 0, 0, 1, 1], [0.1, 0.2, 0.7, 0.4, 0.9])
        bad = write_run(tmp_path / f"b{seed}", seed=seed, method="fixmatch", picture=False)
        add_scores(bad, [0, 0, 0, 1, 1], [0.1] * 5)
    return tmp_path


def test_a_group_that_predicts_one_class_is_called_so(ill, capsys):
    page = page_of(ill)
    said = capsys.readouterr().err
    assert "fixmatch predicts one class, 'well', for every test example in 2 of 2 runs" in said
    assert "--data.standardize=client makes them alike" in said
    assert page.count(">predicts one class<") == 1


def test_sites_that_differ_are_said_once(ill, capsys):
    for file in ill.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        file.write_text(json.dumps(summary | {"sites_apart": "sites differ in the brightness"}))
    page_of(ill)
    assert capsys.readouterr().err.count("sites differ in the brightness") == 1


def test_the_class_table_has_a_row_per_class_and_a_column_per_group(ill):
    page = page_of(ill)
    tables = re.findall(
        r'<div class="scroll"[^>]*aria-label="([^"]*)">(.*?)</div>', page, re.DOTALL
    )
    rows = {
        name: [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row) for row in table.split("<tr")[1:]]
        for name, table in tables
    }
    assert rows["Confusion matrix of fedavg"] == [
        ["", "well", "ill"],
        ["well", "4", "2"],
        ["ill", "2", "2"],
    ]
    assert rows["Recall by class"] == [
        ["class", "fedavg", "fixmatch", "examples"],
        ["well", "66.7", "100.0", "3"],
        ["ill", "50.0", "0.0", "2"],
    ]
    for file in ill.glob("b*/summary.json"):
        file.write_text(file.read_text().replace('"support": [3, 2]', '"support": [3, 2, 1]'))
    assert "fixmatch: its scores by class cannot be shown" in page_of(ill)


def test_the_report_lies_with_its_runs_and_replaces_reports_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for sweep in ("one", "other"):
        write_run(tmp_path / sweep / "a", picture=False)
    for _ in range(2):  # again is no question
        assert cli.main(["report", "one"]) == 0
    assert (tmp_path / "one/report.html").exists() and not (tmp_path / "report.html").exists()
    assert cli.main(["report", "one", "other"]) == 0
    assert "report: report.html" in capsys.readouterr().out
    (tmp_path / "notes.html").write_text("mine")
    assert cli.main(["report", "one", "--output", "notes.html"]) == 2
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_names_of_ones_own_and_a_table_of_rows_by_columns(tmp_path, capsys):
    for method, labels, accuracy in (("fedavg", 2, 0.7), ("xclp", 2, 0.8), ("xclp", 5, 0.9)):
        for seed in range(2):
            settings = {"supervision.labels": labels}
            folder = tmp_path / f"{method}{labels}{seed}"
            write_run(
                folder, method=method, seed=seed, settings=settings, accuracy=accuracy, clients=5
            )
    options = ("--label", "xclp=XCLP", "--label", "labels=2=few", "--columns", "labels")
    page = page_of(tmp_path, *options, "--export", "md,latex", "--baseline", "fedavg")
    assert "XCLP, few" in page
    table = (tmp_path / "report.md").read_text().splitlines()
    assert table[0] == "| test accuracy (%) | few | labels=5 |"
    rows = {line.split(" | ")[0].strip("| "): line for line in table[2:4]}
    assert "**80.0 ± 0.0**" in rows["XCLP"] and "90.0 ± 0.0" in rows["XCLP"]
    assert "| 70.0 ± 0.0 |" in rows["fedavg"] and "| - |" in rows["fedavg"]
    assert r"\textbf{80.0 $\pm$ 0.0}" in (tmp_path / "report.tex").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--label", "xclq=XCLP"], "no part of a group's name, is 'xclq'"),
        (["--label", "xclp"], "'xclp' is not OLD=NEW"),
        (["--export", "md", "--columns", "rate"], "groups do not differ in it"),
        (["--columns", "name"], "add --export md or latex"),
        (["--export", "pdf"], "unknown export 'pdf'"),
    ],
)
def test_a_wrong_option_leaves_no_page(two, capsys, options, said):
    with contextlib.suppress(SystemExit):
        assert cli.main(["report", str(two), *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not (two / "report.html").exists()


def test_two_seeds_are_said_to_say_little(two, capsys):
    for seed in (2, 3):
        shutil.rmtree(two / f"a{seed}")
    page = page_of(two)
    assert "on 2 common seeds, which cannot tell a difference from chance" in page
    assert "more than chance" not in page
    said = "two seeds say little: the intervals of 1 groups rest on two runs"
    assert said in capsys.readouterr().err
