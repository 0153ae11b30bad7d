"""`fedjax-ssl plan-labels`: a plan from a run or from files, and one message where there is none."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from fedjax_ssl import cli


@pytest.fixture
def plan(tmp_path, capsys):
    """Calls the command; returns (exit code, rows of the plan, standard output and error)."""
    output = tmp_path / "plans" / "next.csv"

    def call(*arguments):
        shutil.rmtree(output.parent, ignore_errors=True)
        try:
            code = cli.main(["plan-labels", *map(str, arguments), "--output", str(output)])
        except SystemExit as end:  # of argparse
            code = end.code
        rows = list(csv.DictReader(output.read_text().splitlines())) if output.exists() else None
        said = capsys.readouterr()
        assert code == 0 or not output.parent.exists()
        return code, rows, said.out + said.err

    call.output = output
    return call


def scans(path, labels, count=40, sites=4):
    """Write two kinds of images at some sites, the labels given by row."""
    random = np.random.default_rng(0)
    kind = np.arange(count) % 2
    images = random.integers(0, 60, (count, 6, 6, 1)) + 150 * kind[:, None, None, None] * np.eye(
        6, dtype=int
    ).reshape(1, 6, 6, 1)
    arrays = {"inputs": images.astype(np.uint8), "labels": labels}
    names = np.array(["healthy", "ill"])
    np.savez(path, **arrays, client=np.arange(count) // 2 % sites, class_names=names)
    return kind


@pytest.mark.promise
@pytest.mark.thorough
def test_a_run_gives_features_and_its_clients(plan, folder, digits, tmp_path):
    code, rows, said = plan(folder, "--budget", 8)
    assert code == 2 and rows is None and "every example has a label" in said
    # The same run, had it hidden all labels but 30.
    run = shutil.copytree(folder, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["supervision"] |= {"name": "total", "labels": 30}
    (run / "config.json").write_text(json.dumps(config))
    for strategy in ("influence", "margin"):
        code, rows, said = plan(run, "--budget", 8, "--per-client", 1, "--strategy", strategy)
        assert code == 0 and "of 11 clients, 30 labelled; planned: 8, 0 to 1 of a client" in said
        owner = [digits.client_names[digits.train.client[int(row["row"])]] for row in rows]
        assert [row["client"] for row in rows] == owner and len(set(owner)) == 8
        assert ("coverage" in rows[0]) == (strategy == "influence")


def test_files_are_planned_and_the_plan_goes_on_from_the_labels_that_are_there(plan, tmp_path):
    file = tmp_path / "scans.npz"
    labels = np.full(40, -1)
    labels[0] = 0
    kind = scans(file, labels)
    code, rows, said = plan(file, "--budget", 6, "--per-client", 2)
    assert code == 0 and [row["order"] for row in rows] == list("123456")
    assert "the plan compares inputs; features of a network are better" in said
    assert "40 examples of 4 clients, 1 labelled; planned: 6, 1 to 2 of a client" in said
    chosen = [int(row["row"]) for row in rows]
    assert [row["client"] for row in rows] == [str(row // 2 % 4) for row in chosen]
    assert float(rows[-1]["coverage"]) > float(rows[0]["coverage"]) > float(rows[0]["gain"]) > 0
    for picture in ("next.png", "next_examples.png"):
        with Image.open(plan.output.with_name(picture)) as image:
            assert image.width > 300
    labels[chosen[:3]] = kind[chosen[:3]]
    scans(file, labels)
    code, later, said = plan(file, "--budget", 3, "--per-client", 2)
    assert code == 0 and not {int(row["row"]) for row in later} & {0, *chosen[:3]}
    assert "4 labelled" in said


def test_what_cannot_be_planned_is_said_in_one_sentence(plan, tmp_path, folder):
    file = tmp_path / "scans.npz"
    scans(file, np.where(np.arange(40) == 0, 0, -1))
    words = tmp_path / "notes.csv"
    lines = [f"{'ab'[row % 2]},note {row} of the doctor" for row in range(60)]
    words.write_text("\n".join(["label,note", *lines]))
    few = tmp_path / "few.npz"
    scans(few, np.where(np.arange(8) == 0, 0, -1), 8)
    cases = [
        ((file,), "budget and per_client are None; give one of them"),
        ((file, "--budget", 0), "budget is 0; it must be a whole number of at least 1"),
        ((file, "--budget", 2, "--strategy", "margin"), "'margin' is of a run's network"),
        ((file, "--budget", 2, "--strategy", "marginal"), "unknown strategy 'marginal'"),
        ((words, "--budget", 2), "column 'note' holds 60 different words"),
        ((few, "--budget", 2), "there are 8 examples, and a graph with 10 neighbours"),
        ((tmp_path / "gone", "--budget", 2), "gone is not there"),
        ((folder, "--budget", 2, "--rounds=3"), "--rounds is of the run already; leave it out"),
        (
            (file, "--budget", 2, "--privacy.name=gaussian", "--privacy.noise=1"),
            "config.privacy.name is 'gaussian'",
        ),
    ]
    for arguments, message in cases:
        code, rows, said = plan(*arguments)
        assert code == 2 and rows is None and message in said and said.count("error:") == 1, said
