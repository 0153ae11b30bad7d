"""Workloads measured on the device that is here, each beside the bound that follows from its own program."""

import dataclasses
import statistics
import time
from typing import Any, NamedTuple

import jax

from fedjax_ssl import data, runs
from fedjax_ssl.benchmarks.measure import Block, compiled_block, time_blocks
from fedjax_ssl.benchmarks.reading import Reading, least_turns, program_bytes, read
from fedjax_ssl.benchmarks.targets import TARGETS, target_of
from fedjax_ssl.benchmarks.workloads import WORKLOADS, Variant, Workload, prepared
from fedjax_ssl.errors import UserError

PLATFORMS = ("gpu", "tpu", "cpu")
# What is measured where nothing else is asked for, short compiles first: the time may be over before the last one.
SMOKE = (("W2", ""), ("W5", ""), ("W1", ""), ("W3", ""), ("W8", "64 seeds"), ("W7", "ProtoFSSL"), ("W7", "XCLP"))
NO_TIME = "not run: the time was over"
_NUMBERS = (
    *("seconds_per_round", "bound_seconds_per_round", "round_over_bound"),
    *("seconds_per_step", "bound_seconds_per_step", "step_over_bound"),
    *("kernels_per_step", "host_round_trips_per_step", "kernels_per_round"),
    *("program_bytes", "temporary_bytes", "peak_memory_bytes", "compile_seconds", "blocks", "warm", "rounds_per_block"),
)


class DeviceMissing(UserError):
    """The device that was asked for is not here."""


class SmokeOptions(NamedTuple):
    """What the command line decides."""

    repeats: int = 5  # timed blocks of rounds
    rounds: int | None = None  # per block; the workload's own by default
    scale: float = 1.0  # see `Workload.scaled`
    placement: str | None = None  # where the variant does not fix it
    seconds: float = 60.0  # for the workload, compiling included; a program that is being compiled is not interrupted


class Device(NamedTuple):
    """What JAX computes on here."""

    platform: str  # one of `PLATFORMS`
    kind: str  # as JAX calls it
    target: str | None  # a key of `TARGETS`; None: there are no bounds for it


class Measured(NamedTuple):
    """Rounds of a program, timed."""

    seconds_per_round: float
    blocks: int
    warm: bool  # False: the first block took so long that it is the only one
    turns: float | None  # of the loops of local steps in a round; None: not known exactly
    bound: float | None  # seconds of a round at least; None: not known
    reading: Reading
    block: Block


def device_here(asked: str | None) -> Device:
    """The device that JAX computes on in this process.

    Args:
        asked: one of `PLATFORMS` that it has to be; None: any.

    Raises:
        DeviceMissing: it is another one, or JAX does not start.
    """
    try:
        device, platform = jax.devices()[0], jax.default_backend()
    except RuntimeError as error:
        raise DeviceMissing(f"JAX finds no device to compute on: {str(error).splitlines()[0]}") from error
    if asked is not None and asked != platform:
        extra = {"gpu": "cuda12", "tpu": "tpu"}.get(asked)
        install = f"; for a {asked.upper()}, pip install 'jax[{extra}]'" if extra else ""
        raise DeviceMissing(
            f"--platform {asked}: JAX computes on {platform} here ({device.device_kind}). Check the driver, "
            f"$JAX_PLATFORMS and that JAX is installed for the device{install}. Without --platform, what is here is "
            "measured"
        )
    return Device(platform, device.device_kind, target_of(device.device_kind))


