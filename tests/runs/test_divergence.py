"""A run that diverges says so, in its notes, its rows, its summary and its exit code."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import cli
from fedjax_ssl import config as configs
from fedjax_ssl.cli import run as command
from fedjax_ssl.federated import ServerState
from fedjax_ssl.folder.stored_run import read_run
from fedjax_ssl.runs import divergence, rounds

CONFIG = configs.resolve(
    configs.with_settings(configs.default(), [("optimizer.learning_rate", 1e30), ("rounds", 20)])
)
STATE = ServerState(**{name: () for name in ServerState._fields})


def row(number: int, diverged: int, **more) -> dict:
    """Of a block of 5 rounds with 4 clients each."""
    return {
        **{
            "round": number,
            "clients": 20,
            "dropped_clients": 4 * diverged,
            "local_steps": 7 * (5 - diverged),
        },
        **{"loss": 0.0 if diverged == 5 else 2.5, divergence.DIVERGED_ROUNDS: diverged, **more},
    }


@pytest.mark.parametrize(
    ("dropped", "steps", "server", "expected"),
    [
        ([0, 0, 0], [3, 3, 3], None, 0),
        ([1, 2, 2], [3, 0, 0], None, 2),
        ([2, 2, 1], [0, 0, 3], None, 0),  # recovered
        ([0, 0, 0], [0, 0, 0], None, 0),  # nobody had anything to learn from
        ([0, 0, 0], [3, 0, 0], [0.0, 1.0, 1.0], 2),
    ],
)
def test_rounds_without_any_finite_update_are_counted_from_the_end(
    dropped, steps, server, expected
) -> None:
    infos = {"dropped_clients": np.array(dropped), "local_steps": np.array(steps)}
    if server is not None:
        infos["server_dropped"] = np.array(server)
    assert rounds._rounds_in_vain(infos) == expected


def test_the_first_block_that_diverges_is_noted_once_and_counted_on() -> None:
    rows = [row(5, 0, loss=3e12), row(10, 2), row(15, 5)]
    notes = []
    for place, one in enumerate(rows):
        divergence.carry(one, rows[:place], 5)
        notes.append(divergence.note(one, rows[:place], 5, CONFIG))
    assert notes[0].startswith(
        "the loss of local training is 3e+12, as where training diverges. Lower"
    )
    assert notes[1] == (
        "training has diverged: from round 9 on no update was finite (left out in the last 5 "
        "rounds: 8 of the 20 updates of clients); the largest mean loss before was 3e+12. Lower "
        "config.optimizer.learning_rate (1e+30), or limit gradients by "
        "config.optimizer.clip_norm."
    )
    assert notes[2] == ""
    assert [one.get(divergence.DIVERGED_ROUNDS) for one in rows] == [None, 2, 7]
    assert rows[1]["loss"] == 2.5 and math.isnan(rows[2]["loss"]), "no mean of nothing"
    said = divergence.ended(STATE, rows, CONFIG)
    assert said["diverged_in_round"] == 9
    assert said["diverged"].endswith(
        "The model of round 8, which nothing has changed since, is in checkpoints/."
    )


def test_a_run_that_never_had_a_finite_loss_is_told_to_look_at_its_own_loss() -> None:
    only = row(1, 1, loss=math.nan, local_steps=0)
    told = divergence.note(only, [], 1, CONFIG)
    assert "in the last round: 4 of" in told and "no loss was finite before" in told
    for words in (told, divergence.ended(STATE, [only], CONFIG)["diverged"]):
        assert "look in your own loss or network" in words


def test_a_run_that_recovered_or_was_fine_ends_as_any_other() -> None:
    rows = [row(5, 5), row(10, 0)]
    for place, one in enumerate(rows):
        divergence.carry(one, rows[:place], 5)
    assert divergence.ended(STATE, rows, CONFIG) == {}
    assert divergence.DIVERGED_ROUNDS not in rows[1]
    broken = STATE._replace(params={"w": jnp.array([1.0, jnp.nan])})
    said = divergence.ended(broken, rows, CONFIG)
    assert (
        said["diverged_in_round"] == 10
        and "the model after the last round is not finite" in said["diverged"]
    )


def test_the_command_ends_with_an_exit_code_of_its_own(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(command, "run", lambda *_, **__: {"diverged": "training has diverged: ..."})
    monkeypatch.setattr(command.command_line, "use_compilation_cache", lambda: None)
    assert command.main(["digits_fedavg", "--workdir", str(tmp_path)]) == divergence.EXIT_CODE == 4
    assert capsys.readouterr().err == "error: training has diverged: ...\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("digits_fedavg:5", ["--optimizer.learning_rate=1e30"]),
        ("digits_fedavg:5", ["--federated.name=fedavgm", "--federated.server_learning_rate=1e30"]),
        ("digits_fedavg:5", ["--optimizer.weight_decay=1e20"]),
        ("digits_single", ["--optimizer.learning_rate=1e30"]),
        ("digits_semifl", ["--optimizer.learning_rate=1e30"]),
    ],
)
def test_a_diverged_run_says_so_in_the_end_and_when_it_is_asked_again(
    config, settings, tmp_path, capsys
) -> None:
    line = ["run", config, *settings, "--rounds=4", "--eval_every=2", f"--workdir={tmp_path}"]
    for _ in range(2):
        assert cli.main(line) == divergence.EXIT_CODE
        said = capsys.readouterr().err
        assert "error: training has diverged: from round" in said and "Traceback" not in said
    found = read_run(tmp_path)
    assert (
        found.rows[-1][divergence.DIVERGED_ROUNDS] >= 3 and found.summary["diverged_in_round"] <= 2
    )
