import json

import pytest

from fedjax_ssl.folder.folder_lock import (
    ConfigMismatch,
    FolderLocked,
    RunFolderError,
    config_differences,
)
from fedjax_ssl.folder.run_folder import RunFolder

CONFIG = {
    "rounds": 5,
    "method": {"name": "xclp", "alpha": 0.99, "hidden": (64, 32)},
    "note": None,
    "lr": float("inf"),
}


def start_with_results(path, config):
    """A start that got as far as its first metric row."""
    with RunFolder(path, config) as folder:
        folder.metrics_jsonl.write_text("{}\n")


def test_a_start_without_results_makes_way_for_another_config(tmp_path):
    RunFolder(tmp_path, CONFIG).close()
    with RunFolder(tmp_path, {"rounds": 6}) as folder:
        assert folder.is_new and json.loads(folder.config_file.read_text()) == {"rounds": 6}


def test_a_start_that_came_to_nothing_leaves_nothing(tmp_path):
    path = tmp_path / "runs" / "digits"
    with RunFolder(path, CONFIG) as folder:
        (folder.path / "partition.txt").write_text("")
        (folder.path / "citations.bib").write_text("")
        (folder.path / "tensorboard").mkdir()
    assert not (tmp_path / "runs").exists()
    tmp_path.joinpath("notes").write_text("mine")
    RunFolder(tmp_path, CONFIG).close()
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]


def test_first_start_stores_the_config_and_the_same_config_opens_it_again(tmp_path):
    path = tmp_path / "runs" / "digits"
    with RunFolder(path, CONFIG) as folder:
        assert folder.is_new
        assert json.loads(folder.config_file.read_text())["method"]["hidden"] == [64, 32]
        folder.metrics_jsonl.write_text("{}\n")
    with RunFolder(path, CONFIG) as folder:
        assert not folder.is_new


def test_code_that_trained_earlier_rounds_is_kept_beside_that_of_now(tmp_path):
    code = tmp_path / "code"
    with RunFolder(tmp_path, CONFIG) as folder:
        folder.store_code({"mine.py": "then", "parts/more.py": "then"})
        folder.code_before, folder._round = {"mine": "0"}, 6
        for _ in range(2):  # at the start, and at the end
            folder.store_code({"mine.py": "now"})
        files = {path.relative_to(code).as_posix() for path in code.rglob("*.py")}
        assert files == {"mine.py", "until_round_6/mine.py", "until_round_6/parts/more.py"}
        assert (code / "until_round_6" / "mine.py").read_text() == "then"


def test_another_config_is_refused_with_every_difference(tmp_path):
    start_with_results(tmp_path, CONFIG)
    stored = (tmp_path / "config.json").read_bytes()
    other = {
        "rounds": 5.0,
        "method": {"name": "fedavg", "hidden": (64, 16)},
        "note": None,
        "lr": 1.0,
        "seed": 1,
    }
    with pytest.raises(ConfigMismatch) as error:
        RunFolder(tmp_path, other)
    message = str(error.value)
    for line in (
        'lr: "Infinity" -> 1.0',
        "method.alpha: 0.99 -> -",
        "method.hidden: [64, 32] -> [64, 16]",
        'method.name: "xclp" -> "fedavg"',
        "rounds: 5 -> 5.0",
        "seed: - -> 1",
    ):
        assert f"\n  {line}\n" in message
    assert "note" not in message and "--workdir" in message and "delete" in message
    assert (tmp_path / "config.json").read_bytes() == stored
    with RunFolder(tmp_path, CONFIG) as folder:  # the refused start left no lock
        assert not folder.is_new


def test_ignored_fields_and_groups_may_differ(tmp_path):
    start_with_results(tmp_path, {"rounds": 5, "log": {"every": 1, "to": "csv"}, "logarithm": 2})
    changed = {"rounds": 5, "log": {"every": 2, "to": "json"}, "logarithm": 2}
    with RunFolder(tmp_path, changed, ignore=("log",)) as folder:
        assert not folder.is_new
    with pytest.raises(ConfigMismatch, match=r"log\.to"):
        RunFolder(tmp_path, {**changed, "log": {"every": 3, "to": "json"}}, ignore=("log.every",))


def test_an_empty_group_is_a_difference_too():
    assert config_differences({"a": {}, "b": 1}, {"b": 1}) == ["a: {} -> -"]
    assert config_differences({"a": True}, {"a": 1}) == ["a: true -> 1"]


def test_two_runs_do_not_share_a_folder(tmp_path):
    with RunFolder(tmp_path, CONFIG), pytest.raises(FolderLocked):
        RunFolder(tmp_path, CONFIG)


def test_results_without_a_config_are_not_adopted(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl but no config\.json"):
        RunFolder(tmp_path, CONFIG)
    assert not (tmp_path / "config.json").exists()


def test_a_damaged_config_is_named(tmp_path):
    start_with_results(tmp_path, CONFIG)
    (tmp_path / "config.json").write_text('{"rounds": ')
    with pytest.raises(RunFolderError, match=r"config\.json is damaged"):
        RunFolder(tmp_path, CONFIG)


def test_a_file_in_the_way_and_an_unstorable_config_are_errors(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"is a file, no folder\. Give another --workdir"):
        RunFolder(tmp_path / "file", CONFIG)
    with pytest.raises(RunFolderError, match="cannot be stored as JSON"):
        RunFolder(tmp_path / "new", {"model": object()})
    assert not (tmp_path / "new").exists()
