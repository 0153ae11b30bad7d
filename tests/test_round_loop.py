"""The rounds between two evaluations: one compiled program, nothing copied to the host, bfloat16, little memory."""

import jax
import jax.monitoring
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.runs.build import build_method, execution_of, federate, load_experiment
from fedjax_ssl.runs.compile import Programs, code_of, inputs_of


def programs(**fields):
    config = presets.digits_by_writer("fedavg", "2")
    config.rounds, config.optimizer.local_epochs = 6, 1
    config.update_from_flattened_dict(fields)
    experiment, key = load_experiment(config), jax.random.key(0)
    federation = federate(experiment, key)
    execution = execution_of(experiment, federation, alone=True)
    code = code_of(experiment, execution, build_method(experiment, federation, execution=execution))
    inputs, blocks = inputs_of(experiment.config, key, federation), Programs()

    def advance(state, rounds):
        (row,), (state,), *_ = blocks.advance(code, [state], [inputs], rounds)
        return row, state

    return advance, blocks.init(code, inputs)


def test_after_the_first_block_nothing_is_compiled_and_nothing_is_copied_unasked():
    advance, first = programs()
    _, state = advance(first, 2)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first.params))  # it made room for the new one
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **details: compiled.append(event) if "backend_compile" in event else None
    )
    with jax.transfer_guard("disallow"):
        row, state = advance(state, 2)
        row, state = advance(state, 2)
    assert not compiled
    assert row["round"] == 6 and np.isfinite(row["test_loss"])


def test_bfloat16_rounds_keep_float32_parameters_and_learn():
    advance, state = programs(precision="bf16")
    row, state = advance(state, 6)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    assert row["test_accuracy"] > 0.2  # chance: 0.1


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            "Out of memory allocating 123 bytes.\nmore",
            r"chunk_size.*batch_size.*Out of memory allocating 123 bytes\.\)$",
        ),
        ("Shared memory size limit exceeded", r"^a kernel.*needs more shared memory.*triton_gemm=false.*exceeded\)$"),
    ],
)
def test_too_little_memory_names_the_settings_to_change(words, match, monkeypatch):
    advance, state = programs()

    def exhausted(*arguments):
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {words}")

    monkeypatch.setattr(Programs, "compile", lambda *given: (exhausted, ()))
    with pytest.raises(configs.ConfigError, match=match):
        advance(state, 2)
