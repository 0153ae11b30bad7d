"""`fedjax_ssl` with its defaults: rounds in compiled blocks, as its command line runs them."""

import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
from common import Clock, load

from fedjax_ssl.command_line import map_large_buffers, use_processor
from fedjax_ssl.runs.build import Experiment, build, federate
from fedjax_ssl.runs.compiler import compiled_program
from fedjax_ssl.runs.devices import start_processor
from fedjax_ssl.runs.processes import share_out
from fedjax_ssl.runs.rounds import run_rounds

sys.path.append(str(Path(__file__).parents[3]))
from experiments.benchmarks import WORKLOADS
from experiments.benchmarks import command as bench


def main() -> None:
    """Trains the plan's workload; the first round is a block of its own, as in the others. No
    program is cached.
    """
    plan = load(sys.argv[1])
    clock = Clock(plan)
    given = bench.options(sys.argv[3:])
    map_large_buffers()
    use_processor(given.threads, given.devices)
    workload = WORKLOADS[plan.name][0]
    config = workload.config({"federated.devices": given.devices})
    experiment = Experiment(config, workload.dataset())
    start_processor(config, experiment.dataset)  # as a run does
    federation = federate(experiment, jax.random.key(config.seed))
    built = build(experiment, federation)
    method = built.method
    key, data = share_out((jax.random.key(config.seed), federation), built.execution.mesh)
    state = jax.jit(method.init)(key, data)

    def predicted(state, images):
        return method.predict(state, images).argmax(-1)

    def accuracy() -> float:
        parts = np.split(plan.images * 255, range(500, len(plan.labels), 500))
        return float(
            (np.concatenate([predict(state, part) for part in parts]) == plan.labels).mean()
        )

    predict = jax.jit(predicted)
    programs = {}
    done = 0
    while done < len(plan.rounds):
        rounds = min(plan.every - done % plan.every, len(plan.rounds) - done) if done else 1
        if rounds not in programs:
            block = jax.jit(partial(run_rounds, method, rounds=rounds))
            programs[rounds] = compiled_program(block.lower(key, state, data))
        state = jax.block_until_ready(programs[rounds](key, state, data)[0])
        done += rounds
        clock.lap(accuracy, rounds)
    clock.write(way=f"{config.federated.devices} devices" if given.devices else "")


main()
