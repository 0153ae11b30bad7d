"""Ways to convolve many clients' images, each with its own kernel, compiled for a device that is not here.

    python experiments/benchmarks/conv_ahead.py                     # an H100; extra aot-gpu
    python experiments/benchmarks/conv_ahead.py --target tpu-v5e    # extra aot-tpu

A row is a program of one layer's results and both gradients, read as `python -m fedjax_ssl.bench --target` reads one:
kernels, bytes, a bound of its time, temporaries, and operations whose sums a GPU may add in another order next time.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from fedjax_ssl import backend
from fedjax_ssl.benchmarks import ahead, hlo
from fedjax_ssl.benchmarks.targets import TARGETS, devices
from fedjax_ssl.models import conv2d

# clients, images of each, side, channels, filters, padding
LAYERS = {
    "5 x 100 x 32x32x128 -> 128": (5, 100, 32, 128, 128, "SAME"),
    "5 x 130 x 4x4x512 -> 512": (5, 130, 4, 512, 512, "SAME"),
    "10 x 20 x 26x26x32 -> 64": (10, 20, 26, 32, 64, "VALID"),
    "10 x 20 x 28x28x1 -> 32": (10, 20, 28, 1, 32, "VALID"),
}


def together(lowering: str) -> Callable[..., Any]:
    """All clients at once."""
    return lambda images, kernels, targets, **given: jax.vmap(
        lambda x, k, t: _pass(x, k, t, lowering=lowering, **given)
    )(images, kernels, targets)


def in_turn(images: jax.Array, kernels: jax.Array, targets: jax.Array, **given: Any) -> Any:
    """One client after another, by XLA's own convolution."""
    return jax.lax.map(lambda one: _pass(*one, lowering="lax", **given), (images, kernels, targets))


def _pass(images: jax.Array, kernel: jax.Array, target: jax.Array, **given: Any) -> tuple[jax.Array, ...]:
    outputs, pull = jax.vjp(lambda x, k: conv2d(x, k, **given), images, kernel)
    return outputs, *pull(target)


WAYS: dict[str, tuple[Callable[..., Any], Any]] = {
    "auto": (together("auto"), jnp.float32),
    "auto, bf16": (together("auto"), jnp.bfloat16),
    "slices": (together("slices"), jnp.float32),
    "slices, bf16": (together("slices"), jnp.bfloat16),
    "rows": (together("rows"), jnp.float32),
    "winograd": (together("winograd"), jnp.float32),
    "native, all at once": (together("lax"), jnp.float32),
    "native, in turn": (in_turn, jnp.float32),
}


def row(layer: tuple[Any, ...], way: str, target_name: str) -> str:
    """A line of the table: what the program of a layer does."""
    clients, count, side, channels, filters, padding = layer
    function, dtype = WAYS[way]
    out = side if padding == "SAME" else side - 2
    shapes = (count, side, side, channels), (3, 3, channels, filters), (count, out, out, filters)
    target = TARGETS[target_name]
    place = SingleDeviceSharding(devices(target)[0])
    with backend.tracing_for(target.elsewhere):
        program = jax.jit(lambda *arrays: function(*arrays, padding=padding), in_shardings=place, out_shardings=place)
        traced = program.trace(*(jax.ShapeDtypeStruct((clients, *shape), dtype) for shape in shapes))
        compiled = traced.lower(lowering_platforms=backend.lowering_platforms()).compile()
    parsed = hlo.parse(compiled.as_text())
    _, part = hlo.steps_and_rest(parsed, "no such scope", target.host_drives)
    sums = len(hlo.unordered_sums(parsed)) if target.host_drives else 0
    peak = target.peak * (2 if dtype == jnp.bfloat16 and target.host_drives else 1)
    cells = (
        f"{part.num_kernels:,.0f}",
        f"{part.bytes / 1e9:.2f}",
        f"{part.bytes / target.bandwidth * 1e3:.2f}",
        f"{part.operations / peak * 1e3:.2f}",
        f"{part.seconds(target.launch, target.bandwidth, peak) * 1e3:.2f}",
        f"{compiled.memory_analysis().temp_size_in_bytes / 1e9:.2f}",
        f"{sums}",
    )
    return " | ".join(cells)


def main(arguments: list[str]) -> None:
    """Prints the table that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, default="h100")
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="number of layers, the first ones")
    options = parser.parse_args(arguments)
    ahead.prepare(options.target)
    columns = ("kernels", "GB", "bandwidth ms", "products ms", "bound ms", "temporaries GB", "sums in no order")
    print(f"| clients x images x layer | way | {' | '.join(columns)} |\n|---|---|{'---:|' * len(columns)}")
    for name, layer in list(LAYERS.items())[: options.layers]:
        for way in WAYS:
            print(f"| {name} | {way} | {row(layer, way, options.target)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
