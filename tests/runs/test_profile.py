"""The trace of the last rounds that `--profile` keeps."""

import pytest

from fedjax_ssl import presets
from fedjax_ssl.cli.run import parse
from fedjax_ssl.runs.loop import run


def test_profile_is_a_word_of_its_own_on_the_command_line():
    assert parse(["digits", "--profile", "--rounds=2"]).settings == [
        ("profile", "true"),
        ("rounds", "2"),
    ]
    assert parse(["digits", "--profile", "False"]).settings == [("profile", "False")]


@pytest.mark.thorough
def test_a_run_with_a_profile_keeps_a_trace_and_is_the_same(tmp_path, capsys):
    given = presets.digits_by_writer("fedavg")
    given.update({"rounds": 2, "eval_every": 1})
    given.optimizer.local_epochs = 1
    plain = run(given, tmp_path / "plain", quiet=True)
    given.profile = True
    profiled = run(given, tmp_path / "profiled")
    folder = tmp_path / "profiled" / "profile"
    assert f"rounds 2 to 2 and an evaluation, traced: {folder}" in capsys.readouterr().out
    assert profiled["test_loss"] == plain["test_loss"]
    assert list(folder.rglob("*.xplane.pb"))
    run(given, tmp_path / "plain")
    assert "nothing to profile: the run is finished" in capsys.readouterr().out
