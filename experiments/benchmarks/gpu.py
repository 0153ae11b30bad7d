"""What a GPU makes of this package, in one command: correctness, first rounds, speed, neighbours.

    make gpu                                                 # all of it, into docs/speed.md
    python -m experiments.benchmarks.gpu --parts speed       # a part of it, on the screen
    python -m experiments.benchmarks.gpu --scale 0.01        # whether the script runs, on a CPU too

Each part has a process of its own, so that one which fails leaves the others. `speed` compiles all
workloads of `fedjax-ssl bench` and a step of FixMatch with WRN-28-2 side by side, in threads, and
then times them one after another. PyTorch's loop, `torch.func.vmap` and its compiled FixMatch are
beside them where this Python, or that of `--torch`, has PyTorch. Nothing else may use the GPU.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TITLE = "## By `make gpu`"
SLOW_TO_TIME = ("W9",)  # placements, which are one question alone
HALF = ("W1", "W3", "W5", "W7", "FixMatch")  # also in bfloat16
PEERS = {"PyTorch, a loop": "torch_loop.py", "torch.func.vmap": "torch_vmap.py"}
AGAINST = ("W5", "W1", "W2")  # whose clients take equally many steps
FIRST = ("fedmatch", "xclp", "protofssl", "fixmatch")
# (points, bits), and the points up to which all products are also sorted
GRAPHS = ((60_000, 4_096), (262_144, 1_024), (817_851, 1_024), (817_851, 4_096))
SORTED = 262_144
NEIGHBORS = 10
BYTES_AT_ONCE = 2**30  # of distances
CONTRACT = HERE.parents[1] / "tests" / "test_contract.py"
DIGESTED = ("fixmatch", "per_client_lp")
# As docs/running.md says for the same bits on a GPU; several processes share its memory.
SAME_BITS = {
    "XLA_FLAGS": "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
KERNELS = 6  # that are named, by share


def check(given: argparse.Namespace) -> Iterator[str]:
    """Correctness: the contract suite of a method of every kind, resuming, digests of two
    processes.
    """
    os.environ.update(SAME_BITS)
    import fedjax_ssl as fs
    from experiments.benchmarks.digests import METHODS, digest
    from fedjax_ssl import gpus
    from fedjax_ssl.folder.checkpoint import Checkpoints

    suite = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", str(CONTRACT)]
    some = [] if given.scale >= 1 else ["-k", "fedavg"]
    there = {"JAX_PLATFORMS": "cuda,cpu" if gpus.found() else "cpu"}
    environment = os.environ | there
    done = subprocess.run([*suite, *some], env=environment, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    yield f"- `tests/test_contract.py`: {done.stdout.strip().splitlines()[-1].strip('= ')}"
    yield from (f"  - {line}" for line in failed)
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for name, parts in (("whole", (4,)), ("in parts", (2, 4))):
            for rounds in parts:
                settings = {"rounds": rounds, "eval_every": 1, "method.warmup_rounds": 1}
                fs.run(fs.load_config("digits_xclp", settings), f"{folder}/{name}", quiet=True)
            arrays = Checkpoints(Path(folder, name)).arrays(4)
            ends.append([arrays[leaf].tobytes() for leaf in sorted(arrays)])
    same = "the same" if ends[0] == ends[1] else "**other**"
    yield f"- A run that is resumed ends in {same} bits."
    script = [sys.executable, str(HERE / "digests.py"), "--only"]
    for name in DIGESTED:
        mine = digest(*METHODS[name])
        other = subprocess.run([*script, name], capture_output=True, text=True, check=True)
        again = other.stdout.split()[-1]
        same = "the same" if again == mine else f"**{again}**"
        yield f"- Digest of `{name}`: {mine}, in another process {same}."


def first(given: argparse.Namespace) -> Iterator[str]:
    """Seconds from a command to the end of its first round, with an empty and a full cache."""
    yield "| first round of | empty cache, s | full cache, s |\n|---|---:|---:|"
    for method in FIRST:
        name = f"digits_{method}"
        data = []
        if given.scale >= 1:
            name = f"cifar10:{method}" if method == "fixmatch" else f"cifar10_{method}"
            data = ["--data.name=experiments.papers.stand_in:stand_in", "--data.like=cifar10"]
            data += ["--model.name=wrn28", "--model.widen=2"] * (method == "fixmatch")
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/cache"}
            seconds = []
            for turn in ("empty", "full"):
                short = ["--rounds=1", "--eval_every=1", f"--workdir={folder}/{turn}", "--quiet"]
                command = [sys.executable, "-m", "fedjax_ssl.cli", "run", name, *data, *short]
                begin = time.perf_counter()
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                seconds.append(time.perf_counter() - begin)
        yield f"| `{name}` | {seconds[0]:.1f} | {seconds[1]:.1f} |"


def workloads(scale: float) -> Iterator[tuple[str, Any]]:
    """Workloads by name, those of the package and two more, each also in bfloat16 where that may
    help; clients of fewer examples at a smaller scale.
    """
    from experiments.benchmarks import WORKLOADS, Workload

    small = min(scale, 1)
    fixmatch = Workload(
        title="FixMatch with WRN-28-2, steps of 64 + 2 x 448 images of CIFAR-10's shape",
        input_shape=(32, 32, 3),
        num_clients=1,
        cohort_size=1,
        mean_size=4_000,
        method="fixmatch",
        settings={
            "model.name": "wrn28",
            "model.widen": 2,
            "optimizer.batch_size": max(round(64 * small), 1),
            "optimizer.local_steps": max(round(20 * small), 1),
            "optimizer.momentum": 0.9,
            "method.unlabelled_ratio": 7,
            "supervision.name": "per_client",
            "supervision.labels": 400,
            "augment.name": "crop_flip",
            "strong_augment.name": "fixmatch",
        },
    )
    many = dataclasses.replace(WORKLOADS["W8"][0], variant="1,024 seeds", seeds=1024)
    chosen = {name: ways for name, ways in WORKLOADS.items() if name not in SLOW_TO_TIME}
    chosen["W8"] = (*chosen["W8"], dataclasses.replace(many, seeds=max(round(1024 * small), 2)))
    chosen["FixMatch"] = (fixmatch,)
    for name, ways in chosen.items():
        for one in ways:
            size = max(round(small * one.mean_size), min(one.mean_size, 60))
            whole = one if name == "FixMatch" else dataclasses.replace(one, mean_size=size)
            yield name, whole
            if name in HALF:
                settings = {**one.settings, "precision": "bf16"}
                variant = f"{one.variant} bf16".strip()
                yield name, dataclasses.replace(whole, variant=variant, settings=settings)


def kernels(program: str, folder: Path) -> Counter[str]:
    """Sum up the time of a program's operations by kind, from the trace of JAX's profiler."""
    import jax

    # a loop's time is that of the operations inside
    loops = ("while", "conditional", "call")
    named = re.findall(r"^\s*(?:ROOT )?%?([\w.-]+) = .*? ([\w-]+)\(", program, re.M)
    known = {name for name, kind in named if kind not in loops}
    spent = Counter[str]()
    for file in sorted(folder.rglob("*.xplane.pb"))[-1:]:
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for event in (event for line in plane.lines for event in line.events):
                # kernels have names of their own
                name = event.name if event.name in known else dict(event.stats).get("hlo_op")
                if name in known:
                    spent[re.sub(r"[.\d]+$", "", str(name))] += event.duration_ns
    return spent


def speed(given: argparse.Namespace) -> Iterator[str]:
    """Rates of all workloads, and the kernels of some by share."""
    import jax

    from experiments.benchmarks import command as bench
    from experiments.benchmarks import prepare, timed

    words = ["--repeats", str(given.repeats), "--scale", str(given.scale), "--limit"]
    options = bench.options([*words, str(given.limit)])
    chosen = [one for one in workloads(given.scale) if one[0] in (given.workloads or [one[0]])]
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(prepare, name, one, options) for name, one in chosen]
        concurrent.futures.wait(waiting)
    compiled = time.perf_counter() - begin
    rows = []
    shares = []
    for (name, one), future in zip(chosen, waiting, strict=True):
        title = f"{name} {one.variant}".strip()
        if future.exception() is not None:
            shares.append(f"- {title} was not compiled: {future.exception()}")
            continue
        prepared = future.result()
        row = timed(prepared, options)
        rows.append({**row, "peak_memory_bytes": None})  # of all workloads so far
        if name in HALF:
            with tempfile.TemporaryDirectory() as folder:
                with jax.profiler.trace(folder):
                    prepared.run()
                spent = kernels(prepared.program.as_text(), Path(folder))
            whole = spent.total()
            named = ", ".join(f"{kind} {ns / whole:.0%}" for kind, ns in spent.most_common(KERNELS))
            shares.append(f"- {title}: {named or 'the profiler names none'}")
    yield bench.table(rows)
    yield f"\nCompiled side by side in {compiled:.0f} s. Kernels by share of the time:\n"
    yield from shares


def peers(given: argparse.Namespace) -> Iterator[str]:
    """The same rounds in PyTorch."""
    from experiments.benchmarks.peers import CHOSEN, in_own_process, run_script, save_plan

    asked = [given.torch, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        yield "Not compared with PyTorch, which is not installed here (`--torch PYTHON`)."
        return
    version, _, on_gpu = found.stdout.strip().partition(" ")
    where = "GPU" if on_gpu == "True" else "processor"
    yield f"| PyTorch {version}, on the {where} | work | examples/s |\n|---|---|---:|"
    with tempfile.TemporaryDirectory() as folder:
        for name in AGAINST[: max(round(given.scale * len(AGAINST)), 1)]:
            plan = Path(folder) / f"{name}.npz"
            rounds, every = CHOSEN[name]
            # a rate takes two evaluations
            in_own_process(save_plan, name, rounds if given.scale >= 1 else 2 * every, plan)
            for system, script in PEERS.items():
                yield f"| {system} | {name} | {_rate(run_script, given, script, plan)} |"
    small = min(given.scale, 1)
    sizes = [str(max(round(small * size), 1)) for size in (64, 448, 50)]
    command = [given.torch, str(HERE / "peers" / "torch_fixmatch.py"), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"\nPyTorch's FixMatch fails: {done.stderr.strip().splitlines()[-1]}"
        return
    rates = json.loads(done.stdout.splitlines()[-1])
    yield (
        f"\nPyTorch's compiled step of FixMatch, without augmentation: {rates['float32']:.1f} "
        f"steps/s, in bfloat16 {rates['bf16']:.1f}."
    )


def _rate(run: Callable[..., Any], given: argparse.Namespace, script: str, plan: Path) -> str:
    from common import load

    from experiments.benchmarks.peers import measured

    try:
        result = run(given.torch, script, plan, max(given.limit, 300))
    except RuntimeError as error:
        return str(error)
    return f"{measured(load(plan), result)['examples_per_second']:,.0f}"


def neighbors(given: argparse.Namespace) -> Iterator[str]:
    """Seconds of exact searches, of the products alone and of products and topk."""
    import jax
    import jax.numpy as jnp

    from fedjax_ssl.graph import nearest_neighbors

    def over_tiles(take: Callable[..., Any], signs: jax.Array, dtype: Any, sums: Any) -> Any:
        """What `take` makes of the products of all pairs, some rows at a time."""
        points = signs.astype(dtype)
        count = max(BYTES_AT_ONCE // (4 * len(points)), 1)

        def one(row: jax.Array) -> Any:
            return take(jnp.matmul(points, row, preferred_element_type=sums))

        return jax.lax.map(one, points, batch_size=count)

    def seconds(search: Callable[..., Any], argument: jax.Array) -> str:
        """The fastest of a few calls."""
        compiled = jax.jit(search).lower(argument).compile()
        taken = []
        for _ in range(given.repeats + 1):
            begin = time.perf_counter()
            jax.block_until_ready(compiled(argument))
            taken.append(time.perf_counter() - begin)
        return f"{min(taken):.3g}"

    def sorted_products(signs: jax.Array) -> Any:
        return over_tiles(
            lambda row: jax.lax.top_k(row, NEIGHBORS), signs, jnp.bfloat16, jnp.float32
        )

    heads = ("exact", "int8 products", "bf16 products and topk")
    yield f"| points | bits | {', s | '.join(heads)}, s |\n|---:|---:{'|---:' * len(heads)}|"
    for points, bits in GRAPHS:
        count = max(round(given.scale * points), 100)
        codes = jax.random.bits(jax.random.key(0), (count, bits // 32), jnp.uint32)
        shifts = jnp.arange(32, dtype=jnp.uint32)
        signs = (2 * ((codes[..., None] >> shifts) & 1).astype(jnp.int8) - 1).reshape(count, bits)
        row = [
            seconds(lambda x, bits=bits: nearest_neighbors(x, bits, NEIGHBORS), codes),
            seconds(lambda x: over_tiles(jnp.max, x, jnp.int8, jnp.int32), signs),
            seconds(sorted_products, signs) if points <= SORTED else "",
        ]
        yield f"| {count:,} | {bits:,} | {' | '.join(row)} |"


PARTS = {
    "check": check,
    "first": first,
    "speed": speed,
    "peers": peers,
    "neighbors": neighbors,
}


def place(given: argparse.Namespace) -> Iterator[str]:
    """Card, versions and commit.

    Raises:
        SystemExit: at the full scale, where there is no GPU.
    """
    import jax

    from fedjax_ssl import folder

    if given.scale >= 1 and jax.default_backend() == "cpu":
        sys.exit(
            "JAX computes on the CPU here, where this takes days: install its part for the GPU "
            "(pip install 'jax[cuda12]'), or try the script with --scale 0.01"
        )
    versions = ", ".join(f"{name} {version}" for name, version in folder.versions().items())
    command = f"`python -m experiments.benchmarks.gpu --parts {' '.join(given.parts)}`"
    yield f"{folder.device_description()}; {versions}; {command}."
    if given.scale != 1:
        yield f"At the scale {given.scale:g}, which says nothing of speed."


def with_section(page: str, section: str) -> str:
    """Put a section, which begins with `TITLE`, in place of the one before, or at the end."""
    before, found, rest = page.partition(f"{TITLE}\n")
    behind = re.search(r"^## ", rest, re.MULTILINE)
    after = rest[behind.start() :] if found and behind else ""
    return f"{before.rstrip()}\n\n{section.rstrip()}\n" + (f"\n{after}" if after else "")


def main() -> None:
    """Prints the section, and writes it into a page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="all by default")
    add("--scale", type=float, default=1.0, help="factor on clients, points, steps and rounds (1)")
    add("--repeats", type=int, default=5, help="timed blocks (5)")
    add("--limit", type=float, default=20.0, help="seconds of a workload, about (20)")
    add("--workloads", nargs="+", metavar="NAME", help="of speed; all by default")
    add("--torch", default=sys.executable, help="a Python with PyTorch (this one)")
    add("--write", type=Path, help="the page whose section the result becomes")
    add("--part", choices=[*PARTS, "place"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        sys.path[:0] = [str(HERE), str(HERE / "peers")]
        for line in {**PARTS, "place": place}[given.part](given):
            print(line, flush=True)
        return
    lines = [TITLE, ""]
    for part in ("place", *given.parts):
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
        if process.wait() and part == "place":
            sys.exit(process.returncode)
        if process.returncode:
            lines.append(f"The part `{part}` ended with exit code {process.returncode}.")
        lines.append("")
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8") if given.write.exists() else ""
        given.write.write_text(with_section(page, "\n".join(lines)), encoding="utf-8")
        print(f"written to {given.write}")


if __name__ == "__main__":
    main()
