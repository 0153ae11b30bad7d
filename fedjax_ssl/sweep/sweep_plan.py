"""From points to runs: their configs, names and programs, and `sweep.json`, which stores them for
the workers.
"""

import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from fedjax_ssl import config as configs
from fedjax_ssl import data, methods
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data.federation.supervision import build_supervision
from fedjax_ssl.errors import counted, how_to_install
from fedjax_ssl.folder.files import plain_value, write_atomically
from fedjax_ssl.folder.folder_lock import (
    COMPARED,
    RunFolderError,
    config_differences,
    flat_config,
    read_stored,
)
from fedjax_ssl.folder.folder_lock import SWEEP_FILE as FILE
from fedjax_ssl.gone import without_gone
from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.runs.build import federate, load_resolved
from fedjax_ssl.runs.program import static_part
from fedjax_ssl.sweep.axes import Settings

_SHORT = {
    "optimizer.learning_rate": "lr",
    "optimizer.batch_size": "batch",
    "optimizer.local_epochs": "epochs",
}
_LONGEST = 100  # characters of a run's name, at most
_SHOWN = 5  # differences in a message, at most
_DRAWN = 8  # settings of the data that are compared before a sweep, at most


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    name: str  # name of the run and its folder
    program: str  # digest of its programs; runs with the same digest share them
    point: dict[str, Any]  # swept fields -> values
    config: dict[str, Any]  # resolved config


@dataclasses.dataclass(frozen=True)
class Plan:
    """All runs of a sweep."""

    fields: tuple[str, ...]  # swept fields, in the order of columns
    runs: tuple[PlannedRun, ...]

    @property
    def programs(self) -> list[list[PlannedRun]]:
        """Runs grouped by program."""
        found: dict[str, list[PlannedRun]] = {}
        for run in self.runs:
            found.setdefault(run.program, []).append(run)
        return list(found.values())


def plan(
    configs_and_points: Iterable[tuple[ml_collections.ConfigDict, Settings]], fields: Sequence[str]
) -> Plan:
    """Plan the runs of resolved configs.

    Args:
        configs_and_points: each config with its swept fields, as the user wrote them.
        fields: swept fields.

    Raises:
        ConfigError: two points are the same run, or there are none.
    """
    runs: list[PlannedRun] = []
    seen: dict[str, str] = {}
    varied = [*(field for field in fields if field != "seed"), "seed"]
    for config, written in configs_and_points:
        plain = plain_value(config.to_dict())
        flat = flat_config(plain)
        point = {field: flat.get(field) for field in varied if field in written or field == "seed"}
        name = _unused(_name(point), plain, {run.name for run in runs})
        if (same := identity(plain)) in seen:
            raise ConfigError(
                f"{seen[same]} and {name} are the same run; leave one of the values out (two ways "
                "of writing a number are one value)"
            )
        seen[same] = name
        runs.append(PlannedRun(name, _program(config), point, plain))
    if not runs:
        raise ConfigError("there is nothing to run: the sweep has no point")
    return Plan(tuple(varied), tuple(runs))


def named(runs: Iterable[tuple[str, ml_collections.ConfigDict]]) -> Plan:
    """Plan resolved configs with given names, such as the cells of a table; equal configs are one
    run.

    Args:
        runs: comma-separated parts of a name, in any characters, and config.
    """
    planned: dict[str, PlannedRun] = {}
    for name, config in runs:
        plain = plain_value(config.to_dict())
        if (same := identity(plain)) not in planned:
            own = _unused(
                ",".join(map(_plain, name.split(","))),
                plain,
                {run.name for run in planned.values()},
            )
            planned[same] = PlannedRun(own, _program(config), {"seed": plain["seed"]}, plain)
    return Plan(("seed",), tuple(planned.values()))


