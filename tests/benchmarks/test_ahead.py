"""Programs for devices that are not here: what is asked for, what is told, and that every shipped config compiles."""

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from fedjax_ssl import backend
from fedjax_ssl.benchmarks import TARGETS, ahead, ahead_table, targets
from fedjax_ssl.benchmarks.stand_in import stand_in_experiment
from fedjax_ssl.federated import Choice, device_memory
from fedjax_ssl.runs.build import build_method, federate
from fedjax_ssl.shipped import shipped_configs
from tests.benchmarks.mistakes import check_refused
from tests.benchmarks.test_hlo import LOOPS
from tests.benchmarks.test_reading import with_two_kinds_of_rounds

FIELDS = [
    *("workload", "variant", "target", "devices", "kernels_per_step", "host_round_trips_per_step", "kernels_per_round"),
    *("bytes_per_step", "operations_per_step", "temporary_bytes", "estimated_bytes", "bound_seconds_per_step"),
    *("bound_seconds_per_round", "bound_seconds_per_stage", "rounds_per_stage", "rounds_per_run"),
    *("bound_seconds_per_run", "program_bytes"),
    *("compile_seconds", "unordered_sums", "collectives_per_round"),
]
TRAINED = [name for name in shipped_configs() if not name.endswith("_predict")]
WITHOUT_CLIENTS = {"digits_single"}  # trained on all examples at once


def compiled(
    text: str = LOOPS,
    choices: tuple[Choice, ...] = (Choice("chunked", 5, 10, 1000),),
    rounds: tuple[int, ...] = (100,),
) -> ahead.Compiled:
    sizes = {"argument": 30, "output": 20, "alias": 10, "temp": 60}
    memory = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
    program = SimpleNamespace(as_text=lambda: text, memory_analysis=lambda: memory)
    options = ahead.AheadOptions("h100")
    length = ahead.Length(rounds, 10)
    return ahead._compiled("W2", "", options, program, 2, list(choices), 57, 1.5, turns=6, length=length)


def rows_of(target: str, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """What the command says, in a process of its own with these environment variables."""
    try:
        targets.check_compiler(target, TARGETS[target])
    except targets.CompilerMissing as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "fedjax_ssl.bench", "--target", target, *arguments, "--json", "--one-process"]
    # The suite's flags are for CPUs; a TPU's compiler ends at those that it does not know.
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain | variables)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        assert sorted(row) == sorted(FIELDS) and row["kernels_per_step"] > 0 and row["temporary_bytes"] > 0
    return rows


# A v5e's compiler then keeps nothing in the chip's own memory, and a GPU's leaves all products to cuBLAS.
NOTHING_ON_CHIP = {"LIBTPU_INIT_ARGS": "--xla_vf_vmem_memory_space_assignment=false"}
CUBLAS = {"XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false"}
# Of cuBLAS in every program that calls it, on an H100 and on GPUs before it.
WORKSPACE, SMALL_WORKSPACE = 32 << 20, 4 << 20


def check_estimate(row: dict[str, Any], *arguments: str) -> None:
    """Never below what the compiler takes, and near it, or on a v5e near what it takes with nothing on the chip."""
    took, estimated = row["temporary_bytes"], row["estimated_bytes"]
    assert took <= estimated
    if not near(estimated, took) and row["target"] == "tpu-v5e":
        (row,) = rows_of("tpu-v5e", *arguments, **NOTHING_ON_CHIP)
    assert near(estimated, row["temporary_bytes"])


def near(estimated: int, took: int) -> bool:
    """Within 1.5 above, apart from numbers and short tables."""
    return estimated <= 1.5 * took + (4 << 20)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["h100", "tpu-v5e"])
@pytest.mark.parametrize("workload", ["W1", "W2", "W3", "W5"])
def test_the_estimate_of_the_memory_is_not_below_what_the_compiler_takes(workload: str, target: str) -> None:
    for row in rows_of(target, "--workloads", workload):
        check_estimate(row)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["h100", "tpu-v5e"])
def test_a_run_of_two_stages_has_a_bound(target: str) -> None:
    (row,) = rows_of(target, "--configs", "digits_xclp")
    first, second = row["bound_seconds_per_stage"]
    assert 0 < first < second and len(row["rounds_per_stage"]) == 2
    rounds = sum(count * bound for count, bound in zip(row["rounds_per_stage"], (first, second), strict=True))
    assert rounds < row["bound_seconds_per_run"]


