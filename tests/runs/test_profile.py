"""Where the time goes: operations by scope, seconds by row, and what would help."""

import jax
import jax.numpy as jnp
import ml_collections
import pytest

from fedjax_ssl import presets
from fedjax_ssl.cli.run import parse
from fedjax_ssl.config import resolve
from fedjax_ssl.federated import AUGMENT, EVALUATION, LOCAL_STEP
from fedjax_ssl.runs import profile
from fedjax_ssl.runs.loop import run


def config(**fields):
    found = presets.digits_by_writer("fedavg")
    found.update({"rounds": 4, "eval_every": 2, **fields})
    return found


def test_operations_are_known_by_their_scopes_also_in_loops_and_gradients():
    def loss(weights, inputs):
        with jax.named_scope(AUGMENT):
            inputs = jnp.sort(inputs)
        return jnp.sum(jnp.tanh(inputs @ weights))

    @jax.named_scope(LOCAL_STEP)
    def step(_, weights):
        return weights - jax.grad(loss)(weights, jnp.ones((3, 40)))

    @jax.jit
    def block(weights):
        weights = jax.lax.fori_loop(0, 5, step, weights)
        with jax.named_scope(EVALUATION):
            return weights, jnp.argsort(weights)

    text = block.lower(jnp.ones(40)).compile().as_text()
    rows = profile.operations(text)
    assert (
        {"evaluate", profile.STEP}
        <= set(rows.values())
        <= {"evaluate", "augment", profile.STEP, profile.REST}
    )
    loop = next(line.split()[0].lstrip("%") for line in text.splitlines() if " while(" in line)
    assert loop not in rows  # its time is that of what it holds


def test_rows_add_up_to_the_whole_run():
    seconds = profile.run_seconds({"evaluate": 0.25, profile.STEP: 0.75}, 3.0, 10.0, 2.0, 20.0)
    assert seconds == {
        profile.HOST: 7.0,
        profile.STEP: 6.0,
        profile.COMPILE: 3.0,
        "evaluate": 2.0,
        "gather": 2.0,
    }
    assert list(seconds)[:2] == [profile.HOST, profile.STEP]
    # Where a trace names no operation, all of them are one row.
    assert sum(profile.run_seconds({}, 3.0, 10.0, 0.0, 20.0).values()) == 20.0


@pytest.mark.parametrize(
    ("row", "helps"),
    [("evaluate", "--eval_every=4"), (profile.REST, "--optimizer.local_epochs"), ("graph", None)],
)
def test_advice_is_about_the_largest_row(row, helps):
    given: ml_collections.ConfigDict = resolve(config())
    found = profile.advice({row: 90.0, profile.HOST: 10.0}, given)
    assert (found[0].startswith(helps) if helps else not found) and len(found) <= 2


def test_profile_is_a_word_of_its_own_on_the_command_line():
    assert parse(["digits", "--profile", "--rounds=2"]).settings == [
        ("profile", "true"),
        ("rounds", "2"),
    ]
    assert parse(["digits", "--profile", "False"]).settings == [("profile", "False")]


@pytest.mark.thorough
def test_a_run_with_a_profile_says_where_its_time_went_and_is_the_same(tmp_path, capsys):
    given = config(rounds=2, eval_every=1)
    given.optimizer.local_epochs = 1
    plain = run(given, tmp_path / "plain", quiet=True)
    given.profile = True
    profiled = run(given, tmp_path / "profiled")
    table = capsys.readouterr().out.partition("where the time goes")[2]
    assert profiled["test_loss"] == plain["test_loss"]
    rows = [
        line.rsplit(maxsplit=3)
        for line in table.splitlines()
        if line.endswith(" s") and "%" in line
    ]
    assert {name.strip() for name, *_ in rows} >= {
        "compile",
        "host",
        "evaluate",
        "forward and backward",
        "average",
    }
    assert sum(float(share.rstrip("%")) for _, share, *_ in rows) == pytest.approx(100, abs=0.5)
    assert list((tmp_path / "profiled" / "profile").rglob("*.xplane.pb"))
    run(given, tmp_path / "plain")
    assert "nothing to profile: the run is finished" in capsys.readouterr().out
