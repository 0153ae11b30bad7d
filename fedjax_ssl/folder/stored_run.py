"""Reading run folders in any state."""

import csv
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedjax_ssl.folder.files import decode_json
from fedjax_ssl.folder.folder_lock import (
    SEARCH_FILE,
    SWEEP_FILE,
    RunFolderError,
    flat_config,
)
from fedjax_ssl.gone import without_gone

_MARKS = ("config.json", "metrics.jsonl", "summary.json")  # any of these makes a folder a candidate
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
Named = TypeVar("Named")
_ACCURACY = "_accuracy"
_BALANCED = "_balanced_accuracy"


class StoredRun(NamedTuple):
    """A run as its folder has it.

    Attributes:
        path: the folder.
        config: as resolved; empty where the folder holds no config of a run.
        rows: the metric rows that can be read, in the order of their rounds.
        summary: None where the run is not finished.
        clients: accuracies in [0, 1] of single clients, by name, where they were logged: of "model"
            after the last evaluation, and of every predictor.
        ended: how a run without a summary ended, where a sweep noted it ("failed: not enough
            memory"); else "".
        problems: a sentence for everything that could not be read.
        alike: dotted names of fields, or groups of fields, that do not tell experiments apart.
    """

    path: Path
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any] | None
    clients: dict[str, dict[str, float]]
    ended: str
    problems: tuple[str, ...]
    alike: tuple[str, ...]

    @property
    def finished(self) -> bool:
        """Whether it ended, diverged or not."""
        return bool(self.config) and self.summary is not None

    @property
    def state(self) -> str:
        """State in words: "finished", "diverged, from round 12 on", "unfinished, round 20 of 60",
        or `ended`.
        """
        if not self.config:
            return "no run"
        if self.summary is not None:
            first = self.summary.get("diverged_in_round")
            return "finished" if first is None else f"diverged, from round {first} on"
        if self.ended:
            return self.ended
        if not self.rows:
            return "not started"
        return f"unfinished, round {self.rows[-1]['round']} of {self.config.get('rounds', '?')}"


