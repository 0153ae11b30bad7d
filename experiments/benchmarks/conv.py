"""Convolution and pooling lowerings against PyTorch, forward and backward, on this machine.

    python experiments/benchmarks/conv.py                      # all tables, wall clock
    # for a machine shared with other work
    python experiments/benchmarks/conv.py --threads 1 --clock cpu

Local steps run inside one compiled `lax.scan`, as in training; PyTorch runs the same steps eagerly
in its faster memory format. The contestants take turns in short bursts, so that other work on the
machine hits all of them; a rate is taken from the fastest burst (`--statistic median` for the
median). Needs PyTorch (extra `bench`).
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
# batch, image side, channels, filters, kernel side, padding
LAYERS = {
    "20x26x26x32 -> 64": (20, 26, 32, 64, 3, 0),
    "20x16x16x128 -> 256": (20, 16, 128, 256, 3, 1),
    "64x32x32x64 -> 128": (64, 32, 64, 128, 3, 1),
    "20x28x28x1 -> 32": (20, 28, 1, 32, 3, 0),
    "20x32x32x3 -> 128": (20, 32, 3, 128, 3, 1),
    "20x32x32x16 -> 16": (20, 32, 16, 16, 3, 1),
}
LOWERINGS = ("auto", "slices", "rows")


def measure(runs: dict[str, Callable[[], None]], options: argparse.Namespace) -> dict[str, float]:
    """Seconds per burst of every contestant; each is warmed up once, then they take turns."""
    clock = CLOCKS[options.clock]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(options.repeats):
        for name, run in runs.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    reduce = min if options.statistic == "best" else statistics.median
    return {name: reduce(values) for name, values in seconds.items()}


def table(title: str, rows: dict[str, dict[str, float]]) -> None:
    """Prints rates as Markdown, with the last column's ratio of "auto" to the faster PyTorch."""
    names = list(next(iter(rows.values())))
    print(f"\n| {title} | " + " | ".join(names) + " | auto / PyTorch |")
    print("|---" * (len(names) + 2) + "|")
    for row, rates in rows.items():
        torch_rate = max(rate for name, rate in rates.items() if name.startswith("torch"))
        cells = " | ".join(f"{rate:,.0f}" for rate in rates.values())
        print(f"| {row} | {cells} | {rates['auto'] / torch_rate:.2f} |", flush=True)


def layer_rates(layer: tuple[int, ...], options: argparse.Namespace) -> dict[str, float]:
    """GFLOP/s of one layer's output and both gradients."""
    import jax
    import torch

    from fedjax_ssl.models import conv2d

    batch, side, channels, filters, size, padding = layer
    out = side + 2 * padding - size + 1
    flops = 3 * 2 * batch * out**2 * size**2 * channels * filters * options.steps
    keys = jax.random.split(jax.random.key(0), 3)
    images = jax.random.normal(keys[0], (batch, side, side, channels))
    kernel = jax.random.normal(keys[1], (size, size, channels, filters)) * 0.05
    target = jax.random.normal(keys[2], (batch, out, out, filters))

    def jax_run(lowering: str) -> Callable[[], None]:
        def step(carry, _):
            images, kernel = carry
            outputs, pull = jax.vjp(
                lambda x, k: conv2d(x, k, padding=padding, lowering=lowering), images, kernel
            )
            d_images, d_kernel = pull(target + outputs * 1e-3)
            return (images - 1e-3 * d_images, kernel - 1e-6 * d_kernel), None

        scan = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=options.steps)[0])
        return lambda: jax.block_until_ready(scan((images, kernel)))

    def torch_run(memory_format: torch.memory_format) -> Callable[[], None]:
        def tensor(array: jax.Array, axes: tuple[int, ...]) -> torch.Tensor:
            return (
                torch.tensor(jax.device_get(array))
                .permute(axes)
                .contiguous(memory_format=memory_format)
            )

        start = tensor(images, (0, 3, 1, 2)), tensor(kernel, (3, 2, 0, 1))
        goal = tensor(target, (0, 3, 1, 2))

        def run() -> None:
            x, k = start
            for _ in range(options.steps):
                x = x.detach().requires_grad_()
                k = k.detach().requires_grad_()
                outputs = torch.nn.functional.conv2d(x, k, padding=padding)
                dx, dk = torch.autograd.grad(outputs, (x, k), goal + outputs.detach() * 1e-3)
                x = x.detach() - 1e-3 * dx
                k = k.detach() - 1e-6 * dk

        return run

    runs: dict[str, Callable[[], None]] = {lowering: jax_run(lowering) for lowering in LOWERINGS}
    if options.lax:
        runs["lax"] = jax_run("lax")
    runs["torch"] = torch_run(torch.contiguous_format)
    runs["torch channels last"] = torch_run(torch.channels_last)
    return {name: flops / seconds / 1e9 for name, seconds in measure(runs, options).items()}


