"""Where a run's time goes: a table by share, and the settings that would help most.

JAX's profiler times the operations of one block of rounds. The text of the compiled program says in
which scope each operation was traced. Shares of the block stand for all blocks; compiling and the
whole are measured by the run.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl import processor
from fedjax_ssl.backend import backend
from fedjax_ssl.federated import AUGMENT, AVERAGE, EVALUATION, GATHER, LOCAL_STEP
from fedjax_ssl.graph import LABEL_GRAPH

REST = "rest of the rounds"
COMPILE = "compile"
HOST = "host"
STEP = "forward and backward"
_SCOPES = {  # row -> pattern in the name of an operation; the first that fits
    "evaluate": EVALUATION,
    "graph": f"{LABEL_GRAPH}|_lsh_codes",
    "augment": AUGMENT,
    "gather": GATHER,
    STEP: LOCAL_STEP,
    "average": AVERAGE,
}
_CONTAINERS = ("while", "conditional", "call")  # whose time is that of the operations inside
_OPERATION = re.compile(
    r"^\s*(?:ROOT )?%?([\w.-]+) = .*? ([\w-]+)\((?:.*op_name=\"([^\"]*)\")?", re.M
)
_SMALL = 0.02  # shares that a setting must save to be named


def operations(program: str) -> dict[str, str]:
    """Give the row of the table for every operation of a compiled program.

    Args:
        program: its text, as `jax.stages.Compiled.as_text` gives it.
    """
    return {
        name: next((row for row, scope in _SCOPES.items() if re.search(scope, traced)), REST)
        for name, kind, traced in _OPERATION.findall(program)
        if kind not in _CONTAINERS
    }


def device_shares(rows: Mapping[str, str], folder: Path) -> dict[str, float]:
    """Give the shares of a program's time by row of a table, which add up to 1.

    Args:
        rows: row of every operation of the program that ran, such as `operations` gives them.
        folder: where JAX's profiler wrote its trace.

    Returns:
        The shares; nothing where the trace names no operation of the program.
    """
    spent = Counter[str]()
    for file in sorted(folder.rglob("*.xplane.pb"))[-1:]:
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for event in (event for line in plane.lines for event in line.events):
                name = event.name
                # the kernels of other devices have names of their own
                if name not in rows and backend() != "cpu":
                    name = str(dict(event.stats).get("hlo_op"))
                if name in rows:
                    spent[rows[name]] += event.duration_ns
    return {row: time / spent.total() for row, time in spent.items()} if spent.total() else {}


def run_seconds(
    shares: Mapping[str, float], compiling: float, training: float, waited: float, whole: float
) -> dict[str, float]:
    """Give a run's seconds by row of the table, the most first.

    Args:
        shares: from `device_shares`.
        compiling: seconds of compiling.
        training: seconds of rounds and evaluations, with those that were waited for examples.
        waited: seconds in which a block waited for examples that the host brings.
        whole: seconds of the run.
    """
    shares = shares or {"rounds and evaluations": 1.0}
    spent = Counter({row: share * (training - waited) for row, share in shares.items()})
    spent.update(
        {"gather": waited, COMPILE: compiling, HOST: max(whole - compiling - training, 0.0)}
    )
    return dict(spent.most_common())


def advice(seconds: Mapping[str, float], config: Any) -> list[str]:
    """Name the settings that would save most, two at most.

    Args:
        seconds: from `run_seconds`.
        config: the run's, resolved.
    """
    whole = sum(seconds.values())
    found = sorted(
        _settings({row: time / whole for row, time in seconds.items()}, config), reverse=True
    )
    return [text for saved, text in found if saved >= _SMALL][:2]


def _settings(shares: Mapping[str, float], config: Any) -> Iterator[tuple[float, str]]:
    """Give settings that save time, each with the share that it might save."""
    share = Counter(shares)
    every = config.eval_every
    local = config.optimizer
    cores = processor.cores()
    changes = "; results change"
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        yield (
            share[COMPILE],
            "JAX_COMPILATION_CACHE_DIR=FOLDER in the environment: the next run need not compile",
        )
    if 2 * every <= config.rounds:
        yield share["evaluate"] / 2, f"--eval_every={2 * every}: half as many evaluations"
    if config.checkpoint_every and config.rounds >= 10 * every * config.checkpoint_every:
        yield (
            share[HOST] / 2,
            f"--checkpoint_every={10 * config.checkpoint_every}: fewer checkpoints",
        )
    steps = "local_epochs" if local.local_steps is None else "local_steps"
    more = (
        f"--optimizer.{steps}={2 * local[steps]}: more training in a round, and fewer "
        f"rounds{changes}"
    )
    yield (share["average"] + share[REST]) / 2, more
    for section in ("augment", "strong_augment"):
        if config[section].name != "none":
            yield (
                share["augment"] / 2,
                f"--{section}.name: a cheaper one than {config[section].name}{changes}",
            )
    if config.data.residence == "host":
        yield share["gather"], "--data.residence=device: examples need not come from the host"
    if (bits := config.method.get("num_bits")) is not None:
        yield share["graph"] / 2, f"--method.num_bits={bits // 2}: shorter codes{changes}"
    if backend() == "cpu" and (config.federated.devices or cores) < cores:
        yield share[STEP] / 2, f"--federated.devices={cores}: clients train on all cores"


def table(seconds: Mapping[str, float], config: Any, traced: str) -> list[str]:
    """Write the table and the advice, line by line.

    Args:
        seconds: from `run_seconds`.
        config: the run's, resolved.
        traced: the rounds that were traced, in words.
    """
    whole = sum(seconds.values())
    lines = [f"where the time goes ({whole:,.1f} s; operations as in {traced}):"]
    lines += [
        f"  {row:<20}  {time / whole:6.1%}  {time:10,.2f} s"
        for row, time in seconds.items()
        if time
    ]
    helps = advice(seconds, config)
    return (
        [*lines, *(f"  would help: {text}" for text in helps)]
        if helps
        else [*lines, "  no setting would help much"]
    )
