"""The choice of devices that share a cohort, by the work of a local step."""

import os
import subprocess
import sys

import chex
import jax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl import processor
from fedjax_ssl.runs.build import load_resolved
from fedjax_ssl.runs.devices import choose_devices

WIDE = {
    "model.hidden": (256,),
    "optimizer.batch_size": 100,
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


def test_a_cohort_whose_values_fill_the_memory_stays_on_one_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = configs.resolve(fs.load_config("digits", WIDE))
    # 19,210 parameters of 5 clients, once more than on 4 devices: 1.9 MB
    dataset = load_resolved(config).dataset
    for memory, devices in ((10_000_000, 4), (6_000_000, 1)):
        monkeypatch.setattr(processor, "memory", lambda memory=memory: memory)
        assert choose_devices(config, dataset) == devices


@pytest.mark.thorough  # beside tests/runs/test_client_models.py
def test_the_choice_changes_no_bit() -> None:
    def train(**more: int) -> tuple:
        return fs.make_train(fs.load_config("digits", WIDE | more))(jax.random.key(3))

    (state, metrics) = train()
    (alone, metrics_alone) = train(**{"federated.devices": 1})
    assert len(state.round.devices()) == 4 and len(alone.round.devices()) == 1
    chex.assert_trees_all_equal(
        jax.device_get((state.params, metrics)), jax.device_get((alone.params, metrics_alone))
    )


@pytest.mark.thorough
@pytest.mark.promise
def test_a_config_is_resolved_before_jax_starts():
    """Only then can a process for small steps have one thread."""
    code = (
        "import os, fedjax_ssl as fs\nfrom fedjax_ssl import config\nfrom "
        "fedjax_ssl.runs.devices import start_processor\nresolved = "
        "config.resolve(fs.load_config('digits_fedavg', {'optimizer.schedule': 'cosine'}))\n"
        "start_processor(resolved, fs.load_dataset('digits'))\nprint(os.environ.get('NPROC'))"
    )
    cleared = {
        name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=cleared, check=True
    )
    assert done.stdout.strip() == ("1" if processor.cores() > 1 else "None")
