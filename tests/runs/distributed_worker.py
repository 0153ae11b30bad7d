"""One process of a run over several, which may come to harm: see `test_distributed.py`."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from fedjax_ssl import main, presets
from fedjax_ssl.data import Dataset, Split
from fedjax_ssl.runs.active_run import Run

OWN = "own examples"  # asks `get_config` for the data of `own_examples`


def get_config(predictors=""):
    """The experiment of the tests; this file is its config file."""
    config = presets.digits_by_writer("fedavg", "all" if predictors == OWN else "3")
    config.rounds = 8
    config.eval_every = 1
    config.data.test_clients = 9
    config.model.name = "linear"
    config.optimizer.local_epochs = 1
    if predictors == OWN:
        config.rounds = 4
        config.eval_every = 2
        config.data.test_clients = 0
        config.data.name = "tests.runs.distributed_worker:own_examples"
    elif predictors:
        config.rounds = 2
        config.data.test_clients = 0
        config.data.client_test_fraction = 0.1
        config.prediction.predictors = predictors
        config.prediction.variant = "paper"
        config.prediction.num_bits = 64
    config.distributed.heartbeat_seconds = 6
    config.distributed.shutdown_seconds = 10
    config.distributed.initialization_seconds = 30
    return config


def own_examples(path):
    """A source whose images differ between the processes: each has a file of its own; that of
    process 1 is mapped.
    """
    who = os.environ.get("FEDJAX_SSL_PROCESS_ID", "all")
    images = np.load(Path(path) / f"{who}.npy", mmap_mode="r" if who == "1" else None)
    with np.load(Path(path) / "rest.npz") as rest:
        train = Split(images, rest["labels"], rest["client"])
        test = Split(rest["test_images"], rest["test_labels"])
    return Dataset("own", train, test, ("a", "b", "c"), mean=(0.5,), std=(0.25,))


def fail():
    raise RuntimeError("made to fail")


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(3)  # the signal is looked for every second


HARMS = {
    "exception": fail,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "terminate": terminate,
}


def harm_after(round: int, harm: str) -> None:
    """Lets the harm happen when this round is computed and not yet recorded."""
    take = Run.take

    def suffer_and_take(active, advanced, place):
        if advanced.rows[place]["round"] == round:
            print(f"comes to harm: {harm}", flush=True)
            HARMS[harm]()
        take(active, advanced, place)

    Run.take = suffer_and_take


if __name__ == "__main__":
    if "HARM" in os.environ:
        harm, process, round = os.environ["HARM"].split(":")
        if process == os.environ["FEDJAX_SSL_PROCESS_ID"]:
            harm_after(int(round), harm)
    sys.exit(main.main(sys.argv))