def test_a_row_has_the_fields_that_are_promised_and_nothing_else() -> None:
    row = compiled().row()
    assert sorted(row) == sorted(FIELDS) and json.loads(json.dumps(row)) == row
    assert row["kernels_per_step"] == 2 and row["host_round_trips_per_step"] == 1 and row["kernels_per_round"] == 4
    assert row["temporary_bytes"] == 60 and row["estimated_bytes"] == 57
    assert row["program_bytes"] == 30 + 20 - 10 + 60
    assert row["bound_seconds_per_step"] == pytest.approx(2 * 3e-6)
    # Six local steps and four kernels beside them in each of 100 rounds, and an evaluation of one after every tenth.
    assert row["bound_seconds_per_round"] == pytest.approx((6 * 2 + 4) * 3e-6)
    assert row["bound_seconds_per_run"] == pytest.approx((100 * 16 + 10) * 3e-6)


def test_the_bound_of_a_run_adds_up_the_rounds_of_its_stages() -> None:
    staged = compiled(with_two_kinds_of_rounds("stage_0", "stage_1"), rounds=(30, 70))
    row, bounds = staged.row(), [(5 * 2 + 5) * 3e-6, (5 * 2 + 1) * 3e-6]
    assert row["bound_seconds_per_stage"] == pytest.approx(bounds) and row["rounds_per_stage"] == [30, 70]
    rounds = 30 * bounds[0] + 70 * bounds[1]
    assert row["bound_seconds_per_round"] == pytest.approx(rounds / 100)
    assert row["bound_seconds_per_run"] == pytest.approx(rounds + 10 * 3e-6)
    assert "a run is rounds with their local steps, by stage 30 of 0.045 ms, 70 of 0.033 ms" in ahead_table([staged])
    elsewhere = staged._replace(length=ahead.Length((100,), 10))
    assert elsewhere.bound_seconds_per_round is None and elsewhere.bound_seconds_per_run is None


def test_a_loop_of_one_step_is_none_in_the_program_and_still_counts() -> None:
    one = compiled(LOOPS.replace("vmap(local_step)/dot", "dot").replace("body/draw", "body/while/body/local_step/draw"))
    assert one.reading.step.num_kernels == 1 and not one.reading.loops and one.reading.turns == 1


def test_the_table_says_that_times_are_bounds() -> None:
    header, rule, row, _, *below = ahead_table([compiled()]).splitlines()
    assert header.count("|") == rule.count("|") == row.count("|") and "kernels a step" in header
    assert "compiled here, not run there" in below[0] and "bounds" in below[0]
    assert below[-1] == "W2: a run is 100 rounds with their local steps and 10 evaluations"


def test_what_is_traced_for_another_device_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # what other tests compiled
    assert backend.backend() == jax.default_backend() and backend.elsewhere() is None
    with backend.tracing_for(TARGETS["tpu-v5e"].elsewhere):
        assert backend.backend() == "tpu" and device_memory() == TARGETS["tpu-v5e"].memory
    assert backend.backend() == jax.default_backend()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--target", "h10"), ("'h10'", "Did you mean 'h100'?", "tpu-v5e")),
        (("--target", "h100", "--repeats", "2"), ("--repeats does nothing with --target",)),
        (("--configs", "digits"), ("--configs needs --target",)),
        (("--target", "tpu-v5e", "--devices", "8"), ("--devices is 8", "1 to 4")),
        (("--target", "h100", "--configs", "digits_xlcp"), ("'digits_xlcp'", "digits_xclp")),
        (("--target", "h100", "--configs", "digits,digits_predict"), ("'digits_predict'", "without training")),
        (("--target", "h100", "--configs", "digits", "--workloads", "W2"), ("takes the place of --workloads",)),
        (("--target", "tpu-v6e"), ("libtpu", "pip install 'fedjax_ssl[aot-tpu]'")),
        (("--target", "a100"), ("jax_plugins.xla_cuda12", "no device", "pip install 'fedjax_ssl[aot-gpu]'")),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(targets, "_installed", lambda module: False)
    check_refused(arguments, words, capsys)


def test_a_compiler_for_another_jax_is_named_with_the_version_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_installed", lambda module: True)
    versions = {"jax-cuda12-plugin": "0.12.0", "jaxlib": "0.10.2"}
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    with pytest.raises(targets.CompilerMissing, match=r"installed is 0\.12\.0.*jax-cuda12-plugin==0\.10\.2"):
        targets.check_compiler("h100", TARGETS["h100"])


def test_a_config_that_does_not_train_has_nothing_to_compile() -> None:
    with pytest.raises(ahead.ConfigError, match=r"predictions without training.*all that do not end in _predict"):
        ahead.config_of("digits_predict", ahead.AheadOptions("h100"))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["npz", "npz_fedul", "npz_xclp", "folder", "table"])
