"""From a run folder to a model that predicts."""

import os
from pathlib import Path
from typing import Any

import jax

from fedjax_ssl import runs
from fedjax_ssl.runs import model_file
from fedjax_ssl.trained.model import TrainedModel, TrainedModelError

CHECKPOINTS = ("auto", "best", "last")


def load_run(workdir: str | os.PathLike, checkpoint: str = "auto") -> TrainedModel:
    """Loads the model that a run has trained; the run's data are not needed.

        model = fedjax_ssl.load_run("runs/digits_xclp")
        probabilities = model.predict(images)

    The run may still be going on: then it is the model of the last checkpoint.

    Args:
        workdir: the run folder.
        checkpoint: "last": of the last round. "best": of the best validation accuracy. "auto": the best one where the
            run has validation examples, otherwise the last one.

    Returns:
        The model.

    Raises:
        TrainedModelError: the folder holds no run, or none with a model yet.
        CheckpointError: its checkpoints cannot be used.
        ConfigError: its config cannot be used here, for example because a module of the user's own is not there.
    """
    if checkpoint not in CHECKPOINTS:
        raise TrainedModelError(f"checkpoint is {checkpoint!r}; allowed: {', '.join(CHECKPOINTS)}")
    folder = Path(workdir)
    stored, model = _read(folder)
    best = runs.Checkpoints(folder, folder="best")
    chosen = "best" if checkpoint == "best" or (checkpoint == "auto" and best.latest() is not None) else "last"
    checkpoints = best if chosen == "best" else runs.Checkpoints(folder)
    if checkpoints.latest() is None:
        raise TrainedModelError(
            f"{folder} has no best checkpoint: the run has no validation examples (config.data.validation_fraction); "
            "load the last one"
            if chosen == "best"
            else f"{folder} has no checkpoint yet; wait for the first one, or run the same command again"
        )
    resolved, rebuilt = model_file.rebuild(stored.config, model)
    number, state, _ = checkpoints.restore(rebuilt.state)
    return TrainedModel(
        path=folder,
        config=resolved,
        round=number,
        checkpoint=chosen,
        metrics=next((row for row in stored.rows if row["round"] == number), {}),
        summary=stored.summary,
        state=jax.tree.map(jax.numpy.asarray, state),
        rebuilt=rebuilt,
        rebuild=lambda **options: model_file.rebuild(stored.config, model, **options)[1].method,
        description=model,
    )


def _read(folder: Path) -> tuple[runs.StoredRun, dict[str, Any]]:
    """The run, and model.json."""
    if not folder.is_dir():
        raise TrainedModelError(f"{folder} is no folder; give the run folder, as --workdir of the run named it")
    if not (folder / "config.json").exists():
        inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
        hint = f" Runs in it: {', '.join(inner[:5])}{', ...' if len(inner) > 5 else ''}" if inner else ""
        raise TrainedModelError(f"{folder} is no run folder: it has no config.json.{hint}")
    if not (folder / "model.json").exists():
        raise TrainedModelError(
            f"{folder} has no model.json: an earlier version made this run. Its command, given again, adds the file "
            "and does not train anew"
        )
    stored = runs.read_run(folder)
    if not stored.config:
        raise TrainedModelError(f"{folder} holds no run that can be read: {'; '.join(stored.problems)}")
    try:
        return stored, model_file.read((folder / "model.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainedModelError(f"{folder}/model.json cannot be read: {error}") from error
