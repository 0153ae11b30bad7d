"""From points to runs: their configs, names and programs, and how `sweep.json` keeps them for the workers."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_collections
from flax.traverse_util import flatten_dict

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import ConfigError
from fedjax_ssl.errors import counted
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.runs.compile import static_part
from fedjax_ssl.runs.files import plain_value, write_atomically
from fedjax_ssl.runs.folder import SWEEP_FILE as FILE
from fedjax_ssl.runs.folder import RunFolderError, config_differences, read_stored
from fedjax_ssl.runs.loop import UNCOMPARED
from fedjax_ssl.sweep.axes import Settings

_SHORT = {"optimizer.learning_rate": "lr", "optimizer.batch_size": "batch", "optimizer.local_epochs": "epochs"}
_LONGEST = 100  # letters of a run's name
_SHOWN = 5  # differences in a message


class PlannedRun(NamedTuple):
    """A run of a sweep."""

    name: str  # of its folder
    program: int  # runs with the same number share what they compile
    point: dict[str, Any]  # swept fields -> values
    config: dict[str, Any]  # resolved


class Plan(NamedTuple):
    """All runs of a sweep."""

    fields: tuple[str, ...]  # that are swept, in the order of columns
    runs: tuple[PlannedRun, ...]

    @property
    def programs(self) -> list[list[PlannedRun]]:
        """The runs by program."""
        found: dict[int, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(run.program, []).append(run)
        return [found[number] for number in sorted(found)]


def plan(configs_and_points: Iterable[tuple[ml_collections.ConfigDict, Settings]], fields: Sequence[str]) -> Plan:
    """Plans the runs of resolved configs.

    Args:
        configs_and_points: each with the swept fields that it was made of, as a person wrote them.
        fields: that are swept.

    Raises:
        ConfigError: two points are the same run, or there are none.
    """
    runs: list[PlannedRun] = []
    programs: dict[str, int] = {}
    seen: dict[str, str] = {}
    varied = [*(field for field in fields if field != "seed"), "seed"]
    for config, written in configs_and_points:
        point = {field: _get(config, field) for field in varied if field in written or field == "seed"}
        program = programs.setdefault(_program_of(config), len(programs))
        plain = plain_value(config.to_dict())
        name = _unused(_name(point), plain, {run.name for run in runs})
        if (same := identity(plain)) in seen:
            raise ConfigError(
                f"{seen[same]} and {name} are the same run; leave one of the values out (two ways of writing a "
                "number are one value)"
            )
        seen[same] = name
        runs.append(PlannedRun(name, program, plain_value(point), plain))
    if not runs:
        raise ConfigError("there is nothing to run: the sweep has no point")
    return Plan(tuple(varied), tuple(runs))


def from_settings(name: str, points: Sequence[Settings]) -> Plan:
    """The plan of a config with different settings.

    Where several methods are swept, a setting of a method is for those that have it.

    Args:
        name: of a config, as `fedjax_ssl.config.load` takes it.
        points: from `fedjax_ssl.sweep.axes.points`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    if len(_methods(points)) > 1:
        narrowed = [_of_its_method(point) for point in points]
        _check_settings(points)
        points = narrowed
    points = _without_repeats(points)
    fields = list(dict.fromkeys(field for point in points for field in point))
    several = [field for field in fields if len({str(point[field]) for point in points if field in point}) > 1]

    def resolved() -> Iterable[tuple[ml_collections.ConfigDict, Settings]]:
        for point in points:
            config = configs.load(name, tuple(point.items()))
            yield configs.resolve(config), {field: point[field] for field in several if field in point}

    return plan(resolved(), several)


def _methods(points: Sequence[Settings]) -> list[str]:
    return list(dict.fromkeys(point["method.name"] for point in points if "method.name" in point))


def _of_its_method(point: Settings) -> Settings:
    with configs.naming("method.name"):
        known = {f"method.{setting}" for setting in ("name", *methods.settings(point["method.name"]))}
    return {field: value for field, value in point.items() if not field.startswith("method.") or field in known}


def _check_settings(points: Sequence[Settings]) -> None:
    """Every setting of a method has to be one of a method that is swept."""
    settings = {f"method.{one}" for method in _methods(points) for one in ("name", *methods.settings(method))}
    for field in points[0]:
        if field.startswith("method.") and field not in settings:
            raise ConfigError(
                f"none of the methods {', '.join(_methods(points))} has the setting {field!r}."
                f"{did_you_mean(field, settings)}"
            )


def _without_repeats(points: Iterable[Settings]) -> list[Settings]:
    return list({json.dumps(point, sort_keys=True): point for point in points}.values())


def from_file(path: str | Path, seeds: Sequence[int] | None = None) -> Plan:
    """The plan of a Python file with a function `get_sweep()` that yields configs.

    Args:
        path: of the file.
        seeds: each config is run with all of them; None: with its own.

    Raises:
        ConfigError: the file has no such function, or yields something else.
    """
    given = configs.load_several(Path(path), "get_sweep")
    if seeds is not None:
        given = [ml_collections.ConfigDict({**config.to_dict(), "seed": seed}) for config in given for seed in seeds]
    resolved = [configs.resolve(config) for config in given]
    flat = [flatten_dict(plain_value(config.to_dict()), sep=".") for config in resolved]
    names = {one["method.name"] for one in flat}
    varied = [
        field
        for field in dict.fromkeys(field for one in flat for field in one)
        if any(
            len({json.dumps(one.get(field)) for one in flat if one["method.name"] == method}) > 1 for method in names
        )
    ]
    fields = [*(["method.name"] if len(names) > 1 else []), *varied]
    written = [{field: one[field] for field in fields if field in one} for one in flat]
    return plan(zip(resolved, written, strict=True), fields)


