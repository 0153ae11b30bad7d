"""One process of a run over several, which may come to harm: see `test_distributed.py`."""

import os
import signal
import sys
import time

from fedjax_ssl import main, presets
from fedjax_ssl.experiment.programs import Programs


def get_config(predictors=""):
    """The experiment of the tests; this file is its config file."""
    config = presets.digits_by_writer("fedavg", "3")
    config.rounds, config.eval_every = 8, 1
    config.data.test_clients = 9
    config.model.name = "linear"
    config.optimizer.local_epochs = 1
    if predictors:
        config.rounds, config.data.test_clients, config.data.client_test_fraction = 2, 0, 0.1
        config.prediction.predictors, config.prediction.variant = predictors, "paper"
        config.prediction.num_bits = 64
    config.distributed.heartbeat_seconds = 6
    config.distributed.shutdown_seconds = 10
    config.distributed.initialization_seconds = 30
    return config


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
    advance = Programs.advance

    def advance_and_suffer(*arguments):
        rows, *rest = advance(*arguments)
        if rows[0]["round"] == round:
            print(f"comes to harm: {harm}", flush=True)
            HARMS[harm]()
        return rows, *rest

    Programs.advance = advance_and_suffer


if __name__ == "__main__":
    if "HARM" in os.environ:
        harm, process, round = os.environ["HARM"].split(":")
        if process == os.environ["FEDJAX_SSL_PROCESS_ID"]:
            harm_after(int(round), harm)
    sys.exit(main.main(sys.argv))
