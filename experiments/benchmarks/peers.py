"""Rounds of federated averaging here, in a plain PyTorch loop, and in fedjax, side by side in one run.

    python experiments/benchmarks/peers.py                            # W2, W3 and W5 in every system that is installed
    python experiments/benchmarks/peers.py --workloads W2 --systems fedjax_ssl torch
    python experiments/benchmarks/peers.py --cores 1                  # on a busy machine: compare processor time
    python experiments/benchmarks/peers.py --check                    # one round of W2: the same loss and parameters?

Workloads are those of `python -m fedjax_ssl.bench`. All systems train the same network on the same images, the same
clients per round, with the same number of local steps of plain SGD. PyTorch takes its examples in the very order in
which ours does, with the images on the device as floats; fedjax draws batches of its own. Each system runs in a
process of its own, one after another; the first block of rounds warms up, then the median over blocks counts.

Every system is tried with one thread and with one per core, ours also with a device per core which share each cohort
(`--config.federated.devices`); the fastest way counts. The PyTorch loop keeps one network, loads the global parameters
for every client and averages what comes out, for convolutions in the faster of both memory formats.

Peers are optional: `pip install torch`, `pip install fedjax`. Best in an environment of their own, together with this
package: fedjax pins nothing, but it is from before the removal of `jax.tree_map`, which is put back here.
"""

import argparse
import concurrent.futures
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_ssl import bench, processor
from fedjax_ssl.benchmarks import WORKLOADS, measure
from fedjax_ssl.command_line import use_processor

CHOSEN = ("W2", "W3", "W5")


class Plan(NamedTuple):
    """What one block of rounds trains on, in NumPy, so that peers need no JAX of ours."""

    images: np.ndarray  # [n, h, w, c] float32, of the clients that take part
    labels: np.ndarray  # [n] int64
    rounds: list[list[list[np.ndarray]]]  # round -> client -> local step -> rows
    num_classes: int
    learning_rate: float
    batch_size: int

    def examples(self) -> int:
        """Rows that enter a loss, in all rounds."""
        return sum(len(rows) for clients in self.rounds for steps in clients for rows in steps)

    def counts(self) -> tuple[int, int]:
        """(client updates, local steps), in all rounds."""
        clients = [steps for clients in self.rounds for steps in clients]
        return len(clients), sum(len(steps) for steps in clients)


def make_plan(name: str, rounds: int) -> Plan:
    """The rounds that ours runs from its start: the same cohorts, and per client the same batches in the same order."""
    import jax

    from fedjax_ssl.federated import Client, Now, labelled_epochs
    from fedjax_ssl.federated.cohort import sample_cohort
    from fedjax_ssl.keys import named_key
    from fedjax_ssl.runs.build import Experiment, federate

    (workload,) = WORKLOADS[name]
    experiment = Experiment(workload.config(), workload.dataset())
    config, key = experiment.config, jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    sampler = labelled_epochs(config.optimizer.batch_size, config.optimizer.local_epochs, federation.max_labelled)

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
            received=(),
        )
        client_keys = jax.vmap(jax.random.fold_in, (None, 0))(named_key(round_key, "client"), clients.id)
        batch_keys = jax.vmap(lambda k: named_key(k, "batches"))(client_keys)
        now = Now(number)
        return clients.rows, jax.vmap(lambda k, client: sampler.schedule(k, client, now))(batch_keys, clients)

    drawn = []
    for number in range(rounds):
        index, schedules = jax.device_get(draw(jax.numpy.asarray(number)))
        positions, masks = schedules.positions["labelled"], schedules.masks["labelled"]
        drawn.append(
            [
                [index[c][positions[c, s]][masks[c, s]] for s in range(int(schedules.num_steps[c]))]
                for c in range(len(index))
            ]
        )
    used = np.unique(np.concatenate([rows for clients in drawn for steps in clients for rows in steps]))
    images = np.asarray(federation.inputs[used]).astype(np.float32) / 255
    return Plan(
        images=images,
        labels=np.asarray(federation.labels[used]).astype(np.int64),
        rounds=[[[np.searchsorted(used, rows) for rows in steps] for steps in clients] for clients in drawn],
        num_classes=workload.num_classes,
        learning_rate=float(config.optimizer.learning_rate),
        batch_size=int(config.optimizer.batch_size),
    )