def network_rates(dropout: bool, options: argparse.Namespace) -> dict[str, float]:
    """Examples/s of SGD steps of model "cnn", batch 20, 28x28x1, 62 classes."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    from fedjax_ssl import models

    batch = 20
    rate = 0.1
    rng = np.random.default_rng(0)
    images = rng.standard_normal((options.steps, batch, 28, 28, 1), np.float32)
    labels = rng.integers(0, 62, (options.steps, batch)).astype(np.int32)
    data = jnp.asarray(images), jnp.asarray(labels), jnp.arange(options.steps)

    def jax_run(lowering: str) -> Callable[[], None]:
        model = models.build(
            "cnn", num_classes=62, input_shape=(28, 28, 1), dropout=dropout, lowering=lowering
        )
        start, state = model.init(jax.random.key(0))

        def step(params, step_data):
            x, y, i = step_data

            def loss(params):
                key = jax.random.fold_in(jax.random.key(1), i)
                logits = model.apply(params, state, x, train=True, key=key)[0].logits
                return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

            return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params)), None

        scan = jax.jit(lambda params, data: jax.lax.scan(step, params, data)[0])
        return lambda: jax.block_until_ready(scan(start, data))

    def torch_run(memory_format: torch.memory_format) -> Callable[[], None]:
        nn = torch.nn
        layers = [
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        ]
        layers += [
            nn.Flatten(),
            nn.Linear(9216, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, 62),
        ]
        kept = [layer for layer in layers if dropout or not isinstance(layer, nn.Dropout)]
        network = nn.Sequential(*kept).to(memory_format=memory_format)
        optimizer = torch.optim.SGD(network.parameters(), lr=rate)
        batches = [
            torch.tensor(x).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
            for x in images
        ]
        targets = torch.tensor(labels).long()

        def run() -> None:
            for x, y in zip(batches, targets, strict=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                optimizer.step()

        return run

    runs: dict[str, Callable[[], None]] = {lowering: jax_run(lowering) for lowering in LOWERINGS}
    runs["torch"] = torch_run(torch.contiguous_format)
    runs["torch channels last"] = torch_run(torch.channels_last)
    return {
        name: options.steps * batch / seconds for name, seconds in measure(runs, options).items()
    }


def pool_rates(options: argparse.Namespace) -> dict[str, float]:
    """Million input values/s of 2x2 max-pooling of 20x24x24x64 after ReLU, forward and backward."""
    import jax
    import jax.numpy as jnp
    import torch

    from fedjax_ssl.models import max_pool

    shape = (20, 24, 24, 64)
    images = jax.random.normal(jax.random.key(0), shape)

    def reduce_window(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def reshape_max(x):
        return jnp.max(x.reshape(20, 12, 2, 12, 2, 64), (2, 4))

    def jax_run(pool: Callable[[jax.Array], jax.Array]) -> Callable[[], None]:
        def step(x, _):
            outputs, pull = jax.vjp(lambda x: pool(jax.nn.relu(x)), x)
            return x - 0.1 * pull(outputs)[0], None

        scan = jax.jit(lambda x: jax.lax.scan(step, x, None, length=options.steps)[0])
        return lambda: jax.block_until_ready(scan(images))

    def torch_run(memory_format: torch.memory_format) -> Callable[[], None]:
        start = (
            torch.tensor(jax.device_get(images))
            .permute(0, 3, 1, 2)
            .contiguous(memory_format=memory_format)
        )

        def run() -> None:
            x = start
            for _ in range(options.steps):
                x = x.detach().requires_grad_()
                outputs = torch.nn.functional.max_pool2d(torch.relu(x), 2)
                x = x.detach() - 0.1 * torch.autograd.grad(outputs, x, outputs.detach())[0]

        return run

    runs = {
        "auto": jax_run(lambda x: max_pool(x, 2)),
        "reshape and max": jax_run(reshape_max),
        "reduce_window": jax_run(reduce_window),
        "torch": torch_run(torch.contiguous_format),
        "torch channels last": torch_run(torch.channels_last),
    }
    count = images.size * options.steps
    return {name: count / seconds / 1e6 for name, seconds in measure(runs, options).items()}


def main(arguments: list[str]) -> None:
    """Prints the tables that the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tables", default="layers,network,pool", help="comma-separated subset of the default"
    )
    parser.add_argument(
        "--layers", type=int, default=len(LAYERS), help="number of layers, the first ones"
    )
    parser.add_argument("--steps", type=int, default=4, help="local steps per burst")
    parser.add_argument("--repeats", type=int, default=30, help="bursts per contestant")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="cores for both sides")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: use with --threads 1")
    parser.add_argument("--statistic", choices=("best", "median"), default="best")
    parser.add_argument("--lax", action="store_true", help="also the plain convolution (slow)")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])

    import jax
    import torch

    torch.set_num_threads(options.threads)
    print(
        f"jax {jax.__version__}, torch {torch.__version__}, {options.threads} threads, "
        f"{options.clock} clock, ",
        end="",
    )
    print(f"{options.statistic} of {options.repeats} bursts of {options.steps} steps")
    chosen = options.tables.split(",")
    if "layers" in chosen:
        layers = list(LAYERS.items())[: options.layers]
        table(
            "GFLOP/s, forward and backward",
            {name: layer_rates(layer, options) for name, layer in layers},
        )
    if "network" in chosen:
        table(
            "examples/s, SGD step",
            {
                "cnn": network_rates(True, options),
                "cnn without dropout": network_rates(False, options),
            },
        )
    if "pool" in chosen:
        table("Mvalues/s, forward and backward", {"2x2 max-pooling": pool_rates(options)})


if __name__ == "__main__":
    main(sys.argv[1:])
