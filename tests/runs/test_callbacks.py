"""Callbacks of a user's own, as docs/running.md shows them."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl.runs import Block, Shared
from tests.test_resume import rows_of

PAGE = Path(__file__).parents[2] / "docs" / "running.md"
MARK = "<!-- tests/runs/test_callbacks.py runs this block. -->"


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
