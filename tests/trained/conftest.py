"""A run on the digits of three writers held out, with validation examples, trained once for all
tests of the room.
"""

import csv
import io

import pytest

from fedjax_ssl import cli, data, load_run, presets
from fedjax_ssl.runs.loop import run


def experiment(**fields):
    config = presets.digits_by_writer("fedavg", "all")
    config.rounds = 4
    config.eval_every = 1
    config.optimizer.local_epochs = 1
    config.data.test_clients = 3
    config.data.validation_fraction = 0.2
    config.metrics = ("clients",)
    config.update_from_flattened_dict(fields)
    return config


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    run(experiment(), path)
    return path


@pytest.fixture
def model(folder):
    return load_run(folder, "last")


@pytest.fixture(scope="session")
def digits():
    return data.load("digits")


@pytest.fixture
def call_predict(capsys):
    """Calls the command; returns (exit code, rows of the CSV, standard error)."""

    def call(*arguments):
        capsys.readouterr()
        code = cli.main(["predict", *map(str, arguments)])
        output = capsys.readouterr()
        return code, list(csv.DictReader(io.StringIO(output.out))), output.err

    return call
