"""Rounds of federated averaging here and in other systems, side by side in one run.

    python -m experiments.benchmarks.peers  # W1, W2, W3 and W5 in every system
    python -m experiments.benchmarks.peers --workloads W2 --systems fedjax_ssl torch
    python -m experiments.benchmarks.peers --cores 1                  # on a busy machine
    python -m experiments.benchmarks.peers --check  # one round of W2: the same loss and parameters?

Every system but ours has an environment of its own, which `pip` fills when it is first asked for,
in `--environments`. A system that cannot be installed or run is a row that says why.

Workloads are those of `fedjax-ssl bench`. All systems train the same network on the same
images, the same clients per round, with the same number of local steps of plain SGD and as many
threads as there are cores; ours with its defaults. Those in PyTorch take their examples in the very
order in which ours does. The scripts in `peers/` have a system each. Times are from the start of a
system's process, evaluations left out; no program is cached.
"""

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks import WORKLOADS
from fedjax_ssl import processor

PEERS = Path(__file__).parent / "peers"
sys.path.insert(0, str(PEERS))
from common import Plan, load  # noqa: E402

# Workload -> rounds, and rounds between two evaluations. W1 stands for BlazeFL's example: a CNN on
# CIFAR-10's shape.
CHOSEN = {"W2": (1000, 100), "W3": (6, 1), "W5": (6, 1), "W1": (3, 1)}
# System -> its script, and what `pip` installs for it; None: this environment.
SYSTEMS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "fedjax_ssl": ("ours.py", None),
    "torch": ("torch_loop.py", ("torch", "numpy")),
    "fedjax": ("with_fedjax.py", ("fedjax", "dm-haiku")),
    "flwr": ("with_flwr.py", ("flwr[simulation]", "torch", "numpy")),
    "pfl": ("with_pfl.py", ("pfl[pytorch]",)),
    "blazefl": ("with_blazefl.py", ("blazefl", "torch", "tqdm", "numpy")),
    "fedlab": ("with_fedlab.py", ("fedlab", "torch", "numpy")),
}
PYTHONS = {"blazefl": ("python3.14", "python3.13", "python3.12")}  # where this Python is too old


def make_plan(name: str, rounds: int) -> Plan:
    """The rounds that ours runs from its start: the same cohorts, and per client the same
    batches in the same order.
    """
    import jax

    from fedjax_ssl.federated import Client, Now, labelled_epochs
    from fedjax_ssl.federated.cohort import sample_cohort
    from fedjax_ssl.keys import named_key
    from fedjax_ssl.runs.build import Experiment, federate

    (workload,) = WORKLOADS[name]
    experiment = Experiment(workload.config(), workload.dataset())
    config = experiment.config
    key = jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    sampler = labelled_epochs(
        config.optimizer.batch_size, config.optimizer.local_epochs, federation.max_labelled
    )

    @jax.jit
    def draw(number: jax.Array) -> tuple[jax.Array, Any]:
        round_key = jax.random.fold_in(named_key(key, "round"), number)
        cohort = sample_cohort(
            named_key(round_key, "cohort"),
            federation.num_labelled,
            federation.num_examples,
            workload.cohort_size,
            "only",
        )
        clients = Client(
            cohort.ids,
            federation.index[cohort.ids],
            federation.observed[federation.index[cohort.ids]],
            federation.num_labelled[cohort.ids],
            federation.num_examples[cohort.ids],
            sent={},
            sent_by_optimizer=(),
        )
        client_keys = jax.vmap(jax.random.fold_in, (None, 0))(
            named_key(round_key, "client"), clients.id
        )
        batch_keys = jax.vmap(lambda k: named_key(k, "batches"))(client_keys)
        now = Now(number)
        return clients.rows, jax.vmap(lambda k, client: sampler.schedule(k, client, now))(
            batch_keys, clients
        )

    drawn = []
    for number in range(rounds):
        index, schedules = jax.device_get(draw(jax.numpy.asarray(number)))
        positions = schedules.positions["labelled"]
        masks = schedules.masks["labelled"]
        drawn.append(
            [
                [index[c][positions[c, s]][masks[c, s]] for s in range(int(schedules.num_steps[c]))]
                for c in range(len(index))
            ]
        )
    used = np.unique(
        np.concatenate([rows for clients in drawn for steps in clients for rows in steps])
    )
    images = np.asarray(federation.inputs[used]).astype(np.float32) / 255
    return Plan(
        name=name,
        images=images,
        labels=np.asarray(federation.labels[used]).astype(np.int64),
        rounds=[
            [[np.searchsorted(used, rows) for rows in steps] for steps in clients]
            for clients in drawn
        ],
        num_classes=workload.num_classes,
        learning_rate=float(config.optimizer.learning_rate),
        batch_size=int(config.optimizer.batch_size),
        every=CHOSEN[name][1],
    )


