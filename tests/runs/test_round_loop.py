"""The rounds between two evaluations: one compiled program, nothing copied to the host,
bfloat16, little memory.
"""

import jax
import jax.monitoring
import numpy as np
import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import presets
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.program import Program
from fedjax_ssl.runs.shared import Shared


def program(**fields):
    config = presets.digits_by_writer("fedavg", 2)
    config.rounds = 6
    config.optimizer.local_epochs = 1
    config.update_from_flattened_dict(fields)
    shared = Shared()
    ready = shared.program(configs.resolve(config))

    def advance(state, rounds):
        (row,), (state,), *_ = ready.advance([state], [ready.inputs], rounds)
        return row, state

    return advance, ready.init()


def test_after_the_first_block_nothing_is_compiled_and_nothing_is_copied_unasked():
    advance, first = program()
    _, state = advance(first, 2)
    # it made room for the new one
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(first.params))
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration, **details: (
            compiled.append(event) if "backend_compile" in event else None
        )
    )
    with jax.transfer_guard("disallow"):
        row, state = advance(state, 2)
        row, state = advance(state, 2)
    assert not compiled
    assert row["round"] == 6 and np.isfinite(row["test_loss"])


def test_bfloat16_rounds_keep_float32_parameters_and_learn():
    advance, state = program(precision="bf16")
    row, state = advance(state, 6)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype(np.float32)}
    assert row["test_accuracy"] > 0.2  # chance: 0.1


def test_too_little_memory_names_the_settings_to_change(monkeypatch):
    advance, state = program()

    def exhausted(*arguments):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.\nmore"
        )

    monkeypatch.setattr(Program, "compile", lambda *given: (exhausted, ()))
    with pytest.raises(
        configs.ConfigError,
        match=r"chunk_size.*batch_size.*Out of memory allocating 123 bytes\.\)$",
    ):
        advance(state, 2)


# notes of the same settings, and JAX's of an index beyond 32 bits
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("digits_fedavg", "optimizer.batch_size", 10**9),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("digits_fedavg", "optimizer.local_epochs", 10**9),
                ("digits_fedavg", "model.hidden", (10**6, 10**6)),
                ("digits_xclp", "method.num_neighbors", 10**9),
                ("digits_protofssl", "method.num_query", 10**9),
            )
        ),
    ],
)
def test_a_run_that_no_memory_holds_is_one_message(tmp_path, name, field, value):
    config = configs.load(name, [(field, value), ("rounds", 2), ("eval_every", 1)])
    if "warmup_rounds" in config.method:
        config.method.warmup_rounds = 1
    with pytest.raises(
        configs.ConfigError, match=r"(would need|can be counted).*batch_size.*cohort_size"
    ):
        run(config, tmp_path / "run")