def read_run(folder: str | os.PathLike) -> StoredRun:
    """Read a run folder. A run that goes on meanwhile may be read: its files are never half
    written, but for a line.

    Missing, damaged and foreign content is left out and named in `problems`, without an error, and
    nothing is written. An unfinished run is no problem.

    Args:
        folder: any folder.

    Returns:
        What could be read.
    """
    path = Path(folder)
    problems: list[str] = []
    config = _read(path / "config.json", problems, _object)
    if config is None:
        if not (path / "config.json").exists():
            problems.append("config.json is missing")
    elif not _is_of_a_run(config):
        problems.append("config.json is not the config of a run: it has no seed or no method.name")
        config = None
    rows = _read_lines(path / "metrics.jsonl", problems)
    summary = _read(path / "summary.json", problems, _object)
    clients = _read(path / "client_accuracy.csv", problems, _last_evaluation) or {}
    clients |= _read(path / "predictions_by_client.csv", problems, _by_predictor) or {}
    ended = _read(path / "ended.json", problems, _object) or {}
    said = ": ".join(str(ended[name]) for name in ("status", "message") if ended.get(name))
    alike = (_read(path / "model.json", problems, _object) or {}).get("alike", ())
    config = without_gone(config or {})
    return StoredRun(path, config, rows, summary, clients, said, tuple(problems), tuple(alike))


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON file of a run folder, such as `summary.json`; None if there is none.

    Raises:
        ValueError: it is damaged.
    """
    return _object(path.read_text(encoding="utf-8")) if path.exists() else None


def on_other_data(
    runs: Iterable[tuple[Named, Mapping[str, Any], Mapping[str, Any] | None]],
    alike: Collection[str],
) -> list[Named]:
    """Find the finished runs whose data changed since the first one with the same settings of
    `config.data`.

    Args:
        runs: (name of the run, config, summary or None).
        alike: dotted names of fields that do not tell experiments apart.
    """
    found = []
    first = dict[str, Any]()
    for run, config, summary in runs:
        settings = json.dumps(flat_config({"data": config.get("data")}, alike), sort_keys=True)
        known_by = (summary or {}).get("data")
        if known_by and first.setdefault(settings, known_by) != known_by:
            found.append(run)
    return found


def only_class(summary: Mapping[str, Any]) -> str | None:
    """Return the class that a finished run predicts for all its test examples of several classes;
    None if there is none.
    """
    scores = summary.get("scores")
    if not isinstance(scores, dict) or sum(map(bool, scores.get("support", ()))) < 2:
        return None
    # The precision of a class that is never predicted is undefined.
    places = [place for place, one in enumerate(scores.get("precision", ())) if one is not None]
    return scores["classes"][places[0]] if len(places) == 1 else None


def refuse_sweep(folder: str | os.PathLike) -> None:
    """Raise RunFolderError for the folder of a sweep where a run is wanted."""
    if any((Path(folder) / name).exists() for name in (SWEEP_FILE, SEARCH_FILE)):
        runs = [str(run) for run in find_runs(folder)] or ["none yet"]
        raise RunFolderError(
            f"{folder} is the folder of a sweep; give one of its runs: {', '.join(runs[:3])}"
            + ", ..." * (len(runs) > 3)
        )


def find_runs(paths: str | os.PathLike | Iterable[str | os.PathLike]) -> list[Path]:
    """Find run folders: the paths themselves, or folders at any depth below them.

    Checkpoints and hidden folders are not searched. A folder that is reached twice, also by a link,
    is listed once. A folder that looks like a run may belong to another program; `read_run` tells.

    Args:
        paths: existing folders, or one.

    Returns:
        The folders, in the order of the paths and of their names (run_2 before run_10).

    Raises:
        RunFolderError: a path does not exist, or is a file.
    """
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for given in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
        path = Path(given)
        if not path.exists():
            raise RunFolderError(
                f"{path} does not exist; give run folders, or a folder that holds some"
            )
        if not path.is_dir():
            raise RunFolderError(
                f"{path} is a file; give the run folder, or a folder that holds some: {path.parent}"
            )
        for folder in _search(path, seen):
            found.setdefault(os.path.realpath(folder), folder)
    return list(found.values())


def _search(folder: Path, seen: set[str]) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        with os.scandir(folder) as entries:
            items = list(entries)
    except OSError:  # no permission to read
        return
    if any(item.name in _MARKS for item in items):
        yield folder
    skipped = (".", "checkpoints")
    below = [item.name for item in items if not item.name.startswith(skipped) and item.is_dir()]
    for name in sorted(below, key=natural_order):
        yield from _search(folder / name, seen)


def natural_order(text: str) -> tuple[list[tuple[float, str]], str]:
    """Return a sort key by which "run_2" comes before "run_10", and "rate_0.03" before
    "rate_0.3".
    """
    first, *rest = _NUMBER.split(text)  # text and numbers alternate
    pairs = zip(map(float, rest[::2]), rest[1::2], strict=True)
    return [(0.0, first), *pairs], text


def _is_of_a_run(config: Mapping[str, Any]) -> bool:
    method = config.get("method")
    return (
        isinstance(config.get("seed"), int)
        and isinstance(method, Mapping)
        and isinstance(method.get("name"), str)
    )


def _read(path: Path, problems: list[str], parse: Callable[[str], Any]) -> Any:
    """Parse a file; None if it is missing or cannot be read, which is added to `problems`."""
    try:
        return parse(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except (ValueError, KeyError, csv.Error, RecursionError) as error:
        problems.append(f"{path.name} is damaged and left out: {error}")
    return None


def _object(text: str) -> dict[str, Any]:
    value = decode_json(text)
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def _read_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    # Text after the last line break is a row in the making, or the rest of a killed process.
    for number, line in enumerate((_read(path, problems, str) or "").split("\n")[:-1], start=1):
        try:
            row = decode_json(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or type(row.get("round")) is not int:
            problems.append(f"{path.name}, line {number} is damaged and left out")
        elif rows and row["round"] <= rows[-1]["round"]:
            problems.append(
                f"{path.name}, line {number} repeats round {row['round']} and is left out"
            )
        else:
            rows.append(row)
    return rows


def _last_evaluation(text: str) -> dict[str, dict[str, float]]:
    """Return the last whole row of `client_accuracy.csv`: a row per evaluation, and a column per
    client after "round".
    """
    lines = text.split("\n")[:-1]
    if len(lines) < 2:
        return {}
    names, cells = csv.reader([lines[0], lines[-1]])
    found = {name: _share(cell) for name, cell in zip(names[1:], cells[1:], strict=True)}
    return {"model": found} if found else {}


def _by_predictor(text: str) -> dict[str, dict[str, float]]:
    """Return the accuracies of `predictions_by_client.csv`: a line per client, a column per
    predictor.
    """
    found: dict[str, dict[str, float]] = {}
    for line in csv.DictReader(text.splitlines()):
        for column, cell in line.items():
            if column and column.endswith(_ACCURACY) and not column.endswith(_BALANCED) and cell:
                found.setdefault(column.removesuffix(_ACCURACY), {})[line["client"]] = _share(cell)
    return found


def _share(cell: str) -> float:
    value = float(cell)
    if not math.isfinite(value):
        raise ValueError(f"{cell!r} is no accuracy")
    return value
