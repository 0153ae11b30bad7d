"""The rounds between two evaluations: one compiled program, nothing copied to the host, bfloat16, little memory."""

import jax
import jax.monitoring
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.experiment import build_method, federate, load_experiment
from fedjax_ssl.experiment.rounds import Programs


def programs(**fields):
    config = presets.digits_by_writer("fedavg", "2")
    config.rounds, config.optimizer.local_epochs = 6, 1
    config.update_from_flattened_dict(fields)
    experiment, key = load_experiment(config), jax.random.key(0)
    federation = federate(experiment, key)
    method = build_method(experiment, federation)
    return Programs(method, key, federation), jax.jit(method.init)(key, federation)


def test_after_the_first_block_nothing_is_compiled_and_nothing_is_copied_unasked():
    blocks, first = programs()
    seconds = {"compile_seconds": 0.0, "train_seconds": 0.0}
    _, state = blocks.advance(first, 2, seconds)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first.params))  # it made room for the new one
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **details: compiled.append(event) if "backend_compile" in event else None
    )
    once = seconds["compile_seconds"]
    with jax.transfer_guard("disallow"):
        row, state = blocks.advance(state, 2, seconds)
        row, state = blocks.advance(state, 2, seconds)
    assert not compiled and seconds["compile_seconds"] == once > 0
    assert row["round"] == 6 and np.isfinite(row["test_loss"])


def test_bfloat16_rounds_keep_float32_parameters_and_learn():
    blocks, state = programs(precision="bf16")
    row, state = blocks.advance(state, 6, {"compile_seconds": 0.0, "train_seconds": 0.0})
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    assert row["test_accuracy"] > 0.2  # chance: 0.1


def test_too_little_memory_names_the_settings_to_lower(monkeypatch):
    blocks, state = programs()

    def exhausted(*arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.\nmore")

    blocks._compiled[2] = exhausted
    with pytest.raises(configs.ConfigError, match=r"chunk_size.*batch_size.*Out of memory allocating 123 bytes\.\)$"):
        blocks.advance(state, 2, {"compile_seconds": 0.0, "train_seconds": 0.0})
