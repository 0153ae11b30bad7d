"""Metric rows for viewers: TensorBoard and Weights & Biases, both optional."""

import importlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from fedjax_ssl.tracking.files import plain_value, write_atomically


class Writer(Protocol):
    """Takes the rows of a run as they come."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes one row; it has "round"."""

    def close(self) -> None:
        """Ends the record."""


class TensorBoardWriter:
    """Scalars in `workdir/tensorboard`, one point per row; needs the extra `tensorboard`."""

    def __init__(self, workdir: str | os.PathLike, *, resume_round: int | None = None):
        """Opens the record.

        Args:
            workdir: the run folder.
            resume_round: round of the restored checkpoint: later rounds' points are hidden.
        """
        module = _optional("tensorboardX", "tensorboard")
        purge = None if resume_round is None else resume_round + 1
        self._writer = module.SummaryWriter(str(Path(workdir) / "tensorboard"), purge_step=purge)

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes one row."""
        for name, value in _numbers(row).items():
            self._writer.add_scalar(name, value, global_step=row["round"])

    def close(self) -> None:
        """Ends the record."""
        self._writer.close()


class WandbWriter:
    """A run at Weights & Biases; needs the extra `wandb`. A resumed run goes on under the same identifier."""

    def __init__(self, workdir: str | os.PathLike, *, config: Mapping[str, Any], project: str = "fedjax_ssl"):
        """Opens the record.

        Args:
            workdir: the run folder; the run's identifier is kept in `wandb_id` there.
            config: the run's config, shown beside the curves.
            project: name of the project.
        """
        module = _optional("wandb", "wandb")
        identifier = Path(workdir) / "wandb_id"
        if not identifier.exists():
            write_atomically(identifier, uuid.uuid4().hex)
        self._run = module.init(
            project=project,
            name=Path(workdir).name,
            dir=str(workdir),
            id=identifier.read_text(encoding="utf-8"),
            resume="allow",
            config=plain_value(config),
        )

    def write(self, row: Mapping[str, Any]) -> None:
        """Takes one row."""
        self._run.log(_numbers(row), step=row["round"])

    def close(self) -> None:
        """Ends the record."""
        self._run.finish()


def open_writers(
    names: Sequence[str], workdir: str | os.PathLike, *, config: Mapping[str, Any], resume_round: int | None = None
) -> list[Writer]:
    """Opens the viewers' records that a config names.

    Args:
        names: of "tensorboard" and "wandb".
        workdir: the run folder.
        config: the run's config.
        resume_round: round of the restored checkpoint, None at a first start.

    Returns:
        The writers in the order of the names.

    Raises:
        ValueError: an unknown name, or an extra that is not installed.
    """
    known: dict[str, Callable[[], Writer]] = {
        "tensorboard": lambda: TensorBoardWriter(workdir, resume_round=resume_round),
        "wandb": lambda: WandbWriter(workdir, config=config),
    }
    for name in names:
        if name not in known:
            raise ValueError(f"unknown writer {name!r}; there are {', '.join(map(repr, known))}")
    return [known[name]() for name in names]


def _numbers(row: Mapping[str, Any]) -> dict[str, int | float]:
    values = {name: plain_value(value) for name, value in row.items() if name != "round"}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


def _optional(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"the writer {extra!r} needs the package {module}: in a checkout, pip install '.[{extra}]'"
        ) from error