def python_of(system: str, environments: Path) -> str:
    """The interpreter of a system; its environment is made if it is not there.

    Raises:
        RuntimeError: it cannot be installed; says pip's last line.
    """
    packages = SYSTEMS[system][1]
    if packages is None:
        return sys.executable
    folder = environments / system
    interpreter = folder / "bin" / "python"
    if not (folder / "complete").exists():
        for python in (
            found
            for name in PYTHONS.get(system, (sys.executable,))
            if (found := shutil.which(name))
        ):
            if not subprocess.run(
                [python, "-m", "venv", "--clear", folder], capture_output=True
            ).returncode:
                break
        else:
            raise RuntimeError(f"needs one of {', '.join(PYTHONS[system])}, which are not here")
        done = subprocess.run(
            [interpreter, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"cannot be installed: {last_line(done.stderr)}")
        (folder / "complete").touch()
    return str(interpreter)


def run_peer(system: str, plan: Path, environments: Path, limit: float) -> dict[str, Any]:
    """Train a plan in a system's process.

    Raises:
        RuntimeError: it cannot be installed, fails or takes longer than `limit` seconds; says why.
    """
    return run_script(python_of(system, environments), SYSTEMS[system][0], plan, limit)


def run_script(interpreter: str, script: str, plan: Path, limit: float) -> dict[str, Any]:
    """Train a plan by a script of `peers/`; raises as `run_peer`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [interpreter, PEERS / script, plan, result]
        peak = 0
        start = time.monotonic()
        with open(Path(folder) / "errors", "w+") as errors:
            # In a session of its own: what it started must not run on beside the next system.
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            try:
                while process.poll() is None:
                    peak = max(peak, memory_of(process.pid))
                    if time.monotonic() - start > limit:
                        raise RuntimeError(f"takes more than {limit:g} s")
                    time.sleep(0.25)
            finally:
                end_session(process.pid)
                process.wait()
            errors.seek(0)
            if process.returncode or not result.exists():
                raise RuntimeError(f"fails: {last_line(errors.read())}")
        return {**json.loads(result.read_text()), "peak_bytes": peak}


def end_session(session: int) -> None:
    """Kill all processes of a session (Linux): Ray gives its workers process groups of their own
    in it.
    """
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if os.getsid(int(folder.name)) == session:
                os.kill(int(folder.name), signal.SIGKILL)


def memory_of(process: int) -> int:
    """Bytes of a process and of all that it started, pages that they share counted once (Linux)."""
    found = 0
    with contextlib.suppress(OSError):  # it has just ended
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        for task in Path(f"/proc/{process}/task").iterdir():
            found += sum(memory_of(int(child)) for child in (task / "children").read_text().split())
    return found


def last_line(text: str) -> str:
    """The last line of an error message that says something."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip() and not line.startswith("[notice]")
    ]
    return lines[-1][:200] if lines else "without a word"


def measured(plan: Plan, result: dict[str, Any]) -> dict[str, float]:
    """The columns of the table, of the laps of a system: (rounds, seconds until then, accuracy)."""
    laps = result["laps"]
    each = plan.examples() / len(plan.rounds)
    rates = [
        (after[0] - before[0]) * each / (after[1] - before[1]) for before, after in pairwise(laps)
    ]
    enough = 0.9 * laps[-1][2]
    return {
        "examples_per_second": statistics.median(rates),
        "peak_bytes": result["peak_bytes"],
        "first_round": laps[0][1],
        "nearly_final": next(seconds for _, seconds, accuracy in laps if accuracy >= enough),
        "accuracy": laps[-1][2],
    }


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def save_plan(name: str, rounds: int, path: Path) -> None:
    """Make a plan and write it."""
    make_plan(name, rounds).save(path)


def one_round_of_ours() -> tuple[Plan, dict[str, np.ndarray], dict[str, np.ndarray], float]:
    """(plan, parameters before, parameters after, mean loss) of one round of W2."""
    import jax

    from fedjax_ssl.runs.build import Experiment, build, federate

    (workload,) = WORKLOADS["W2"]
    experiment = Experiment(workload.config(), workload.dataset())
    key = jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    method = build(experiment, federation).method
    state = jax.jit(method.init)(key, federation)
    after, info = jax.jit(method.round)(key, state, federation)

    def arrays(params: Any) -> dict[str, np.ndarray]:
        head = params["model"]["head"]
        return {"1.weight": np.asarray(head["kernel"]), "1.bias": np.asarray(head["bias"])}

    return make_plan("W2", 1), arrays(state.params), arrays(after.params), float(info["loss"])