def from_settings(name: str, points: Sequence[Settings]) -> Plan:
    """Plan the runs of a config with different settings.

    If several methods are swept, a setting holds for the methods that have it, and all methods that
    can use the config's labels get these.

    Args:
        name: name of a config, see `fedjax_ssl.config.load`.
        points: from `fedjax_ssl.sweep.axes.points`.

    Raises:
        ConfigError: a setting cannot be used.
    """
    points = _of_their_methods(points)
    fields = list(dict.fromkeys(field for point in points for field in point))
    several = [
        field
        for field in fields
        if len({str(point[field]) for point in points if field in point}) > 1
    ]

    place = place_of_labels(name, points)
    loaded = [configs.load(name, tuple(point.items()), place) for point in points]
    written = [{field: point[field] for field in several if field in point} for point in points]
    return plan(zip(map(configs.resolve, loaded), written, strict=True), several)


def place_of_labels(name: str, points: Sequence[Settings]) -> str | None:
    """Return the place of a config's labels, a name of a supervision, if several methods are
    compared on them; otherwise None, also if a setting gives the place.
    """
    swept = {str(point.get("method.name")) for point in points}
    if len(swept) < 2 or any("supervision.name" in point for point in points):
        return None
    try:
        place: str = configs.load(name).supervision.name
    except ConfigError:  # the config has no labels of its own without a method or another argument
        return None
    return place


def _of_their_methods(points: Sequence[Settings]) -> list[Settings]:
    """Keep only the settings that its method has in every point, if several methods are swept, and
    every point once.
    """
    names = dict.fromkeys(point["method.name"] for point in points if "method.name" in point)
    with configs.naming("method.name"):
        known = {
            name: {f"method.{one}" for one in ("name", *methods.settings(name))} for name in names
        }
    if "compose" in known:
        # settings of parts are checked when the config is made
        known["compose"] |= {field for field in points[0] if field.count(".") > 1}
    if len(known) > 1:
        every = set().union(*known.values())
        for field in points[0]:
            if field.startswith("method.") and field not in every:
                raise ConfigError(
                    f"none of the methods {', '.join(known)} has the setting {field!r}."
                    f"{did_you_mean(field, every)}"
                )
        others = {name: every - own for name, own in known.items()}
        points = [
            {
                field: value
                for field, value in point.items()
                if field not in others[point["method.name"]]
            }
            for point in points
        ]
    return list({json.dumps(point, sort_keys=True): point for point in points}.values())


def from_file(path: str | Path, seeds: Sequence[int] | None = None) -> Plan:
    """Plan the runs of a Python file with a function `get_sweep()` that yields configs.

    Args:
        path: the file.
        seeds: every config runs with all of these; None: its own seed.

    Raises:
        ConfigError: the file has no such function, or yields something else.
    """
    import pandas

    given = configs.load_several(Path(path), "get_sweep")
    if seeds is not None:
        pairs = itertools.product(given, seeds)
        given = [
            ml_collections.ConfigDict({**config.to_dict(), "seed": seed}) for config, seed in pairs
        ]
    resolved = [configs.resolve(config) for config in given]
    flat = [flat_config(plain_value(config.to_dict())) for config in resolved]
    texts = pandas.DataFrame(
        [{field: json.dumps(value) for field, value in one.items()} for one in flat]
    )
    counts = texts.groupby("method.name").agg(lambda values: values.nunique(dropna=False)).max()
    several = [field for field in texts if counts.get(field, texts["method.name"].nunique()) > 1]
    fields = sorted(several, key=lambda field: field != "method.name")
    written = [{field: one[field] for field in fields if field in one} for one in flat]
    return plan(zip(resolved, written, strict=True), fields)