def is_sweep_file(name: str) -> bool:
    """Whether a name is that of a Python file that defines `get_sweep`."""
    path = Path(name)
    return path.suffix == ".py" and path.is_file() and b"def get_sweep" in path.read_bytes()  # in whatever encoding


def identity(config: Mapping[str, Any]) -> str:
    """Text that is the same for configs which give the same run."""
    flat = flatten_dict(dict(config), sep=".")
    kept = {
        field: value
        for field, value in flat.items()
        if not any(field == one or field.startswith(f"{one}.") for one in UNCOMPARED)
    }
    return json.dumps(kept, sort_keys=True)


def save(folder: Path, plan: Plan, command: Sequence[str]) -> None:
    """Writes `sweep.json`: a whole config for each program, and by which fields its runs differ from it."""
    bases: dict[int, dict[str, Any]] = {}
    rows = []
    for run in plan.runs:
        flat = flatten_dict(run.config, sep=".")
        base = bases.setdefault(run.program, flat)
        changes = {field: value for field, value in flat.items() if json.dumps(base.get(field)) != json.dumps(value)}
        rows.append({"name": run.name, "program": run.program, "point": run.point, "changes": changes})
    programs = {str(number): _nested(base) for number, base in bases.items()}
    content = {"command": list(command), "fields": list(plan.fields), "programs": programs, "runs": rows}
    write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")


def load(folder: Path) -> Plan | None:
    """Reads `sweep.json`; None where there is none.

    Raises:
        RunFolderError: it cannot be read.
    """

    def build(content: dict[str, Any]) -> Plan:
        bases = {number: flatten_dict(config, sep=".") for number, config in content["programs"].items()}
        runs = [
            PlannedRun(
                row["name"],
                row["program"],
                row["point"],
                _nested({**bases[str(row["program"])], **row["changes"]}),
            )
            for row in content["runs"]
        ]
        return Plan(tuple(content["fields"]), tuple(runs))

    return read_stored(folder / FILE, build)


def extended(stored: Plan, wanted: Plan, folder: Path) -> Plan:
    """The stored plan with the runs that are new; runs that are there keep their names.

    Raises:
        RunFolderError: runs of the stored plan are missing; the message says which, or what changed in all of them.
    """
    there = {identity(run.config): run for run in stored.runs}
    asked = {identity(run.config) for run in wanted.runs}
    missing = [run for same, run in there.items() if same not in asked]
    if missing:
        raise RunFolderError(_refusal(missing, stored, wanted, folder))
    names, programs = {run.name for run in stored.runs}, {_static_text(run.config): run.program for run in stored.runs}
    runs = list(stored.runs)
    for run in wanted.runs:
        if identity(run.config) in there:
            continue
        program = programs.setdefault(_static_text(run.config), len(set(programs.values())))
        name = _unused(run.name, run.config, names)
        names.add(name)
        runs.append(run._replace(name=name, program=program))
    fields = [field for field in dict.fromkeys((*stored.fields, *wanted.fields)) if field != "seed"]
    return Plan((*fields, "seed"), tuple(runs))


def config_of(run: PlannedRun) -> ml_collections.ConfigDict:
    """The config of a planned run, as `fedjax_ssl.runs.loop.run` takes it."""
    return ml_collections.ConfigDict(_with_tuples(run.config))


def _refusal(missing: Sequence[PlannedRun], stored: Plan, wanted: Plan, folder: Path) -> str:
    lines = [f"  {run.name}" for run in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        lines.append(f"  and {len(missing) - _SHOWN} more")
    reason = f"{folder} holds a sweep with {counted(len(missing), 'run')} that this command leaves out:\n" + "\n".join(
        lines
    )
    if len(missing) == len(stored.runs):
        ignore = (*UNCOMPARED, *stored.fields, *wanted.fields)
        changed = config_differences(stored.runs[0].config, wanted.runs[0].config, ignore=ignore)
        shown = [f"  {line}" for line in changed[:_SHOWN]] + ["  ..."] * (len(changed) > _SHOWN)
        reason += "\nTheir configs differ (stored -> now):\n" + "\n".join(shown) if shown else ""
    return f"{reason}\nA sweep can grow: give its old values too. Or give another --workdir."


def _program_of(config: ml_collections.ConfigDict) -> str:
    """What the code and shapes of a run's programs follow from."""
    return static_part(config) + json.dumps(plain_value([config.partition.to_dict(), config.supervision.to_dict()]))


def _static_text(config: Mapping[str, Any]) -> str:
    return _program_of(ml_collections.ConfigDict(_with_tuples(dict(config))))


def _name(point: Mapping[str, Any]) -> str:
    last = [field.rpartition(".")[2] for field in point]
    parts = []
    for field, value in point.items():
        own = field.rpartition(".")[2]
        short = _SHORT.get(field, field.removesuffix(".name") if own == "name" else own)
        if last.count(own) > 1 and own != "name":
            short = field
        text = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{short}={re.sub(r'[^A-Za-z0-9_.+-]+', '-', text).strip('-') or 'none'}")
    return ",".join(parts)


def _unused(name: str, config: Mapping[str, Any], taken: set[str]) -> str:
    """The name, with a digest of the config where it is too long or another run has it."""
    if len(name) <= _LONGEST and name not in taken:
        return name
    digest = hashlib.sha256(identity(config).encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - 9]}-{digest}"


def _get(config: ml_collections.ConfigDict, field: str) -> Any:
    value: Any = config
    for part in field.split("."):
        value = value.get(part) if value is not None else None
    return value


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for field, value in flat.items():
        *sections, own = field.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[own] = value
    return nested


def _with_tuples(value: Any) -> Any:
    """As a config holds it: JSON knows no tuples."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(item) for name, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
