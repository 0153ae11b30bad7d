"""Metric rows for viewers: TensorBoard and Weights & Biases, both optional.

The record of a run is its folder. A viewer that fails is left out with a note, and the run goes on.
"""

import importlib
import json
import math
import os
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedjax_ssl.errors import how_to_install
from fedjax_ssl.folder.files import Closing, plain_value, write_atomically
from fedjax_ssl.folder.folder_lock import flat_config

_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class WriterSettings(NamedTuple):
    """Viewers that get the rows of a run, and where they keep them."""

    writers: tuple[str, ...] = ()
    project: str = "fedjax_ssl"
    offline: bool = False  # nothing leaves the machine: records are in the run folder


class WriterFailed(UserWarning):
    """A viewer cannot be written to any more."""


class Writer(NamedTuple):
    """An open record of a viewer."""

    write: Callable[[dict[str, float], int], object]
    # ^ called with the numbers of a row, and its round
    finish: Callable[[dict[str, float]], object]  # called with the numbers of the summary
    close: Callable[[bool], object]  # called with whether the run is complete


def _tensorboard(
    module: Any, workdir: Path, config: dict[str, Any], resume_round: int, _: WriterSettings
) -> Writer:
    """Write scalars to `workdir/tensorboard`, one point per row; points after `resume_round` are
    hidden.
    """
    purge = resume_round + 1 if resume_round else None
    # Files are named by the second: those of a quick restart would replace earlier ones.
    writer = module.SummaryWriter(
        str(workdir / "tensorboard"), purge_step=purge, filename_suffix=f".{resume_round}"
    )

    def write(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, global_step=step)

    settings = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in flat_config(config).items()
    }
    # A fixed name: by default it is the time, so a second end would add a second line.
    return Writer(
        write,
        lambda values: writer.add_hparams(settings, values, name="hparams"),
        lambda complete: writer.close(),
    )


def _wandb(
    module: Any, workdir: Path, config: dict[str, Any], _: int, settings: WriterSettings
) -> Writer:
    """Log a run at Weights & Biases, which goes on under the same identifier when it is resumed."""
    run = module.init(
        project=settings.project,
        name=workdir.name,
        dir=str(workdir),
        id=_kept(workdir / "wandb_id", lambda: uuid.uuid4().hex),
        resume="allow",
        config=config,
        **({"mode": "offline"} if settings.offline else {}),
    )
    return Writer(
        lambda values, step: run.log(values, step=step),
        lambda values: run.summary.update(values),
        lambda complete: run.finish(exit_code=0 if complete else 1),
    )


_OPEN = {"tensorboard": _tensorboard, "wandb": _wandb}


class Writers(Closing):
    """Several writers as one; one that fails is left out with a `WriterFailed` warning."""

    def __init__(self, writers: Mapping[str, Writer]):
        """Take over open writers, by name."""
        self._open = dict(writers)
        self._complete = False

    def write(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        self._each(lambda writer: writer.write(_numbers(row), row["round"]))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Take the summary of a run that is complete."""
        self._each(lambda writer: writer.finish(_numbers(summary)))
        self._complete = True

    def close(self) -> None:
        """End all records; a second call does nothing."""
        self._each(lambda writer: writer.close(self._complete))
        self._open.clear()

    def _each(self, action: Callable[[Writer], object]) -> None:
        for name, writer in list(self._open.items()):
            try:
                action(writer)
            # Any error of a library or network: the run matters more.
            except Exception as error:
                del self._open[name]
                text = (
                    f"{name} failed and gets no more metrics; the run goes on without it "
                    f"({_line(error)})"
                )
                warnings.warn(text, WriterFailed, stacklevel=4)


def check_writers(settings: WriterSettings) -> None:
    """Raise ValueError for a writer whose package is not installed; say what to install."""
    for name in settings.writers:
        _optional(name)


def open_writers(
    settings: WriterSettings,
    workdir: str | os.PathLike,
    *,
    config: Mapping[str, Any],
    resume_round: int = 0,
) -> Writers:
    """Open the viewers' records that a config names.

    Args:
        settings: viewers and their places.
        workdir: the run folder.
        config: the run's config.
        resume_round: round of the restored checkpoint, 0 at a first start.

    Returns:
        The writers.

    Raises:
        ValueError: a package that is not installed, or a viewer that cannot be reached.
    """
    check_writers(settings)
    plain = plain_value(config)
    writers = dict[str, Writer]()
    for name in settings.writers:
        try:
            writers[name] = _OPEN[name](
                _optional(name), Path(workdir), plain, resume_round, settings
            )
        except Exception as error:
            Writers(writers).close()
            local = name == "tensorboard" or settings.offline
            more = "" if local else ", or keep its record here: tracking.offline=True"
            raise ValueError(
                f"{name} cannot be started: {_line(error)}. Leave it out of tracking.writers{more}"
            ) from error
    return Writers(writers)


def _numbers(row: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the columns that are finite numbers, without the round, because viewers draw no others
    and some complain.
    """
    found = {}
    for name, value in row.items():
        plain = value if isinstance(value, dict | list | tuple) else plain_value(value)
        if (
            name not in ("round", "rounds")
            and isinstance(plain, int | float)
            and math.isfinite(plain)
        ):
            found[name] = plain
    return found


def _kept(path: Path, make: Callable[[], str]) -> str:
    """Read the file, which is made on the first call."""
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
            f"the writer {name!r} needs the package {_MODULES[name]}: {how_to_install(name)}"
        ) from error