def apart(plan: Plan) -> list[str]:
    """List the runs that have other test examples or another number of labels than the first one
    with the same seed.

    If runs differ in their data, these are read and drawn as the runs will do; of many settings
    only the first few.
    """
    runs: dict[str, PlannedRun] = {}
    for run in plan.runs:
        sections = [run.config[section] for section in ("data", "partition", "supervision")]
        runs.setdefault(json.dumps(sections), run)
    first, *others = list(runs.values())[:_DRAWN]

    def drawn(run: PlannedRun) -> Mapping[str, Any]:
        config = config_of(run)
        config.data.download = False
        experiment = load_resolved(config)
        nothing = jnp.zeros((0, *experiment.dataset.train.x.shape[1:]))
        federation = federate(experiment, jax.random.key(first.config["seed"]), nothing)
        return data.what_is_compared(experiment.as_read, federation)

    try:
        found = {run.name: drawn(run) for run in (first, *others)} if others else {}
    except (ValueError, data.DatasetUnavailable) as error:
        return [
            f"  whether runs have the same test examples and as many labels is not known: {error}"
        ]
    lines = [f"  of {len(runs)} settings of the data, only the first {_DRAWN} are compared"] * (
        len(runs) > _DRAWN
    )
    for field, words in COMPARED.items():
        differ = [run for run in others if found[run.name][field] != found[first.name][field]]
        if differ and field == "labels_seen":
            lines += _other_labels(first, differ, {name: one[field] for name, one in found.items()})
        elif differ:
            what = f"{words} than {first.name}, so that a report pairs none of them"
            lines.append(f"  {what}: {names_of(differ)}")
    return lines


def _other_labels(
    first: PlannedRun, differ: Sequence[PlannedRun], seen: Mapping[str, int]
) -> list[str]:
    """Return a note on runs that see another number of labels than the first one, and how to give
    all the same.
    """
    lines = []
    for run in differ:
        line = f"{_short(run)} sees {seen[run.name]} labels, {_short(first)} {seen[first.name]}"
        lines.append(f"  {line}: not comparable.")
        method = run.config["method"]["name"]
        if any(field.startswith("supervision.") for field in run.point):
            continue  # the difference is intended
        supervision = first.config["supervision"]
        if method != first.config["method"]["name"] and not methods.fits(
            method, supervision["name"]
        ):
            lines[-1] += f" {method} is not made for supervision.name={supervision['name']}"
        elif run.config["supervision"] != supervision:
            shown = (
                f"--set supervision.{name}={supervision[name]}"
                for name in sorted(supervision, key=lambda name: name != "name")
                if supervision[name] is not None
            )
            lines[-1] += f" Same labels: {' '.join(shown)}"
    return lines


def _short(run: PlannedRun) -> str:
    """Return the name of a run without its seed."""
    point = {field: value for field, value in run.point.items() if field != "seed"}
    return _name(point).removeprefix("method=") or run.name


def is_sweep_file(name: str) -> bool:
    """Return whether a name is a Python file that defines `get_sweep`."""
    path = Path(name)
    # In any encoding.
    return path.suffix == ".py" and path.is_file() and b"def get_sweep" in path.read_bytes()


@functools.cache
def alike() -> tuple[str, ...]:
    """Return the fields that do not make different experiments."""
    return configs.fields_that(lambda one: one.alike)


def identity(config: Mapping[str, Any]) -> str:
    """Write a config as text that is equal for configs of the same run."""
    flat = flat_config(without_gone(config), ignore=alike())
    # as in older sweeps, where it was not set
    flat["federated.devices"] = flat.get("federated.devices") or 1
    given = {field: value for field, value in flat.items() if value is not None}
    return json.dumps(given, sort_keys=True)


def save(folder: Path, plan: Plan, command: Sequence[str]) -> None:
    """Write `sweep.json`."""
    content = {
        "command": list(command),
        "fields": plan.fields,
        "runs": [dataclasses.asdict(run) for run in plan.runs],
    }
    write_atomically(folder / FILE, json.dumps(content, indent=1) + "\n")


def load(folder: Path) -> Plan | None:
    """Read `sweep.json`; None if it does not exist.

    Raises:
        RunFolderError: it cannot be read.
    """

    def build(content: dict[str, Any]) -> Plan:
        return Plan(tuple(content["fields"]), tuple(PlannedRun(**run) for run in content["runs"]))

    return read_stored(folder / FILE, build)