def test_a_config_for_files_of_ones_own_has_clients_and_labels_without_a_file(name: str) -> None:
    experiment = stand_in_experiment(name, ahead.config_of(name, ahead.AheadOptions("h100")))
    federation = federate(experiment, jax.random.key(0))
    assert federation.num_clients >= 20 and build_method(experiment, federation) is not None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("workload", "variant", "step", "beside"), [("W2", "", 8, 40), ("W8", "64 seeds", 8, 40), ("W5", "", 30, 60)]
)
def test_a_local_step_takes_no_more_kernels_than_it_did(workload: str, variant: str, step: int, beside: int) -> None:
    row = next(row for row in rows_of("h100", "--workloads", workload) if row["variant"] == variant)
    assert row["kernels_per_step"] <= step and row["kernels_per_round"] <= beside
    assert row["host_round_trips_per_step"] == 0


@pytest.mark.thorough
def test_the_kernels_of_a_local_step_are_started_at_once(tmp_path: Path) -> None:
    """XLA makes one command buffer (a CUDA graph) of them; the innermost loop of the program has nothing beside it."""
    rows_of("h100", "--workloads", "W2", XLA_FLAGS=f"--xla_dump_to={tmp_path} --xla_dump_hlo_module_re=.*advance.*")
    (file,) = tmp_path.glob("*thunk_sequence_after_thunk_passes.txt")
    *_, loop = file.read_text().split("kWhile")
    _, first, *kernels = loop.partition("body:")[2].splitlines()
    depth = len(first) - len(first.lstrip())
    inside = list(itertools.takewhile(lambda line: len(line) - len(line.lstrip()) > depth, kernels))
    assert "kCommandBuffer [source | sink]" in first and len(inside) == 8


@pytest.mark.thorough
def test_convolutional_steps_stay_near_their_products() -> None:
    for row in rows_of("h100", "--workloads", "W7"):
        products = row["operations_per_step"] / TARGETS["h100"].peak
        assert row["bound_seconds_per_step"] <= 1.5 * products
        assert row["unordered_sums"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["a100", "rtx4090"])
def test_convolutions_of_many_clients_fit_other_gpus(target: str) -> None:
    """A multiprocessor of the second has 100 KB of shared memory, less than half of an H100's."""
    for row in rows_of(target, "--workloads", "W2,W7"):
        workspace = 0 if row["workload"] == "W7" else SMALL_WORKSPACE  # little beside gigabytes
        assert row["temporary_bytes"] <= row["estimated_bytes"] + workspace and row["unordered_sums"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("workload", ["W2", "W8"])
def test_gradients_that_are_not_fused_into_the_update_are_estimated(workload: str) -> None:
    fused, written = (rows_of("h100", "--workloads", workload, **flags)[-1] for flags in ({}, CUBLAS))
    took, estimated = written["temporary_bytes"] - WORKSPACE, written["estimated_bytes"]
    assert fused["temporary_bytes"] < took <= estimated == fused["estimated_bytes"] <= 1.5 * took


@pytest.mark.thorough
@pytest.mark.parametrize(("target", "devices"), [("h100", 1), ("tpu-v5e", 1), ("tpu-v5e", 4)])
@pytest.mark.parametrize("config", TRAINED)
def test_every_shipped_config_compiles(config: str, target: str, devices: int) -> None:
    arguments = ("--configs", config, "--devices", str(devices))
    (row,) = rows_of(target, *arguments)
    assert row["workload"] == config
    assert ("all-gather" in row["collectives_per_round"]) == (devices > 1 and config not in WITHOUT_CLIENTS)
    check_estimate(row, *arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["h100", "tpu-v5e"])
def test_several_devices_share_a_cohort_and_gather_what_it_trained(target: str) -> None:
    arguments = ("--workloads", "W2", "--devices", "4")
    (row,) = rows_of(target, *arguments)
    check_estimate(row, *arguments)
    # Twelve slots on four devices; every device gets the 7,850 parameters of all of them.
    assert row["devices"] == 4 and row["collectives_per_round"]["all-gather"]["bytes"] >= 12 * 7850 * 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(TARGETS))
def test_a_target_is_what_its_compiler_takes_it_for(name: str) -> None:
    try:
        targets.check_compiler(name, TARGETS[name])
    except targets.CompilerMissing as error:
        pytest.skip(str(error))
    program = (
        "from fedjax_ssl.benchmarks import prepare, targets; "
        f"prepare({name!r}); print(targets.devices(targets.TARGETS[{name!r}])[0].device_kind)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert targets.target_of(done.stdout.strip()) == name
