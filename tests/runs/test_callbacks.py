"""Callbacks of a user's own: as docs/running.md shows them, and what goes wrong in one."""

import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl.config import resolve
from fedjax_ssl.errors import ConfigError, UserError
from fedjax_ssl.folder import Checkpoints
from fedjax_ssl.runs import Block, Point, Shared, run_batch
from fedjax_ssl.runs.own_callbacks import OwnCallbacks, call
from tests.runs.test_resume import rows_of

PAGE = Path(__file__).parents[2] / "docs" / "running.md"
MARK = "<!-- tests/runs/test_callbacks.py runs this block. -->"


@pytest.fixture(scope="module")
def shared() -> Shared:
    return Shared()


@pytest.fixture(scope="module")
def names(tmp_path_factory) -> dict:
    """What the block of the page defines; its run is in `folder`."""
    found = re.search(re.escape(MARK) + r"\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    assert found is not None
    folder = tmp_path_factory.mktemp("docs")
    defined = {"folder": folder / "runs" / "watched"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(found[1], defined)
    return defined


@pytest.mark.promise
@pytest.mark.thorough
def test_the_examples_record_a_column_and_end_the_run(names, capsys) -> None:
    summary = names["summary"]
    rows = rows_of(names["folder"])
    assert summary["stopped_early"] and summary["rounds"] == rows[-1]["round"] < 8
    assert [row["test_accuracy"] > 0.9 for row in rows] == [*[False] * (len(rows) - 1), True]
    final = fs.load_run(names["folder"], "last")._state.params
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(final)))
    assert rows[-1]["weight_norm"] == pytest.approx(norm, rel=1e-5)
    # complete: nothing is trained again, with other callbacks either
    assert fs.run(names["config"], names["folder"]) == summary
    assert "this run is complete already" in capsys.readouterr().out


@pytest.mark.promise
@pytest.mark.thorough
def test_a_run_that_goes_on_calls_them_again_and_has_the_same_rows(names, tmp_path) -> None:
    config = fs.load_config(
        "digits_fedavg:all", {"rounds": 4, "eval_every": 1, "save_clients": "last"}
    )
    shared = Shared()
    blocks: list[Block] = []

    def stumble(block: Block) -> None:
        blocks.append(block._replace(state=None))
        if block.row["round"] == 3 and len(blocks) == 3:
            raise RuntimeError("made to fail")

    own = [names["weight_norm"], stumble]
    with pytest.raises(RuntimeError, match="made to fail"):
        fs.run(config, tmp_path / "cut", shared=shared, callbacks=own, quiet=True)
    fs.run(config, tmp_path / "cut", shared=shared, callbacks=own, quiet=True)
    fs.run(config, tmp_path / "whole", shared=shared, callbacks=own[:1], quiet=True)
    rounds = [block.row["round"] for block in blocks]
    assert rounds[:3] == [1, 2, 3] and rounds[-1] == 4
    assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
    cut, whole = (
        [(row["round"], row["weight_norm"], row["test_loss"]) for row in rows_of(tmp_path / name)]
        for name in ("cut", "whole")
    )
    assert cut == whole
    assert blocks[0].models is None and blocks[-1].models is not None
    assert blocks[0].rounds == 1 and blocks[-1].clients.keys() == blocks[0].clients.keys()


def failing(places: set[int]):
    """A callback that adds a column, and fails after some rounds."""

    def stumble(block: Block) -> None:
        block.row["stumbled"] = 0
        if block.row["round"] in places:
            raise RuntimeError("made to fail")

    return stumble


@pytest.mark.promise
@pytest.mark.thorough
def test_the_block_of_an_error_is_saved_and_the_same_call_goes_on(tmp_path, shared, capsys) -> None:
    config = fs.load_config("digits_fedavg:all", {"rounds": 3, "eval_every": 1})
    for rounds in (1, 2):
        with pytest.raises(RuntimeError, match="made to fail") as raised:
            fs.run(config, tmp_path, shared=shared, callbacks=[failing({1, 2})])
        assert f"the rounds up to {rounds} are saved" in raised.value.__notes__[-1]
        assert [row["round"] for row in rows_of(tmp_path)] == [*range(1, rounds + 1)]
        assert Checkpoints(tmp_path).latest() == rounds
    fs.run(config, tmp_path, shared=shared, callbacks=[failing({1, 2})])
    rows = rows_of(tmp_path)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert ["stumbled" in row for row in rows] == [False, False, True]
    assert capsys.readouterr().out.count("the same call goes on after them") == 2


@pytest.mark.promise
@pytest.mark.thorough
def test_a_run_that_a_callback_stopped_goes_on_with_more_rounds(names, shared) -> None:
    stopped = rows_of(names["folder"])[-1]["round"]
    longer = names["config"].copy_and_resolve_references()
    longer.rounds += 1
    seen = []
    summary = fs.run(
        longer,
        names["folder"],
        shared=shared,
        callbacks=[lambda block: seen.append(block.row["round"])],
        quiet=True,
    )
    assert seen == [*range(stopped + 1, longer.rounds + 1)]
    assert summary["rounds"] == longer.rounds and "stopped_early" not in summary