def extended(stored: Plan, wanted: Plan, folder: Path) -> Plan:
    """Add new runs to a stored plan; existing runs keep their names.

    Raises:
        RunFolderError: runs of the stored plan are missing; the message says which, or what changed
            in all of them.
    """
    there, asked = ({identity(run.config) for run in one.runs} for one in (stored, wanted))
    if missing := [run for run in stored.runs if identity(run.config) not in asked]:
        raise RunFolderError(_refusal(missing, stored, wanted, folder))
    runs = list(stored.runs)
    names = {run.name for run in stored.runs}
    for run in wanted.runs:
        if identity(run.config) not in there:
            name = _unused(run.name, run.config, names)
            names.add(name)
            runs.append(dataclasses.replace(run, name=name))
    fields = [field for field in dict.fromkeys((*stored.fields, *wanted.fields)) if field != "seed"]
    return Plan((*fields, "seed"), tuple(runs))


def config_of(run: PlannedRun) -> ml_collections.ConfigDict:
    """Return the resolved config of a planned run."""
    return ml_collections.ConfigDict(_with_tuples(run.config)).lock()


def _refusal(missing: Sequence[PlannedRun], stored: Plan, wanted: Plan, folder: Path) -> str:
    left_out = (
        f"{counted(len(missing), 'run')} that this command leaves out: {names_of(missing, _SHOWN)}"
    )
    reason = f"{folder} holds a sweep with {left_out}"
    if len(missing) == len(stored.runs):
        ignore = (*alike(), *stored.fields, *wanted.fields)
        changed = config_differences(stored.runs[0].config, wanted.runs[0].config, ignore=ignore)
        shown = [f"  {line}" for line in changed[:_SHOWN]] + ["  ..."] * (len(changed) > _SHOWN)
        reason += "\nTheir configs differ (stored -> now):\n" + "\n".join(shown) if shown else ""
        apart = config_differences(stored.runs[0].config, wanted.runs[0].config, ignore=alike())
        moved = configs.fields_that(lambda one: one.goes_on == "moved")
        if apart and all(line.partition(":")[0] in moved for line in apart):
            reason += (
                f"\nOnly the place of the data differs ({apart[0]}): where they moved, the old "
                "command goes on with a link at their old place (ln -s NEW OLD)."
            )
    return f"{reason}\nA sweep can grow: give its old values too. Or give another --workdir."


def _program(config: ml_collections.ConfigDict) -> str:
    """Return a digest of everything that decides the code and the shapes of a run's programs.

    The number of class labels only decides the width of tables, which `Shared.align` makes equal.
    The numbers of coarse labels and sets decide more.
    """
    shown = config.supervision.to_dict()
    with configs.naming("supervision"):
        weak = build_supervision(shown["name"], **configs.options(config.supervision)).weak
    if not weak:
        numbers = [name for name, value in shown.items() if type(value) in (int, float)]
        shown |= dict.fromkeys(numbers, "a table")
    sections = plain_value([config.partition.to_dict(), shown])
    return hashlib.sha256((static_part(config) + json.dumps(sections)).encode()).hexdigest()[:16]


def _name(point: Mapping[str, Any]) -> str:
    last = [field.rpartition(".")[2] for field in point]
    parts = []
    for field, value in point.items():
        own = field.rpartition(".")[2]
        short = _SHORT.get(field, field.removesuffix(".name") if own == "name" else own)
        if last.count(own) > 1 and own != "name":
            short = field
        text = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{short}={_plain(text) or 'none'}")
    return ",".join(parts)


def _plain(text: str) -> str:
    """Write text as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-")


def _unused(name: str, config: Mapping[str, Any], taken: set[str]) -> str:
    """Add a digest of the config to a name that is too long or that another run has."""
    if len(name) <= _LONGEST and name not in taken:
        return name
    digest = hashlib.sha256(identity(config).encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - 9]}-{digest}"


def _with_tuples(value: Any) -> Any:
    """Turn lists into tuples, because JSON has no tuples and a config no lists."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(item) for name, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def names_of(runs: Sequence[PlannedRun], most: int = 3) -> str:
    """List the first names of runs, for a message."""
    shown = ", ".join(run.name for run in runs[:most])
    return shown if len(runs) <= most else f"{shown}, ... ({len(runs)} in all)"


def needed(package: str, option: str) -> Any:
    """Import a package of the extra `sweep` that an option needs.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{option} needs the package {package}: {how_to_install('sweep')}"
        ) from error
