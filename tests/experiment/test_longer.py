"""More rounds on a finished run: the bits of a run that was that long from the beginning, or a reason why not."""

import json

import pytest

from fedjax_ssl import load_run
from fedjax_ssl.config import resolve
from fedjax_ssl.experiment.run import run
from fedjax_ssl.tracking import Checkpoints, ConfigMismatch
from tests.test_resume import experiment, results_of, rows_of


def short(**fields):
    return experiment(rounds=4, **{"eval_every": 2, "method.warmup_rounds": 2, **fields})


def checkpoint(folder):
    return (folder / "checkpoints" / f"round_{Checkpoints(folder).latest():08d}.ckpt").read_bytes()


@pytest.mark.parametrize("first", [4, pytest.param(5, marks=pytest.mark.thorough)])  # 5: between two evaluations
def test_the_same_bits_as_of_a_long_run(tmp_path, first):
    fields = {"data.validation_fraction": 0.2}
    run(short(**fields) if first == 4 else short(**fields, rounds=first), tmp_path / "grown")
    run(short(**fields, rounds=8), tmp_path / "grown")
    run(short(**fields, rounds=8), tmp_path / "whole")
    assert rows_of(tmp_path / "grown") == rows_of(tmp_path / "whole")
    assert results_of(tmp_path / "grown") == results_of(tmp_path / "whole")
    states = [load_run(tmp_path / name)._state.params for name in ("grown", "whole")]
    assert json.loads((tmp_path / "grown" / "config.json").read_text())["rounds"] == 8
    import jax

    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), *states)))
    assert load_run(tmp_path / "grown").round == load_run(tmp_path / "whole").round


@pytest.mark.parametrize(
    ("fields", "longer", "reason"),
    [
        ({"optimizer.schedule": "cosine"}, {}, r"followed a cosine over 4 rounds, .*schedule_rounds=4 keeps them"),
        ({}, {"rounds": 3}, "A run can get longer, but this one has 4 rounds already"),
        ({}, {"seed": 1}, "seed: 0 -> 1"),
        ({"rounds": 3, "checkpoint_every": 0}, {}, r"checkpoints are of round 3, where .* no evaluation"),
    ],
)
def test_it_is_refused_with_the_reason_and_the_folder_stays(tmp_path, fields, longer, reason):
    run(short(**fields), tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("config.json", "summary.json", "metrics.jsonl")}
    with pytest.raises(ConfigMismatch, match=reason) as error:
        run(short(**{**fields, "rounds": 8, **longer}), tmp_path)
    assert "Give another --workdir" in str(error.value)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_a_cosine_of_fixed_length_goes_on(tmp_path):
    fields = {"optimizer.schedule": "cosine", "optimizer.schedule_rounds": 4, "method.warmup_rounds": 0}
    run(short(**fields), tmp_path)
    assert run(short(**fields, rounds=6), tmp_path)["rounds"] == 6


@pytest.mark.thorough
def test_annealing_over_all_rounds_is_found(tmp_path):
    from fedjax_ssl import presets

    def of(**fields):
        config = presets.digits_by_writer("uda", "5")
        config.rounds, config.eval_every, config.optimizer.local_epochs = 2, 1, 1
        config.update_from_flattened_dict(fields)
        return config

    run(of(), tmp_path / "a")
    with pytest.raises(ConfigMismatch, match=r"stretches over all rounds.*config\.method\.tsa_rounds=0"):
        run(of(rounds=3), tmp_path / "a")
    run(of(**{"method.tsa_rounds": 2}), tmp_path / "b")
    assert run(of(rounds=3, **{"method.tsa_rounds": 2}), tmp_path / "b")["rounds"] == 3
    assert resolve(of()).rounds == 2
