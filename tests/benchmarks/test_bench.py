"""The command line of the benchmarks, in small."""

import json

import jax
import numpy as np
import pytest

from experiments.benchmarks import WORKLOADS
from experiments.benchmarks import command as bench
from fedjax_ssl import cli

SMALL = ("--one-process", "--scale", "0.01", "--rounds", "2", "--repeats", "2")


@pytest.mark.promise
@pytest.mark.thorough
def test_json_has_one_object_per_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--workloads", "W2", "--json", *SMALL]) == 0
    output = capsys.readouterr().out.splitlines()
    (row,) = [json.loads(line) for line in output]
    assert (
        row["workload"] == "W2"
        and row["clients"] == 10
        and row["cohort_size"] == 1
        and row["blocks"] == 2
    )
    # One client of 60 examples per round, batches of 10.
    assert row["examples_per_second"] == pytest.approx(60 * row["client_updates_per_second"])
    assert row["local_steps_per_second"] == pytest.approx(6 * row["rounds_per_second"])
    assert row["rounds_per_second"] == pytest.approx(1 / row["seconds_per_round"])
    # Products, biases and softmax, forward and twice for the gradient.
    assert row["operations_per_example"] == 3 * (2 * 784 * 10 + 10 + 5 * 10)
    for field in (
        "compile_seconds",
        "peak_memory_bytes",
        "product_operations_per_second",
        "fraction_of_peak",
    ):
        assert row[field] > 0, field
    assert np.isfinite(row["loss"]) and row["device"].startswith("CPU") and "jax" in row["versions"]


@pytest.mark.thorough
def test_without_json_there_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--workloads", "W2", "--placement", "lanes", *SMALL]) == 0
    output = capsys.readouterr()
    header, rule, row, *below = output.out.splitlines()
    assert "examples/s" in header and set(rule) <= set("| -:") and row.startswith("| W2 ")
    assert header.count("|") == rule.count("|") == row.count("|")
    assert f"W2: {WORKLOADS['W2'][0].title}" in below
    assert "W2 ..." in output.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workloads", "W2,w5"), ("'w5'", "Did you mean 'W5'?", *WORKLOADS)),
        (("--platform", "cuda"), ("'cuda'", "gpu, tpu, cpu")),
        (
            ("--platform", "gpu", "--one-process"),
            ("--platform gpu: JAX computes on cpu here", "jax[cuda12]"),
        ),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
    for word in words:
        assert word in output.err


def test_every_workload_has_a_config_and_sizes_that_fit_its_title() -> None:
    for name, workload in ((name, one) for name, ways in WORKLOADS.items() for one in ways):
        sizes = workload.sizes()
        assert len(sizes) == workload.num_clients and sizes.min() >= 1, name
        assert sizes.mean() == pytest.approx(workload.mean_size, rel=0.01), name
        config = workload.config()
        assert config.method.name == workload.method
        assert config.rounds == workload.rounds + workload.rounds_before
        assert config.federated.cohort_size == workload.cohort_size <= workload.num_clients, name
        for field, value in workload.settings.items():
            assert config[field.split(".")[0]][field.split(".")[1]] == value, name


def test_fake_images_are_the_same_in_every_call_and_show_their_class() -> None:
    workload = WORKLOADS["W2"][0].scaled(0.01)
    dataset = workload.dataset()
    again = workload.dataset()
    np.testing.assert_array_equal(dataset.train.x, again.train.x)
    assert dataset.train.x.shape == (600, 28, 28, 1) and dataset.train.x.dtype == np.uint8
    means = np.stack(
        [dataset.train.x[dataset.train.y == label].mean(0) for label in range(10)]
    ).reshape(10, -1)
    nearest = ((dataset.train.x.reshape(600, 1, -1) - means) ** 2).sum(-1).argmin(1)
    assert (nearest == dataset.train.y).all()


@pytest.mark.thorough
def test_smoke_runs_what_it_has_time_for(capsys: pytest.CaptureFixture[str]) -> None:
    cached = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    arguments = (
        "--smoke",
        "0.005",
        "--platform",
        "cpu",
        "--json",
        *SMALL,
        "--workloads",
        "W2,W5",
    )
    try:
        assert bench.main([*arguments]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (
        first["workload"] == "W2"
        and first["seconds_per_round"] > 0
        and first["compile_seconds"] > 0
    )
    assert second["workload"] == "W5" and second["note"] == "not run: the time was over"


def test_a_workload_that_does_not_fit_is_told_by_a_note_and_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand more")

    monkeypatch.setattr(bench, "measure", full)
    cached = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    try:
        assert bench.main(["--smoke", "--workloads", "W2", "--one-process"]) == 1
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    assert "W2: RESOURCE_EXHAUSTED: out of memory" in capsys.readouterr().out.splitlines()
