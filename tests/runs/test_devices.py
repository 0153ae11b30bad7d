"""The choice of devices that share a cohort, by the work of a local step."""

import chex
import jax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl.runs.build import load_resolved
from fedjax_ssl.runs.devices import choose_devices

WIDE = {
    "model.hidden": (512, 512),
    "optimizer.batch_size": 20,
    "rounds": 2,
    "eval_every": 1,
    "partition.num_clients": 5,
}
WIDE["federated.cohort_size"] = 5


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        ({"model.hidden": (16,)}, 1),
        (WIDE, 4),
        (WIDE | {"federated.cohort_size": 3}, 3),
        (WIDE | {"federated.cohort_size": 1}, 1),
        (WIDE | {"federated.devices": 2}, 2),
        (WIDE | {"federated.reduce": "fast"}, 1),  # their number would decide the bits
    ],
)
def test_devices_share_a_cohort_of_work_enough(settings: dict, devices: int) -> None:
    config = configs.resolve(fs.load_config("digits", settings))
    assert choose_devices(config, load_resolved(config).dataset) == devices


def test_the_choice_changes_no_bit() -> None:
    def train(**more: int) -> tuple:
        return fs.make_train(fs.load_config("digits", WIDE | more))(jax.random.key(3))

    (state, metrics), (alone, metrics_alone) = train(), train(**{"federated.devices": 1})
    assert len(state.round.devices()) == 4 and len(alone.round.devices()) == 1
    chex.assert_trees_all_equal(jax.device_get((state.params, metrics)), jax.device_get((alone.params, metrics_alone)))
