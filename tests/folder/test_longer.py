"""More rounds on a finished run: the bits of a run that was that long from the beginning, or a
reason why not.
"""

import json

import jax
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import load_run, presets
from fedjax_ssl.folder.checkpoint import to_arrays
from fedjax_ssl.folder.folder_lock import ConfigMismatch
from fedjax_ssl.folder.resume import restorable, why_not_longer
from fedjax_ssl.runs.loop import run
from tests.runs.test_resume import experiment, results_of, rows_of


def short(**fields):
    return experiment(**{"rounds": 4, "eval_every": 2, "method.warmup_rounds": 2, **fields})


# Between two evaluations the run goes on from an earlier checkpoint.
@pytest.mark.thorough
@pytest.mark.parametrize("first", [4, 5])
def test_the_same_bits_as_of_a_long_run(tmp_path, first):
    fields = {"data.validation_fraction": 0.2}
    run(short(**fields, rounds=first), tmp_path / "grown")
    before = (tmp_path / "grown" / "config.json").read_bytes()
    with pytest.raises(
        ConfigMismatch, match=r"A run can get longer, but this one has \d rounds already"
    ):
        run(short(**fields, rounds=3), tmp_path / "grown")
    assert (tmp_path / "grown" / "config.json").read_bytes() == before
    run(short(**fields, rounds=8), tmp_path / "grown")
    run(short(**fields, rounds=8), tmp_path / "whole")
    assert rows_of(tmp_path / "grown") == rows_of(tmp_path / "whole")
    assert results_of(tmp_path / "grown") == results_of(tmp_path / "whole")
    assert json.loads((tmp_path / "grown" / "config.json").read_text())["rounds"] == 8
    for which in ("best", "last"):
        models = [load_run(tmp_path / name, which) for name in ("grown", "whole")]
        assert models[0].round == models[1].round
        same = jax.tree.map(np.array_equal, *(to_arrays(model._state)[0] for model in models))
        assert all(jax.tree.leaves(same)), which


@pytest.mark.parametrize(
    ("method", "changes", "fields", "expected"),
    [
        (
            "fedavg",
            {"rounds": (10, 6)},
            {},
            "A run can get longer, but this one has 10 rounds already",
        ),
        (
            "fedavg",
            {"rounds": (3, 6)},
            {},
            "Its checkpoints are of round 3, where a longer run has no evaluation",
        ),
        (
            "fedavg",
            {"rounds": (3, 6), "optimizer.schedule_rounds": (3, 6)},
            {"optimizer.schedule": "cosine"},
            "followed a cosine over 3 rounds, and over 6 they would have been others. "
            "--config.optimizer.schedule_rounds=3 keeps them",
        ),
        ("fedavg", {"rounds": (4, 6), "optimizer.schedule_rounds": (4, 6)}, {}, ""),
        (
            "uda",
            {"rounds": (4, 6)},
            {},
            "stretches over all rounds of the run, so that rounds of a longer one are ",
        ),
        ("uda", {"rounds": (4, 6)}, {"method.tsa_rounds": 4}, ""),
        ("uda", {"rounds": (4, 6)}, {"method.tsa": "none"}, ""),
    ],
)
def test_what_stands_against_more_rounds(method, changes, fields, expected):
    config = presets.digits_by_writer(method, 5)
    config.rounds = 6
    config.eval_every = 2
    config.update_from_flattened_dict(fields)
    checkpoints = [changes["rounds"][0]]
    found = why_not_longer(configs.resolve(config), changes, checkpoints)
    assert expected in found if expected else found == ""
    assert restorable([4, 5], 2) == 4 and restorable([5], 2) == 0


@pytest.mark.thorough
def test_a_cosine_of_fixed_length_goes_on(tmp_path):
    fields = {
        "optimizer.schedule": "cosine",
        "optimizer.schedule_rounds": 4,
        "method.warmup_rounds": 0,
    }
    run(short(**fields), tmp_path)
    assert run(short(**fields, rounds=6), tmp_path)["rounds"] == 6