def check(environments: Path) -> bool:
    """Whether one round of W2 ends in the same parameters in ours and in PyTorch, to 1e-4, from
    the same start.
    """
    plan, before, after, _ = in_own_process(one_round_of_ours)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.npz"
        start = Path(folder) / "start.npz"
        plan.save(path)
        np.savez(start, **before)
        command = [
            python_of("torch", environments),
            PEERS / "torch_loop.py",
            path,
            start,
            "--from-start",
        ]
        subprocess.run(command, check=True)
        with np.load(start) as found:
            difference = max(float(np.abs(found[name] - after[name]).max()) for name in after)
    moved = max(float(np.abs(after[name] - before[name]).max()) for name in before)
    same = difference < 1e-4 < moved
    print(
        f"one round of W2: parameters moved by up to {moved:.2e}, ours and PyTorch differ by up "
        f"to {difference:.1e}: {'the same work' if same else 'NOT the same work'}"
    )
    return same


def table(rows: list[dict[str, Any]]) -> str:
    """The measurements in Markdown; the ratio is of rates, ours to theirs."""
    lines = [
        "| workload | system | examples/s | ours / theirs | peak memory, GB | first round, s | "
        "to 90 % of the end, s |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    ours = {
        row["workload"]: row for row in rows if row["system"] == "fedjax_ssl" and "why" not in row
    }
    for row in rows:
        if "why" in row:
            lines.append(f"| {row['workload']} | {row['system']} | {row['why']} |||||")
            continue
        mine = ours.get(row["workload"], row)
        ratio = (
            "" if mine is row else f"{mine['examples_per_second'] / row['examples_per_second']:.2f}"
        )
        cells = (row["workload"], row["system"], f"{row['examples_per_second']:,.0f}", ratio)
        numbers = (
            f"{row['peak_bytes'] / 1e9:.2f}",
            f"{row['first_round']:.1f}",
            f"{row['nearly_final']:.1f}",
        )
        lines.append("| " + " | ".join((*cells, *numbers)) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measures what the command line asks for. Returns 0, or 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workloads", nargs="+", choices=CHOSEN, default=list(CHOSEN))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument(
        "--rounds", type=int, help="rounds; by default enough for five evaluations or more"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds that a system may take for a workload"
    )
    parser.add_argument(
        "--cores", type=int, help="cores for all systems, on a machine shared with other work"
    )
    default = Path.home() / ".cache" / "fedjax_ssl" / "peers"
    parser.add_argument(
        "--environments", type=Path, default=default, help="folder of the systems' environments"
    )
    parser.add_argument("--json", type=Path, help="write the measurements here")
    parser.add_argument(
        "--check", action="store_true", help="compare the result of one round instead of the time"
    )
    parser.add_argument(
        "--install", action="store_true", help="make the environments, and measure nothing"
    )
    options = parser.parse_args(arguments)
    for name in ("rounds", "cores"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}; it must be at least 1")
    for name in options.workloads if options.rounds else ():
        if options.rounds < (least := max(CHOSEN[name][1], 2)):
            parser.error(
                f"--rounds is {options.rounds}; a rate of {name}, from one evaluation to the "
                f"next, takes {least}"
            )
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.check:
        return 0 if check(options.environments) else 1
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in () if options.install else options.workloads:
            path = Path(folder) / f"{name}.npz"
            in_own_process(save_plan, name, options.rounds or CHOSEN[name][0], path)
            plan = load(path)
            for system in options.systems:
                row: dict[str, Any] = {
                    "workload": name,
                    "system": system,
                    "load": os.getloadavg()[0],
                }
                try:
                    row |= measured(
                        plan, run_peer(system, path, options.environments, options.limit)
                    )
                    print(
                        f"{name} {system}: {row['examples_per_second']:,.0f} examples/s",
                        file=sys.stderr,
                    )
                except RuntimeError as error:
                    row["why"] = str(error)
                    print(f"{name} {system}: {error}", file=sys.stderr)
                rows.append(row)
    for system in options.systems if options.install else ():
        try:
            print(f"{system}: {python_of(system, options.environments)}")
        except RuntimeError as error:
            print(f"{system}: {error}")
    print(table(rows))
    versions = {system: version(system, options.environments) for system in options.systems}
    print(
        f"\nPython {platform.python_version()}, "
        f"{', '.join(f'{name} {found}' for name, found in versions.items())}; {processor.cores()} "
        f"cores, load {os.getloadavg()[0]:.1f}"
    )
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "versions": versions}, indent=1))
    return 0


def version(system: str, environments: Path) -> str:
    """Installed version of a system."""
    ask = f"import importlib.metadata as m; print(m.version({system!r}))"
    try:
        asked = subprocess.run(
            [python_of(system, environments), "-c", ask], capture_output=True, text=True
        )
    except RuntimeError:
        return "not here"
    return asked.stdout.strip() or "not here"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
