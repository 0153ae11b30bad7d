"""Measurements beside their bounds: what is told of the device, the table, the page, and a run on this CPU."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fedjax_ssl import bench
from fedjax_ssl.benchmarks import TARGETS, WORKLOADS, agreement, page, smoke, smoke_table, targets
from tests.benchmarks.mistakes import check_refused

ROW = {
    **smoke.without_numbers("W2", "", 1.0, "", "NVIDIA H100 80GB HBM3"),
    **dict.fromkeys(smoke._NUMBERS, 2.0),
    "target": "h100",
}


def gpu(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


def test_a_device_is_found_among_the_targets_by_what_jax_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu("NVIDIA H100 80GB HBM3", monkeypatch)
    assert smoke.device_here("gpu") == ("gpu", "NVIDIA H100 80GB HBM3", "h100")
    gpu("NVIDIA H100 PCIe", monkeypatch)  # slower memory: another device
    assert smoke.device_here(None).target is None
    assert targets.target_of("TPU v5 lite") == "tpu-v5e" and targets.target_of("TPU v6 lite") == "tpu-v6e"


def test_a_device_that_is_not_here_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(smoke.DeviceMissing, match=r"--platform gpu: JAX computes on cpu here.*jax\[cuda12\]"):
        smoke.device_here("gpu")

    def no_driver() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'\nmore")

    monkeypatch.setattr(jax, "devices", no_driver)
    with pytest.raises(smoke.DeviceMissing, match="finds no device to compute on: Unable to initialize backend 'cuda'"):
        smoke.device_here(None)


def test_a_step_is_the_difference_to_twice_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, variant = WORKLOADS["W2"], WORKLOADS["W2"].variants[0]

    def measured(workload: Any, variant: Any, *_: Any) -> smoke.Measured:
        assert variant.settings["optimizer.local_epochs"] == 2
        return times(seconds=0.020, turns=12.0)

    def times(seconds: float, turns: float | None) -> smoke.Measured:
        return smoke.Measured(seconds, 5, True, turns, None, None, None)  # type: ignore[arg-type]

    def step(first: smoke.Measured) -> float | None:
        return smoke._seconds_per_step(workload, variant, None, smoke.SmokeOptions(), None, first)  # type: ignore[arg-type]

    monkeypatch.setattr(smoke, "_measured", measured)
    assert step(times(seconds=0.014, turns=6.0)) == pytest.approx(0.001)
    assert step(times(seconds=0.014, turns=None)) is None
    assert step(times(seconds=0.021, turns=6.0)) is None  # by chance


def test_the_table_has_times_beside_bounds_and_what_they_were_measured_on() -> None:
    failed = smoke.without_numbers("W7", "XCLP", 1.0, "RESOURCE_EXHAUSTED: out of memory")
    header, rule, row, other, _, *below = smoke_table([ROW, failed], "fedjax-ssl bench --smoke").splitlines()
    assert {line.count("|") for line in (header, rule, row, other)} == {len(smoke_columns(header)) + 1}
    assert row.split("|")[3].strip() == "2e+03" and "3.35 TB/s, 495 TFLOP/s" in below[0]
    assert "- W7 XCLP: RESOURCE_EXHAUSTED: out of memory" in below
    assert below[-2].startswith("- NVIDIA H100 80GB HBM3; python ") and below[-1].endswith("`fedjax-ssl bench --smoke`")
    alone = smoke_table([{**ROW, "target": None, "bound_seconds_per_round": None}], "x")
    assert "There are no bounds for this device." in alone and alone.splitlines()[0].count("bound") == 1


def smoke_columns(header: str) -> list[str]:
    return [title.strip() for title in header.strip("|").split("|")]


def test_a_page_keeps_a_section_per_device_and_everything_else(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"# Speed\n\n{page.BEGIN}\n\nNothing yet.\n\n{page.END}\n\nThe rest.\n")
    page.write_section(path, "TPU v5e", "| a |\n")
    page.write_section(path, "H100", "| b |")
    first = path.read_text()
    page.write_section(path, "H100", "| b |")
    assert path.read_text() == first
    assert first == (
        f"# Speed\n\n{page.BEGIN}\n\n#### H100\n\n| b |\n\n#### TPU v5e\n\n| a |\n\n{page.END}\n\nThe rest.\n"
    )
    page.write_section(path, "H100", "| c |")
    assert path.read_text() == first.replace("| b |", "| c |")


def test_the_page_of_the_benchmarks_has_a_place_for_them() -> None:
    page.check_page(Path(__file__).parents[2] / "docs" / "benchmarks.md")


@pytest.mark.parametrize("text", ["", f"{page.END}\n{page.BEGIN}\n", f"{page.BEGIN}\n{page.BEGIN}\n{page.END}\n"])
def test_a_page_without_markers_is_refused_before_anything_is_measured(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    assert bench.main(["bench", "--smoke", "--docs", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and "has no place for measurements" in output.err
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--smoke", "--target", "h100"), ("--smoke does nothing with --target",)),
        (("--smoke", "--limit", "3"), ("--limit does nothing with --smoke",)),
        (("--smoke", "--configs", "digits"), ("--configs needs --target",)),
        (("--smoke", "0"), ("--smoke is 0", "above 0")),
        (("--smoke", "--platform", "cuda"), ("'cuda'", "gpu, tpu, cpu")),
        (("--smoke", "--docs", "no/page.md"), ("no/page.md cannot be read",)),
        (("--platform", "gpu"), ("--platform needs --smoke",)),
        (("--docs", "docs/benchmarks.md"), ("--docs needs --smoke",)),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    check_refused(arguments, words, capsys)


def test_what_was_not_run_for_want_of_memory_is_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str, variant: str, options: smoke.SmokeOptions) -> dict[str, Any]:
        return smoke.without_numbers(name, variant, options.scale, "RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(bench, "beside_bounds", full)
    assert bench.main(["bench", "--smoke", "--workloads", "W2", "--one-process", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["note"].startswith("RESOURCE_EXHAUSTED")


@pytest.mark.thorough
def test_a_smoke_run_on_this_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"{page.BEGIN}\n{page.END}\n")
    monkeypatch.setattr(smoke, "target_of", lambda kind: "h100")  # so that there are bounds
    small = ("--one-process", "--scale", "0.01", "--rounds", "2", "--repeats", "2", "--workloads", "W2")
    cached = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    try:
        assert bench.main(["bench", "--smoke", "--platform", "cpu", "--json", "--docs", str(path), *small]) == 0
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["workload"] == "W2" and row["note"] == "" and row["kernels_per_step"] is None
    for field in ("seconds_per_round", "bound_seconds_per_round", "bound_seconds_per_step", "program_bytes"):
        assert row[field] > 0, field
    # One client with 60 examples in batches of 10.
    launch = TARGETS["h100"].launch
    assert row["bound_seconds_per_round"] >= 6 * row["bound_seconds_per_step"] >= 6 * launch
    assert "| W2 " in path.read_text() and "#### CPU" in path.read_text()


@pytest.mark.thorough
def test_own_convolutions_agree_with_xla_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agreement.compare_convolutions().off is None  # a CPU takes none of them
    monkeypatch.setattr(agreement, "compiles_kernels", lambda: True)
    off = agreement.compare_convolutions(layers=(), chain=(2, 3, (3, 16))).off
    assert off is not None and 0 < off < 1e-5
    layer = (1, 4, 4, 16, 1)
    assert 0 < agreement._off(layer, jnp.float32) < 1e-5
    assert 0 < agreement._off(layer, jnp.bfloat16) < agreement.ALLOWED
    monkeypatch.setattr(agreement, "_off", lambda layer, _: float("nan") if layer else 0.0)
    monkeypatch.setattr(agreement, "_off_with_norms", lambda *_: 0.0)
    off = agreement.compare_convolutions(layers=((), (1,), ())).off
    assert off is not None and math.isnan(off)


@pytest.mark.parametrize(
    ("found", "agree", "word"),
    [
        (agreement.Agreement(0.001), True, "at most 0.1 %"),
        (agreement.Agreement(0.3), False, "more than rounding"),
        (agreement.Agreement(float("nan")), False, "nan"),
        (agreement.Agreement(None, "no such GPU"), True, "not taken on this GPU: no such GPU"),
        (None, False, "could not be compared"),  # the process died
    ],
)
def test_a_disagreement_is_told_with_what_to_do(
    found: agreement.Agreement | None,
    agree: bool,
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "compare_convolutions", lambda: found)
    assert bench._own_kernels_agree(one_process=True) is agree
    told = capsys.readouterr().err
    assert word in told and ("--model.lowering=xla" in told) is not agree


def test_convolutions_that_do_not_run_are_told_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: no such instruction\nand more")

    monkeypatch.setattr(bench, "compare_convolutions", fail)
    assert not bench._own_kernels_agree(one_process=True)
    assert "do not run here: INTERNAL: no such instruction; --model.lowering=xla" in capsys.readouterr().err
