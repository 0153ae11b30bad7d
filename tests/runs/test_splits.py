"""A run on a split file is the run that the file was written from."""

import dataclasses
import json

import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.cli.data import main
from fedjax_ssl.folder.folder_lock import RunFolderError
from fedjax_ssl.runs.loop import run
from tests.docs.test_example import run_block
from tests.runs.test_resume import rows_of

SETTINGS = {
    "rounds": "1",
    "eval_every": "1",
    "model.name": "linear",
    "optimizer.local_epochs": "1",
    "data.test_clients": "9",
    "data.validation_fraction": "0.1",
}


def start(folder, **given):
    config = configs.load("digits_fedavg", {**SETTINGS, **given})
    return run(config, folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run, and a folder with its split and that of another seed."""
    folder = tmp_path_factory.mktemp("original") / "splits"
    settings = [f"--{field}={value}" for field, value in SETTINGS.items()]
    main(["split", "digits_fedavg", "--seeds", "2", "--output", str(folder), *settings])
    return start(folder / "run"), folder


@pytest.mark.promise
@pytest.mark.thorough
def test_it_has_the_same_hash_and_rows_and_says_what_it_does_not_use(original, tmp_path, capsys):
    summary, folder = original
    file = f"{folder}/digits_fedavg-{{seed}}.npz"
    again = start(tmp_path / "run", **{"data.split": file})
    said = capsys.readouterr().out
    assert f"{summary['split']}, by {folder}/digits_fedavg-0.npz: partition, supervision" in said
    assert again["split"] == summary["split"]
    assert again["test_fingerprint"] == summary["test_fingerprint"]
    assert rows_of(tmp_path / "run") == rows_of(folder / "run")
    assert (tmp_path / "run/partition.txt").read_text() == (
        folder / "run/partition.txt"
    ).read_text()
    # it goes on with the split that it began on, wherever that is, and with no other
    (folder / "moved").mkdir(exist_ok=True)
    moved = folder / "moved" / "s.npz"
    moved.write_bytes((folder / "digits_fedavg-0.npz").read_bytes())
    with pytest.warns(UserWarning, match="the data are the same in another place"):
        start(tmp_path / "run", **{"data.split": str(moved)})
    moved.write_bytes((folder / "digits_fedavg-1.npz").read_bytes())
    with pytest.raises(RunFolderError, match=f"another split of these data .*{again['split']} ->"):
        start(tmp_path / "run", **{"data.split": str(moved)})


@pytest.mark.promise
@pytest.mark.thorough
def test_the_command_says_what_it_wrote_and_how_to_run_on_it(original, capsys, tmp_path):
    summary, folder = original
    main(
        [
            "split",
            "digits_fedavg",
            "--output",
            str(tmp_path),
            *(f"--{k}={v}" for k, v in SETTINGS.items()),
        ]
    )
    said = capsys.readouterr().out
    assert f"digits_fedavg-0.npz: split {summary['split']}, 5 clients" in said
    assert f"--data.split={tmp_path}/digits_fedavg-{{seed}}.npz" in said
    file = "digits_fedavg-0.npz"
    with np.load(tmp_path / file) as ours, np.load(folder / file) as before:
        assert all((ours[name] == before[name]).all() for name in before.files)
    assert json.loads((folder / "run/model.json").read_text())["split"] == summary["split"]


@pytest.mark.promise
@pytest.mark.thorough
def test_the_code_of_the_page_reads_one(original, monkeypatch, capsys):
    _, folder = original
    monkeypatch.chdir(folder.parent)
    run_block("partitions.md")
    assert "5 clients" in capsys.readouterr().out


@pytest.mark.promise
@pytest.mark.thorough
def test_labels_that_the_method_needs_and_the_file_hides(original, tmp_path):
    _, folder = original
    digits = data.load("digits")
    federation = data.federate_by_file(folder / "digits_fedavg-0.npz", digits)
    hidden = dataclasses.replace(
        federation, num_labelled=0 * federation.num_labelled, max_labelled=0, min_labelled=1
    )
    data.write_split(tmp_path / "s.npz", digits, hidden)
    said = r"'fedavg' learns from .*; with config\.data\.split=.*s\.npz this federation has"
    with pytest.raises(configs.ConfigError, match=said):
        start(tmp_path / "run", **{"data.split": str(tmp_path / "s.npz")})
    with pytest.raises(
        configs.ConfigError, match=r"config\.data\.split: there is no file .*9\.npz"
    ):
        start(tmp_path / "run", **{"data.split": f"{folder}/{{seed}}.npz", "seed": "9"})
