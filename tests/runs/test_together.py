"""Runs of one process share datasets and programs; several at once are vectorized and leave
ordinary run folders.
"""

import importlib

import chex
import jax
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.data.federation.federated_data import of_one_shape
from fedjax_ssl.runs.loop import Point, run, run_batch
from fedjax_ssl.runs.shared import Shared
from tests.runs.test_resume import rows_of

ROUNDS = 4
RUNS = ((0, 0.3), (1, 0.1))  # seed and learning rate


def experiment(method="fedavg", labels=2, **fields):
    config = presets.digits_by_writer(method, labels)
    config.rounds = ROUNDS
    config.eval_every = 2
    config.optimizer.local_epochs = 1
    config.data.test_clients = 9
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Two runs that differ in seed and learning rate, one after another in one process, and what
    they share.
    """
    folder = tmp_path_factory.mktemp("alone")
    shared = Shared()
    for seed, rate in RUNS:
        config = experiment(seed=seed, **{"optimizer.learning_rate": rate})
        run(config, folder / f"{seed}-{rate}", shared=shared)
    return folder, shared


@pytest.mark.promise
@pytest.mark.thorough
def test_another_seed_or_learning_rate_needs_no_other_program(alone):
    folder, shared = alone
    assert sum(kind == "block" for kind, *_ in shared.compiled) == 1
    one, other = (rows_of(folder / f"{seed}-{rate}")[-1]["test_loss"] for seed, rate in RUNS)
    assert one != other


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:1 class without a label")
def test_runs_together_are_the_same_runs_and_a_mistake_stops_nobody(alone, tmp_path):
    folder, _ = alone
    points = [
        Point(
            configs.resolve(experiment(seed=seed, **{"optimizer.learning_rate": rate})),
            tmp_path / f"{seed}-{rate}",
        )
        for seed, rate in ((0, 0.3), (0, 0.1), (1, 0.1), (0, 0.2))
    ]
    points[3].config.data.test_clients = 100
    stopped = points[1]._replace(callbacks=[lambda block: True])
    shared = Shared()
    first, second, third, wrong = run_batch([points[0], stopped, *points[2:]], shared)
    assert isinstance(wrong, configs.ConfigError) and "test_clients" in str(wrong)
    assert second is None and not (tmp_path / "0-0.1" / "summary.json").exists()
    assert first["seed"] == 0 and third["seed"] == 1
    for name in ("0-0.3", "1-0.1"):
        for one, other in zip(rows_of(tmp_path / name), rows_of(folder / name), strict=True):
            for metric in other:
                np.testing.assert_allclose(one[metric], other[metric], rtol=1e-4, err_msg=metric)
    # What was stopped goes on alone, from its checkpoint.
    assert [row["round"] for row in rows_of(tmp_path / "0-0.1")] == [2]
    run(points[1].config, tmp_path / "0-0.1", shared=alone[1])
    assert [row["round"] for row in rows_of(tmp_path / "0-0.1")] == [2, 4]


@pytest.mark.thorough
def test_examples_are_held_once_for_all_seeds_and_tables_get_one_width():
    shared = Shared()
    given = [
        configs.resolve(
            experiment(
                seed=seed,
                **{
                    "partition.name": "dirichlet",
                    "partition.num_clients": 4,
                    "data.test_clients": 0,
                    "partition.alpha": 0.5,
                    "data.test_fraction": 0.2,
                },
            )
        )
        for seed in range(4)
    ]
    before = [shared.federation(shared.experiment(config)) for config in given]
    assert before[0].inputs is before[1].inputs
    assert len({one.max_examples for one in before}) > 1
    shared.align(given)
    after = [shared.federation(shared.experiment(config)) for config in given]
    assert {one.max_examples for one in after} == {max(one.max_examples for one in before)}
    assert jax.tree.structure(after[0]) == jax.tree.structure(after[1])
    for one, wide in zip(before, of_one_shape(before), strict=True):
        assert one.summary() == wide.summary()


@pytest.fixture
def pretended(monkeypatch):
    """A GPU is pretended where clients are placed: gives configs of two seeds, whose clients have
    other sizes, and of a split in equal parts, from a method and its settings.
    """
    for module in ("fedjax_ssl.runs.build", "fedjax_ssl.federated.execution"):
        monkeypatch.setattr(importlib.import_module(module), "backend", lambda: "gpu")
    fields = {
        "partition.num_clients": 12,
        "data.test_clients": 0,
        "data.test_fraction": 0.2,
        "federated.chunk_size": 2,
        "model.name": "linear",
    }
    unequal = fields | {"partition.name": "dirichlet", "partition.alpha": 0.5}
    splits = ((0, unequal), (1, unequal), (0, fields | {"partition.name": "iid"}))

    def of(method="fedavg", **settings):
        return [
            configs.resolve(experiment(method, "all", seed=seed, **one, **settings))
            for seed, one in splits
        ]

    return of


@pytest.mark.promise
@pytest.mark.thorough
def test_on_an_accelerator_a_program_has_no_more_of_a_split_than_how_clients_are_placed(pretended):
    one, other, equal = (Shared().program(config) for config in pretended())
    tables = [program.built.execution.all_clients.rows for program in (one, other)]
    assert not np.array_equal(tables[0][:, :9], tables[1][:, :9])
    assert one.code == other.code != equal.code


@pytest.mark.thorough
def test_on_an_accelerator_seeds_share_a_program_and_keep_their_bits(pretended):
    seeds = pretended()[:2]

    def trained(wanted):
        shared = Shared()
        shared.align(seeds)
        found = [shared.program(config) for config in wanted]
        after = [one.advance([one.init()], [one.inputs], 1).states[0] for one in found]
        (blocks,) = (value for (kind, *_), value in shared.compiled.items() if kind == "block")
        assert [choice.placement for choice in blocks[1]] == ["lanes"]
        return after

    chex.assert_trees_all_equal(trained(seeds)[1], *trained(seeds[1:]))