def timed(block: Callable[[], None], repeats: int) -> dict[str, float]:
    """Seconds of a block: the first call, and medians of the others in wall time and processor time of all cores."""
    wall, processor = [], []
    for _ in range(repeats + 1):
        start, start_processor = time.perf_counter(), time.process_time()
        block()
        wall.append(time.perf_counter() - start)
        processor.append(time.process_time() - start_processor)
    return {
        "first": wall[0],
        "seconds": statistics.median(wall[1:]),
        "fastest": min(wall[1:]),
        "processor": statistics.median(processor[1:]),
    }


def run_ours(name: str, plan: Plan, repeats: int, threads: int, devices: int) -> dict[str, Any]:
    """`fedjax_ssl`, as its command line runs."""
    rounds = len(plan.rounds)
    numbers = {"repeats": repeats, "rounds": rounds, "threads": threads, "devices": devices}
    given = bench.options(["--limit", "600", *(f"--{name}={number}" for name, number in numbers.items())])
    row = measure(name, WORKLOADS[name][0], given)
    seconds = row["seconds_per_round"] * rounds
    if round(row["examples_per_second"] * seconds) != plan.examples():
        raise RuntimeError(f"{name}: ours trained on another number of examples than was planned")
    return {
        "first": row["compile_seconds"],
        "seconds": seconds,
        "fastest": row["fastest_seconds_per_round"] * rounds,
        "processor": row["processor_seconds_per_round"] * rounds,
        "note": in_words(threads) + (f", {devices} devices" if devices > 1 else ""),
        "device": row["device"],
    }


def torch_network(name: str, num_classes: int) -> Any:
    """The network of a workload."""
    from torch import nn

    if name == "W2":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(9216, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, num_classes),
    )


