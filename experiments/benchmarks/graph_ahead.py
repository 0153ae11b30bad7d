"""Bounds of XCLP's graph for a device that is not here: codes, search, graph, propagation, labels.

    python experiments/benchmarks/graph_ahead.py                              # H100, 817,851 points of 1,024 bits
    python experiments/benchmarks/graph_ahead.py --target tpu-v5e --kernel matmul --points 100_000

One program labels all points from their features, as `fedjax_ssl.graph.xclp` does. It is compiled as
`python -m fedjax_ssl.bench --target` does it, and read: kernels, bytes, the longer of launch and bytes of every kernel.
Two loops end when the numbers say so: conjugate gradients, and sums over a point's chunks of incoming edges. How often
they turn is measured here, on `--measured` points of the same kind (Gaussian clusters, docs/graph.md). The search is
bound by its integer products too, which stand beside it.
"""

import argparse
import re
import time
from functools import partial
from typing import Any

from graph import make_points

from fedjax_ssl.benchmarks import ahead, hlo
from fedjax_ssl.benchmarks.targets import TARGETS, devices

# Parts by the functions in which they are traced; what belongs to none is the last.
PARTS = {"codes": "_lsh_codes", "search": "_nearest_codes", "graph": "_build_graph", "propagation": "_solve"}
SETTINGS: dict[str, Any] = {"similarity_power": 3.0, "label_norm": "class", "confidence_scale": "max"}


def measured_turns(options: argparse.Namespace) -> dict[str, float]:
    """How often the loops turn on fewer points, here: iterations, and doublings of the stride over chunks."""
    import jax
    import jax.numpy as jnp

    from fedjax_ssl import graph

    points, _, shown = make_points(options.measured, options.features, options.classes)
    codes = graph.lsh_codes(jax.random.key(0), jnp.asarray(points), options.bits)
    found = graph.build_graph(graph.nearest_neighbors(codes, options.bits, options.neighbors), 3.0)
    wanted = jax.nn.one_hot(jnp.asarray(shown), options.classes) / jnp.maximum(jnp.sum(shown >= 0), 1)
    solution = graph.solve(found, wanted, options.alpha)
    most = int(jnp.max(found.num_chunks))
    return {"iterations": int(solution.iterations), "doublings": (most - 1).bit_length()}


def compiled(options: argparse.Namespace) -> tuple[Any, float]:
    """The program for the target, and the seconds of compiling it."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from fedjax_ssl import backend, graph

    target = TARGETS[options.target]
    place = SingleDeviceSharding(devices(target)[0])
    search = partial(graph.nearest_neighbors, kernel=options.kernel)

    def label(key: jax.Array, features: jax.Array, labels: jax.Array) -> Any:
        return graph.xclp(
            key,
            features,
            labels,
            options.classes,
            num_bits=options.bits,
            num_neighbors=options.neighbors,
            alpha=options.alpha,
            neighbor_search=search,
            **SETTINGS,
        )

    shapes = (
        jax.ShapeDtypeStruct((options.points, options.features), jnp.float32),
        jax.ShapeDtypeStruct((options.points,), jnp.int32),
    )
    begin = time.perf_counter()
    with backend.tracing_for(target.elsewhere):
        program = jax.jit(label, in_shardings=place, out_shardings=place)
        traced = program.trace(jax.eval_shape(lambda: jax.random.key(0)), *shapes)
        lowered = traced.lower(lowering_platforms=backend.lowering_platforms())
        return lowered.compile(), time.perf_counter() - begin


def main() -> None:
    """Compiles, reads and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, default="h100")
    parser.add_argument("--kernel", choices=("fused", "matmul"), default="fused", help="of the search")
    for name, value in {"points": 817_851, "bits": 1024, "neighbors": 10, "classes": 62, "features": 128}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--alpha", type=float, default=0.99)
    parser.add_argument("--measured", type=int, default=16_000, help="points on which the loops' turns are measured")
    options = parser.parse_args()
    ahead.prepare(options.target)
    turns = measured_turns(options)
    program, seconds = compiled(options)
    target = TARGETS[options.target]

    def turns_of(loop: hlo.Instruction) -> float:
        outermost = len(re.findall(r"\bwhile\b", loop.scope)) == 1
        return turns["iterations" if "_solve" in loop.scope and outermost else "doublings"]

    _, whole = hlo.steps_and_rest(
        hlo.parse(program.as_text()), "none", host_drives=target.host_drives, turns_of=turns_of
    )
    memory = program.memory_analysis()
    products = 2 * options.points**2 * options.bits / target.int8_peak
    print(f"{target.title}, {options.points:,} points of {options.bits} bits, {options}")
    print(f"on {options.measured:,} points: {turns['iterations']} iterations, {turns['doublings']} doublings")
    total, rest = 0.0, whole
    for name, scope in PARTS.items():
        part = whole.within(scope)
        bound = max(target.seconds(part), products if name == "search" else 0.0)
        rest = hlo.Part(tuple(kernel for kernel in rest.kernels if not hlo.in_scope(kernel.scope, scope)))
        print(f"{name:12} {part.num_kernels:10,.0f} kernels {part.bytes / 1e9:10,.1f} GB {bound:8.3f} s")
        total += bound
    print(f"{'other':12} {rest.num_kernels:10,.0f} kernels {rest.bytes / 1e9:10,.1f} GB {target.seconds(rest):8.3f} s")
    print(f"the search's products take {products:.3f} s; all together {total + target.seconds(rest):.2f} s")
    print(f"temporaries {memory.temp_size_in_bytes / 1e9:.2f} GB, compiled in {seconds:.0f} s")


if __name__ == "__main__":
    main()
