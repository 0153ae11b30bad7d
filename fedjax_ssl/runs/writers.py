"""Metric rows for viewers: TensorBoard, Weights & Biases and MLflow, all optional.

The record of a run is its folder. A viewer that fails on the way is left out with a note, and the run goes on.
"""

import importlib
import json
import math
import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedjax_ssl.runs.files import Closing, plain_value, write_atomically
from fedjax_ssl.runs.folder import flat_config

WRITERS = ("tensorboard", "wandb", "mlflow")
_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
_PARAMS_AT_ONCE = 100  # that MLflow takes in one call


class WriterSettings(NamedTuple):
    """Viewers that get the rows of a run, and where they keep them."""

    writers: tuple[str, ...] = ()  # writers of `WRITERS`
    project: str = "fedjax_ssl"
    offline: bool = False  # nothing leaves the machine: the records lie in the run folder
    uri: str | None = None  # MLflow's server or store; None: $MLFLOW_TRACKING_URI, or MLflow's own default


class WriterFailed(UserWarning):
    """A viewer cannot be written to any more."""


Writer = Any  # has `write(row)`, `finish(summary)` and `close()`


class TensorBoardWriter:
    """Scalars in `workdir/tensorboard`, one point per row; needs the extra `tensorboard`."""

    def __init__(self, workdir: str | os.PathLike, *, config: Mapping[str, Any], resume_round: int = 0):
        """Open the record.

        Args:
            workdir: the run folder.
            config: the run's config, for the table of hyperparameters.
            resume_round: round of the restored checkpoint: later rounds' points are hidden.
        """
        module = _optional("tensorboard")
        purge = resume_round + 1 if resume_round else None
        self._config = config
        # Files are named by the second: those of a quick restart would replace the ones before.
        self._writer = module.SummaryWriter(
            str(Path(workdir) / "tensorboard"), purge_step=purge, filename_suffix=f".{resume_round}"
        )

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, global_step=row["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Add a line to the table of hyperparameters."""
        settings = {
            name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
            for name, value in flat_config(plain_value(self._config)).items()
        }
        # A name of its own: by default it is the time, so that a second ending would be a second line.
        self._writer.add_hparams(settings, _numbers(summary), name="hparams")

    def close(self) -> None:
        """End the record."""
        self._writer.close()


class WandbWriter:
    """A run at Weights & Biases; needs the extra `wandb`. A resumed run goes on under the same identifier."""

    def __init__(self, workdir: str | os.PathLike, *, config: Mapping[str, Any], project: str, offline: bool = False):
        """Open the record.

        Args:
            workdir: the run folder; the run's identifier is kept in `wandb_id` there.
            config: the run's config, shown beside the curves.
            project: name of the project.
            offline: kept in the run folder, for `wandb sync` later on; otherwise as $WANDB_MODE says.
        """
        module = _optional("wandb")
        self._complete = False
        self._run = module.init(
            project=project,
            name=Path(workdir).name,
            dir=str(workdir),
            id=_kept(Path(workdir) / "wandb_id", lambda: uuid.uuid4().hex),
            resume="allow",
            config=plain_value(config),
            **({"mode": "offline"} if offline else {}),
        )

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        self._run.log(_numbers(row), step=row["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The run's summary is that of `summary.json`."""
        self._run.summary.update(_numbers(summary))
        self._complete = True

    def close(self) -> None:
        """End the record."""
        self._run.finish(exit_code=0 if self._complete else 1)


class MlflowWriter:
    """A run at MLflow; needs the extra `mlflow`. A resumed run goes on under the same identifier.

    It works with a client of its own and not with MLflow's current run, so that runs beside each other do not mix.
    """

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        config: Mapping[str, Any],
        project: str,
        offline: bool = False,
        uri: str | None = None,
    ):
        """Open the record.

        Args:
            workdir: the run folder; the run's identifier is kept in `mlflow_id` there.
            config: the run's config: MLflow's parameters, by dotted name.
            project: name of the experiment.
            offline: kept in the folder `mlflow` of the run folder.
            uri: address of the server or store, unless it is offline.
        """
        module = _optional("mlflow")
        self._entities = importlib.import_module("mlflow.entities")
        if offline:
            uri = f"sqlite:///{Path(workdir).absolute() / 'mlflow.db'}"
        self._client = module.MlflowClient(tracking_uri=uri)
        self._complete = False
        self._run = _kept(Path(workdir) / "mlflow_id", lambda: self._create(Path(workdir).name, project, config))
        self._client.update_run(self._run, status="RUNNING")

    def _create(self, name: str, project: str, config: Mapping[str, Any]) -> str:
        found = self._client.get_experiment_by_name(project)
        experiment = self._client.create_experiment(project) if found is None else found.experiment_id
        run: str = self._client.create_run(experiment, run_name=name).info.run_id
        params = [
            self._entities.Param(name, value if isinstance(value, str) else json.dumps(value))
            for name, value in flat_config(plain_value(config)).items()
        ]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(run, params=params[start : start + _PARAMS_AT_ONCE])
        return run

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        self._log(row, row["round"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """The summary becomes metrics "summary.NAME", beside those of the last round."""
        self._log(
            {f"summary.{name}": value for name, value in _numbers(summary).items()}, int(summary.get("rounds", 0))
        )
        self._complete = True

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, float(value), now, step) for name, value in _numbers(values).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """End the record."""
        self._client.set_terminated(self._run, "FINISHED" if self._complete else "KILLED")


class Writers(Closing):
    """Several writers as one; one that fails is left out with a `WriterFailed` warning."""

    def __init__(self, writers: Mapping[str, Writer]):
        """Take over open writers, by name."""
        self._open = dict(writers)

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        self._each(lambda writer: writer.write(row))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take the summary of a run that is complete."""
        self._each(lambda writer: writer.finish(summary))

    def close(self) -> None:
        """End all records; a second call does nothing."""
        self._each(lambda writer: writer.close())
        self._open.clear()

    def _each(self, action: Callable[[Writer], None]) -> None:
        for name, writer in list(self._open.items()):
            try:
                action(writer)
            except Exception as error:  # whatever a library or a network comes up with: the run matters more
                del self._open[name]
                text = f"{name} failed and gets no more metrics; the run goes on without it ({_line(error)})"
                warnings.warn(text, WriterFailed, stacklevel=4)


def check_writers(settings: WriterSettings) -> None:
    """Raise ValueError for a writer whose package is not installed; say what to install."""
    for name in settings.writers:
        _optional(name)


def open_writers(
    settings: WriterSettings, workdir: str | os.PathLike, *, config: Mapping[str, Any], resume_round: int = 0
) -> Writers:
    """Open the viewers' records that a config names.

    Args:
        settings: which, and where.
        workdir: the run folder.
        config: the run's config.
        resume_round: round of the restored checkpoint, 0 at a first start.

    Returns:
        The writers.

    Raises:
        ValueError: a package that is not installed, or a viewer that cannot be reached.
    """
    _, project, offline, uri = settings
    known: dict[str, Callable[[], Writer]] = {
        "tensorboard": lambda: TensorBoardWriter(workdir, config=config, resume_round=resume_round),
        "wandb": lambda: WandbWriter(workdir, config=config, project=project, offline=offline),
        "mlflow": lambda: MlflowWriter(workdir, config=config, project=project, offline=offline, uri=uri),
    }
    check_writers(settings)
    writers: dict[str, Writer] = {}
    for name in settings.writers:
        try:
            writers[name] = known[name]()
        except Exception as error:
            Writers(writers).close()
            raise ValueError(
                f"{name} cannot be started: {_line(error)}. Leave it out of tracking.writers"
                + (
                    ""
                    if name == "tensorboard" or settings.offline
                    else ", or keep its record here: tracking.offline=True"
                )
            ) from error
    return Writers(writers)


def _numbers(row: Mapping[str, Any]) -> dict[str, int | float]:
    """The columns that are finite numbers, without the round; viewers draw no others, and some complain of them."""
    found = {}
    for name, value in row.items():
        plain = value if isinstance(value, dict | list | tuple) else plain_value(value)
        if name not in ("round", "rounds") and isinstance(plain, int | float) and math.isfinite(plain):
            found[name] = plain
    return found


def _kept(path: Path, make: Callable[[], str]) -> str:
    """Read the file, which is made at the first call."""
    if not path.exists():
        write_atomically(path, make())
    return path.read_text(encoding="utf-8")


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(". ")


def _optional(name: str) -> ModuleType:
    try:
        return importlib.import_module(_MODULES[name])
    except ImportError as error:
        raise ValueError(
            f"the writer {name!r} needs the package {_MODULES[name]}: pip install 'fedjax_ssl[{name}]', or in a "
            f"checkout pip install '.[{name}]'"
        ) from error