def torch_rounds(network: Any, plan: Plan, memory_format: Any) -> Callable[[], dict[str, Any]]:
    """One block of rounds in PyTorch: clients in turn on one network. Returns the last global parameters."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = network.to(device, memory_format=memory_format)
    images = torch.tensor(plan.images).permute(0, 3, 1, 2).contiguous(memory_format=memory_format).to(device)
    labels = torch.tensor(plan.labels).to(device)
    rounds = [[[torch.tensor(rows).to(device) for rows in steps] for steps in clients] for clients in plan.rounds]
    start = {name: value.detach().clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=plan.learning_rate)

    def block() -> dict[str, Any]:
        parameters = start
        for clients in rounds:
            total: dict[str, Any] = {}
            for steps in clients:
                network.load_state_dict(parameters)
                for rows in steps:
                    optimizer.zero_grad()
                    loss = torch.nn.functional.cross_entropy(network(images[rows]), labels[rows])
                    loss.backward()
                    optimizer.step()
                for key, value in network.state_dict().items():
                    total[key] = total[key] + value if key in total else value.clone()
            parameters = {key: value / len(clients) for key, value in total.items()}
        if device == "cuda":
            torch.cuda.synchronize()
        return parameters

    return block


def run_torch(name: str, plan: Plan, repeats: int) -> dict[str, Any]:
    """A plain PyTorch loop, in the fastest of both memory formats with one thread and with one per core."""
    import torch

    torch.manual_seed(0)
    formats = {"contiguous": torch.contiguous_format}
    if name != "W2":
        formats["channels last"] = torch.channels_last
    blocks = {label: torch_rounds(torch_network(name, plan.num_classes), plan, one) for label, one in formats.items()}
    trials = {}
    for threads in numbers_of_threads():
        torch.set_num_threads(threads)
        for label, block in blocks.items():
            trials[threads, label] = timed(block, 1)["seconds"]
    threads, label = min(trials, key=lambda trial: trials[trial])
    torch.set_num_threads(threads)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    note = f"{label}, {in_words(threads)}"
    return {**timed(blocks[label], repeats), "note": note, "device": device}


def run_fedjax(name: str, plan: Plan, repeats: int, threads: int) -> dict[str, Any]:
    """fedjax as released: its EMNIST networks and its federated averaging."""
    import jax

    use_processor(threads)

    # Removed from JAX after fedjax's last release; only this process sees them.
    jax.tree_map = jax.tree_util.tree_map  # type: ignore[attr-defined]
    import fedjax

    create = fedjax.models.emnist.create_logistic_model if name == "W2" else fedjax.models.emnist.create_conv_model
    model = create(only_digits=plan.num_classes == 10)
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(plan.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=plan.batch_size, seed=0),
    )
    keys = jax.random.split(jax.random.PRNGKey(0), max(len(clients) for clients in plan.rounds))
    rounds = []
    for clients in plan.rounds:
        rows = [np.concatenate(steps) for steps in clients]
        rounds.append(
            [
                (number, fedjax.ClientDataset({"x": plan.images[mine], "y": plan.labels[mine]}), keys[number])
                for number, mine in enumerate(rows)
            ]
        )
    start = algorithm.init(model.init(jax.random.PRNGKey(0)))

    def block() -> None:
        state = start
        for clients in rounds:
            state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)

    return {**timed(block, repeats), "note": in_words(threads), "device": str(jax.devices()[0])}


def numbers_of_threads() -> list[int]:
    """One, and one per core."""
    return sorted({1, processor.cores()})


def ways(system: str) -> list[tuple[int, ...]]:
    """How a system is tried, a process for each: of those with JAX, a process cannot change its threads and devices."""
    if system == "torch":
        return [()]
    if system == "fedjax":
        return [(threads,) for threads in numbers_of_threads()]
    return [*((threads, 1) for threads in numbers_of_threads()), *((n, n) for n in numbers_of_threads() if n > 1)]


def in_words(threads: int) -> str:
    """For the table."""
    return f"{threads} thread{'s' * (threads > 1)}"


SYSTEMS = {"fedjax_ssl": run_ours, "torch": run_torch, "fedjax": run_fedjax}
NEEDS = {"torch": ("torch",), "fedjax": ("fedjax", "haiku")}


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def one_round_of_ours() -> tuple[Plan, dict[str, np.ndarray], dict[str, np.ndarray], float]:
    """(plan, parameters before, parameters after, mean loss) of one round of W2."""
    import jax

    from fedjax_ssl.runs.build import Experiment, build_method, federate

    (workload,) = WORKLOADS["W2"]
    experiment = Experiment(workload.config(), workload.dataset())
    key = jax.random.key(experiment.config.seed)
    federation = federate(experiment, key)
    method = build_method(experiment, federation)
    state = jax.jit(method.init)(key, federation)
    after, info = jax.jit(method.round)(key, state, federation)

    def arrays(params: Any) -> dict[str, np.ndarray]:
        head = params["model"]["head"]
        return {"1.weight": np.asarray(head["kernel"]), "1.bias": np.asarray(head["bias"])}

    return make_plan("W2", 1), arrays(state.params), arrays(after.params), float(info["loss"])


def torch_difference(plan: Plan, before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> tuple[float, float]:
    """One round of W2 in PyTorch from the same start: (largest difference of a parameter, loss of the result)."""
    import torch

    network = torch_network("W2", plan.num_classes)
    network.load_state_dict({name: torch.tensor(value.copy()) for name, value in before.items()})
    ours = {name: torch.tensor(value.copy()) for name, value in after.items()}
    result = torch_rounds(network, plan, torch.contiguous_format)()
    difference = max(float((result[name] - ours[name]).abs().max()) for name in ours)
    images, labels = torch.tensor(plan.images).permute(0, 3, 1, 2), torch.tensor(plan.labels)
    losses = []
    for parameters in (result, ours):
        network.load_state_dict(parameters)
        with torch.no_grad():
            losses.append(float(torch.nn.functional.cross_entropy(network(images), labels)))
    return difference, abs(losses[0] - losses[1])


def check() -> bool:
    """Whether one round of W2 ends in the same parameters and loss in ours and in PyTorch, to 1e-4."""
    plan, before, after, _ = in_own_process(one_round_of_ours)
    moved = max(float(np.abs(after[name] - before[name]).max()) for name in before)
    difference, loss = in_own_process(torch_difference, plan, before, after)
    same = difference < 1e-4 and loss < 1e-4 < moved
    print(
        f"one round of W2: parameters moved by up to {moved:.2e}, ours and PyTorch differ by up to {difference:.1e}, "
        f"their losses by {loss:.1e}: {'the same work' if same else 'NOT the same work'}"
    )
    return same


def version(package: str) -> str:
    """Installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def table(rows: list[dict[str, Any]]) -> str:
    """Rates in Markdown; the ratios are of rates, ours to theirs, in wall time and in processor time."""
    lines = [
        "| workload | system | examples/s | fastest block | per processor second | clients/s | steps/s | first s | "
        "ours / theirs | in processor time |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    ours = {row["workload"]: row for row in rows if row["system"] == "fedjax_ssl"}
    for row in rows:
        system = row["system"] + (f" ({row['note']})" if row.get("note") else "")
        mine = ours.get(row["workload"])
        ratios = ("", "")
        if mine and mine is not row:
            ratios = tuple(f"{row[clock] / mine[clock]:.2f}" for clock in ("seconds", "processor"))
        rates = (
            row["examples"] / row["seconds"],
            row["examples"] / row["fastest"],
            row["examples"] / row["processor"],
            row["client_updates"] / row["seconds"],
            row["local_steps"] / row["seconds"],
        )
        cells = [row["workload"], system, *(f"{rate:,.0f}" for rate in rates), f"{row['first']:.1f}", *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measures what the command line asks for. Returns 0, or 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--workloads", nargs="+", choices=CHOSEN, default=list(CHOSEN))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--repeats", type=int, default=5, help="timed blocks per system, after one that warms up")
    parser.add_argument("--rounds", type=int, help="rounds per block; the workload's own by default")
    parser.add_argument("--cores", type=int, help="cores for all systems, on a machine shared with other work")
    parser.add_argument("--json", help="write the measurements here")
    parser.add_argument("--check", action="store_true", help="compare the result of one round instead of the time")
    options = parser.parse_args(arguments)
    for name in ("repeats", "rounds", "cores"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}; it must be at least 1")
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])

    systems = []
    for system in ["torch"] if options.check else options.systems:
        missing = [module for module in NEEDS.get(system, ()) if importlib.util.find_spec(module) is None]
        if missing:
            print(f"{system} is left out: {', '.join(missing)} cannot be imported; `pip install {system}` brings it")
        else:
            systems.append(system)
    if options.check:
        return 0 if systems and check() else 1

    rows = []
    for name in options.workloads:
        plan = in_own_process(make_plan, name, options.rounds or WORKLOADS[name][0].rounds)
        updates, steps = plan.counts()
        for system in systems:
            results = [in_own_process(SYSTEMS[system], name, plan, options.repeats, *way) for way in ways(system)]
            result = min(results, key=lambda one: one["seconds"])
            rows.append(
                {
                    "workload": name,
                    "system": system,
                    "rounds": len(plan.rounds),
                    "examples": plan.examples(),
                    "client_updates": updates,
                    "local_steps": steps,
                    "load": os.getloadavg()[0],
                    **result,
                }
            )
            print(f"{name} {system}: {rows[-1]['examples'] / result['seconds']:,.0f} examples/s", file=sys.stderr)
    print(table(rows))
    packages = ("jax", "torch", "fedjax", "dm-haiku")
    print(
        f"\nPython {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in packages)}; "
        f"{processor.cores()} cores, load {os.getloadavg()[0]:.1f}; median of {options.repeats} blocks"
    )
    for system in systems:
        print(f"{system} ran on {next(row['device'] for row in rows if row['system'] == system)}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "versions": {name: version(name) for name in packages}}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
