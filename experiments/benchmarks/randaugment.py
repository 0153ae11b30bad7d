"""Processor time of strong augmentation: 256 images of 32 x 32 x 3, on one core.

    taskset -c 0 python experiments/benchmarks/randaugment.py
    taskset -c 0 python experiments/benchmarks/randaugment.py --names fixmatch semifl --vmap
    taskset -c 0 python experiments/benchmarks/randaugment.py --shape 28 28 1 --groups 0

Every augmentation is compiled once and called with several keys, as different keys draw operations
of different cost. Of each key the fastest call counts, and the line has the mean and the largest
over keys. `--vmap` also cuts the batch into 8 clients under `vmap`, and computes all operations at
once, as on accelerators. Times are processor times summed over threads, so that others on a shared
machine count less.
"""

import argparse
import time
from collections.abc import Callable
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl.data import AUGMENTATIONS, augmentation

NAMES = [name for name in AUGMENTATIONS if AUGMENTATIONS.takes(name, "operations")]
CLIENTS = 8


def processor_time(
    function: Callable, keys: jax.Array, images: jax.Array, repeats: int
) -> tuple[float, float, float]:
    """Milliseconds, mean and largest over keys, and seconds of compiling."""
    start = time.process_time()
    compiled = jax.jit(function).lower(keys[0], images).compile()
    compiling = time.process_time() - start
    fastest = []
    for key in keys:
        taken = []
        for _ in range(repeats + 1):
            start = time.process_time()
            jax.block_until_ready(compiled(key, images))
            taken.append(time.process_time() - start)
        fastest.append(1e3 * min(taken[1:]))
    return float(np.mean(fastest)), max(fastest), compiling


def by_client(augment: Callable) -> Callable:
    """The batch as clients under `vmap`."""

    def function(key: jax.Array, images: jax.Array) -> jax.Array:
        parts = images.reshape(CLIENTS, -1, *images.shape[1:])
        return jax.vmap(augment)(jax.random.split(key, CLIENTS), parts)

    return function


def at_once(function: Callable) -> Callable:
    """What accelerators compute: all operations for all images, each keeping its own."""

    def traced(key: jax.Array, images: jax.Array) -> jax.Array:
        with mock.patch.object(jax, "default_backend", lambda: "accelerator"):
            return function(key, images)

    return traced


def ways(name: str, vmap: bool, **options: int) -> dict[str, Callable]:
    """What is measured of an augmentation."""
    found = {"one batch": augmentation(name, **options)}
    if vmap:
        found["8 clients, vmap"] = by_client(found["one batch"])
        found |= {f"{way}, at once": at_once(function) for way, function in found.items()}
    return found


def main() -> None:
    """Prints a line per augmentation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--shape", nargs=3, type=int, default=(32, 32, 3))
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--groups", type=int, help="default: each augmentation's own")
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--vmap", action="store_true", help="also under vmap, and all operations at once"
    )
    arguments = parser.parse_args()
    options = {} if arguments.groups is None else {"groups": arguments.groups}
    values = np.random.default_rng(0).integers(0, 256, (arguments.images, *arguments.shape))
    images = jnp.asarray(values.astype(np.uint8))
    keys = jax.random.split(jax.random.key(0), arguments.keys)
    print(
        f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {arguments.images} images "
        f"{arguments.shape}"
    )
    for name in arguments.names:
        for way, function in ways(name, arguments.vmap, **options).items():
            mean, most, compiling = processor_time(function, keys, images, arguments.repeats)
            print(
                f"{name:22} {way:26} {mean:8.2f} ms, most {most:8.2f} ms, compiling "
                f"{compiling:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