def beside_bounds(name: str, variant_name: str, options: SmokeOptions) -> dict[str, Any]:
    """Measures one variant of a workload, and reads its bounds from the program that was measured.

    A local step is timed by the difference between rounds with the workload's local epochs and with twice as many,
    where the time suffices for a second program.

    Args:
        name: a key of `WORKLOADS`.
        variant_name: of one of its variants.
        options: see `SmokeOptions`.

    Returns:
        Numbers and strings, ready for JSON; None where something is not known. Where the device has not enough memory,
        "note" says so; then there are no numbers, or, if it lacks for the second program alone, none of a step.

    Raises:
        ConfigError: a setting cannot be used.
    """
    begin = time.perf_counter()
    jax.config.update("jax_enable_compilation_cache", False)  # compile seconds are to be those of compiling
    workload, variant = prepared(name, variant_name, options.scale, options.placement)
    dataset, device = workload.dataset(), device_here(None)
    try:
        first = _measured(workload, variant, dataset, options, device)
        peak = runs.peak_memory_bytes()
    except jax.errors.JaxRuntimeError as error:
        return without_numbers(name, variant_name, options.scale, str(error).splitlines()[0], device.kind)
    step, note = None, ""
    if time.perf_counter() - begin < options.seconds / 2:
        try:
            step = _seconds_per_step(workload, variant, dataset, options, device, first)
        except jax.errors.JaxRuntimeError as error:
            note = f"twice the local epochs: {str(error).splitlines()[0]}"
    reading = first.reading
    target = TARGETS[device.target] if device.target else None
    bound_of_step = target.seconds(reading.step) if target else None
    on_accelerator = device.platform != "cpu"  # a CPU starts no kernels
    return {
        **without_numbers(name, variant_name, options.scale, note, runs.device_description()),
        "target": device.target,
        "seconds_per_round": first.seconds_per_round,
        "bound_seconds_per_round": first.bound,
        "round_over_bound": _ratio(first.seconds_per_round, first.bound),
        "seconds_per_step": step,
        "bound_seconds_per_step": bound_of_step,
        "step_over_bound": _ratio(step, bound_of_step),
        "kernels_per_step": reading.step.num_kernels if on_accelerator else None,
        "host_round_trips_per_step": reading.step.host_round_trips if on_accelerator else None,
        "kernels_per_round": reading.round.num_kernels if on_accelerator else None,
        "program_bytes": program_bytes(first.block.program),
        "temporary_bytes": first.block.temporary_bytes,
        "peak_memory_bytes": peak,
        "compile_seconds": first.block.compile_seconds,
        "blocks": first.blocks,
        "warm": first.warm,
        "rounds_per_block": options.rounds or workload.rounds,
    }


def without_numbers(name: str, variant_name: str, scale: float, note: str, device: str | None = None) -> dict[str, Any]:
    """A row of a workload that was not measured; `note` says why."""
    return {
        "workload": name,
        "variant": variant_name,
        "title": WORKLOADS[name].title,
        "scale": scale,
        "device": device,
        "target": None,
        **dict.fromkeys(_NUMBERS),
        "note": note,
        "versions": runs.versions(),
    }


def _measured(
    workload: Workload, variant: Variant, dataset: data.Dataset, options: SmokeOptions, device: Device
) -> Measured:
    rounds = options.rounds or workload.rounds
    _, _, block, choice = compiled_block(workload, variant, dataset, rounds)
    timings, totals = time_blocks(block.run, options.repeats, options.seconds / 4)
    reading = read(block.program.as_text(), rounds, host_drives=device.platform == "gpu")
    together = device.platform != "cpu" or variant.vectorized
    least = least_turns(totals["local_steps"] / rounds, variant.seeds if together else 1, choice.clients_at_once)
    equal = workload.sigma == 0 and workload.cohort_size % choice.clients_at_once == 0
    return Measured(
        seconds_per_round=statistics.median(timings.wall) / rounds,
        blocks=len(timings.wall),
        warm=timings.warm,
        turns=reading.turns if reading.turns is not None else least if equal else None,
        bound=reading.seconds_per_round(TARGETS[device.target], least) if device.target else None,
        reading=reading,
        block=block,
    )


def _seconds_per_step(
    workload: Workload,
    variant: Variant,
    dataset: data.Dataset,
    options: SmokeOptions,
    device: Device,
    first: Measured,
) -> float | None:
    """Seconds of a turn of the loop of local steps; None where turns are not known, or times differ by chance."""
    if first.turns is None:
        return None
    epochs = workload.config(variant).optimizer.local_epochs
    twice = dataclasses.replace(variant, settings={**variant.settings, "optimizer.local_epochs": 2 * epochs})
    second = _measured(workload, twice, dataset, options, device)
    more = None if second.turns is None else second.turns - first.turns
    longer = second.seconds_per_round - first.seconds_per_round
    return longer / more if more and longer > 0 else None


def _ratio(measured: float | None, bound: float | None) -> float | None:
    return measured / bound if measured and bound else None