@pytest.mark.promise
@pytest.mark.thorough
def test_one_of_several_runs_fails_and_the_others_go_on(tmp_path, shared) -> None:
    config = resolve(fs.load_config("digits_fedavg:all", {"rounds": 2, "eval_every": 1}))
    points = [
        Point(config, tmp_path / "fails", [failing({1})]),
        Point(config, tmp_path / "goes_on"),
        Point(config, tmp_path / "stops", [lambda block: True]),
        Point(config, tmp_path / "refused", [3]),  # type: ignore[list-item]
    ]
    failed, whole, stopped, refused = run_batch(points, shared)
    assert isinstance(failed, RuntimeError) and Checkpoints(tmp_path / "fails").latest() == 1
    assert isinstance(whole, dict) and whole["rounds"] == 2
    assert stopped is None and isinstance(refused, UserError)


def no_argument() -> None:
    """Takes no block."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (no_argument, r"it has to be a list of functions .*: callbacks=\[no_argument\]"),
        ([3], r"callbacks has 3 in it; it has to be a list"),
        (3, r"callbacks is 3; it has to be a list"),
        ([no_argument], r"no_argument cannot be called with a block .*\(.*line \d+\)"),
    ],
)
@pytest.mark.promise
@pytest.mark.thorough
def test_what_is_no_list_of_callbacks_is_refused_before_anything_else(
    tmp_path, given, message
) -> None:
    config = fs.load_config("digits_fedavg")
    with pytest.raises(UserError, match=message):
        fs.run(config, tmp_path / "run", callbacks=given, quiet=True)
    assert not (tmp_path / "run").exists()


def returning(value):
    return lambda block: value


def writing(column, value):
    return lambda block: block.row.update({column: value})


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (returning("yes"), "returned str; it has to return True"),
        (returning(0.5), "returned float; it has to return True"),
        (writing("note", "good"), "put str into the column 'note'"),
        (writing("norms", np.zeros(3)), r"put ndarray \[3\] into the column 'norms'"),
        (writing("norms", [1, 2]), "put list into the column 'norms'"),
        (writing("round", 7), "changed the column 'round'"),
        (lambda block: block.row.clear(), "changed the column 'round'"),
    ],
)
@pytest.mark.promise
@pytest.mark.thorough
def test_what_no_callback_may_do_is_said_and_the_row_is_as_before(callback, message) -> None:
    row = {"round": 1, "loss": 0.5}
    with pytest.raises(UserError, match=message):
        call(callback, Block(row, None, {}, None, None, 1, False))
    assert row == {"round": 1, "loss": 0.5}


@pytest.mark.parametrize("value", [True, np.True_, jnp.bool_(True)])
@pytest.mark.promise
@pytest.mark.thorough
def test_scalars_of_every_kind_are_numbers_and_truths(value) -> None:
    row = {"round": 1}
    block = Block(row, None, {}, None, None, 1, False)
    assert call(returning(value), block) is True
    assert not call(writing("share", jnp.float32(0.5)), block) and row["share"] == 0.5
    assert type(row["share"]) is float


@pytest.mark.promise
@pytest.mark.thorough
def test_a_metric_of_ones_own_that_fails_costs_no_block(tmp_path, shared, monkeypatch) -> None:
    module = types.ModuleType("failing_metric")
    calls = []

    def once(labels, probabilities) -> float:
        calls.append(None)
        if len(calls) == 2:  # the first one tries it
            raise RuntimeError("made to fail")
        return 0.5

    module.once = once  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing_metric", module)
    settings = {"rounds": 2, "eval_every": 1, "metrics": ("failing_metric:once",)}
    config = fs.load_config("digits_fedavg:all", settings)
    with pytest.raises(ConfigError, match="made to fail"):
        fs.run(config, tmp_path, shared=shared, quiet=True)
    assert Checkpoints(tmp_path).latest() == 1
    fs.run(config, tmp_path, shared=shared, quiet=True)
    assert ["test_once" in row for row in rows_of(tmp_path)] == [False, True]


class Together:
    """A team in which another process says this, whatever holds here."""

    def __init__(self, *answers: bool):
        self.answers = list(answers)

    def any(self, here: bool) -> bool:
        return here or self.answers.pop(0)


@pytest.mark.promise
@pytest.mark.thorough
def test_processes_stop_together_and_fail_together() -> None:
    block = Block({"round": 1}, None, {}, None, None, 1, False)
    seen = []
    own = OwnCallbacks(
        [lambda block: None, lambda block: seen.append(block.last)],
        Together(False, True, False, False),
    )
    assert own(block) and own.stopped and seen == [True]
    failing_elsewhere = OwnCallbacks([lambda block: None], Together(True))
    with pytest.raises(UserError, match="another process"):
        failing_elsewhere(block)
