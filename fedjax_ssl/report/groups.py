"""Runs that differ in nothing but their seed, and names that say what sets such groups apart."""

import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_ssl.registry import did_you_mean
from fedjax_ssl.report.errors import ReportError
from fedjax_ssl.runs.folder import WATCHING, flat_config
from fedjax_ssl.runs.stored_run import StoredRun

_FIRST = ("method.name", "data.name", "partition.name", "supervision.name", "model.name", "federated.name")


class Group(NamedTuple):
    """Runs with one config and different seeds.

    Attributes:
        name: says what differs from the other groups.
        parts: the name piece by piece, by the fields that are named.
        config: the fields that are compared, by dotted names; None stands for a default and is left out.
        runs: one per seed, in the order of the seeds.
        doubled: runs whose seed is there already; they are not counted.
    """

    name: str
    parts: dict[str, str]
    config: dict[str, Any]
    runs: list[StoredRun]
    doubled: list[StoredRun]

    @property
    def finished(self) -> list[StoredRun]:
        """Runs that came to their end."""
        return [run for run in self.runs if run.state == "finished"]


def group_runs(runs: Iterable[StoredRun]) -> list[Group]:
    """Sorts runs into groups.

    Args:
        runs: with a config.

    Returns:
        The groups in the order of their first runs.
    """
    found: dict[str, tuple[dict[str, Any], list[StoredRun]]] = {}
    for run in runs:
        config = _compared(run.config)
        key = json.dumps(config, sort_keys=True)
        found.setdefault(key, (config, []))[1].append(run)
    configs = [config for config, _ in found.values()]
    groups = []
    for parts, (config, members) in zip(_names(configs), found.values(), strict=True):
        kept: dict[int, StoredRun] = {}
        for run in sorted(members, key=_completeness, reverse=True):
            kept.setdefault(run.config["seed"], run)
        ordered = [kept[seed] for seed in sorted(kept)]
        doubled = [run for run in members if kept[run.config["seed"]] is not run]
        groups.append(Group(", ".join(parts.values()), parts, config, ordered, doubled))
    return groups


def differing_fields(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Fields that have not the same value in all configs; what names something first, then as in the configs."""
    fields = dict.fromkeys(field for config in configs for field in config)
    differing = [field for field in fields if len({_hashed(config.get(field)) for config in configs}) > 1]
    return sorted(differing, key=_rank)


def comes_with_a_name(field: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a field differs for the sole reason that it belongs to one choice, as `method.alpha` does to "xclp".

    Args:
        field: one of `differing_fields`.
        configs: of the groups.
    """
    section = field.rpartition(".")[0]
    name = f"{section}.name"
    if field == name or len({_hashed(config.get(name)) for config in configs}) < 2:
        return False
    values = {_hashed(config[field]) for config in configs if field in config}
    having = {_hashed(config.get(name)) for config in configs if field in config}
    lacking = {_hashed(config.get(name)) for config in configs if field not in config}
    return len(values) == 1 and not having & lacking


def choose_baseline(groups: Sequence[Group], given: str | None) -> Group:
    """Finds the group that the others are compared with.

    Args:
        groups: at least one.
        given: a group's name, words that are in the name of one group only, the folder of one of its runs, or None:
            the first group.

    Raises:
        ReportError: no group, or several.
    """
    if given is None:
        return groups[0]
    for group in groups:
        if given == group.name or any(str(run.path) == given.rstrip("/") for run in group.runs):
            return group
    words = set(re.split("[ ,=]+", given))
    matching = [group for group in groups if words <= set(re.split("[ ,=]+", group.name))]
    if len(matching) == 1:
        return matching[0]
    names = [group.name for group in matching or groups]
    listing = "".join(f"\n  {name}" for name in names[:20]) + ("\n  ..." if len(names) > 20 else "")
    if matching:
        raise ReportError(f"--baseline {given!r} fits {len(matching)} groups; name one of them:{listing}")
    raise ReportError(f"--baseline {given!r} is no group.{did_you_mean(given, names)} There are:{listing}")


def text_of(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    return f"{value:g}" if isinstance(value, float) else "-" if value is None else str(value)


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in flat_config(config).items()
        if value is not None and not any(name == one or name.startswith(f"{one}.") for one in ("seed", *WATCHING))
    }


def _completeness(run: StoredRun) -> tuple[bool, int]:
    return run.summary is not None, len(run.rows)


def _hashed(value: Any) -> Hashable:
    return json.dumps(value)  # lists too, and 1 is not True


def _rank(field: str) -> tuple[int, bool, bool]:
    # `rounds` before `optimizer.schedule_rounds`, which follows it where it is not given.
    return _FIRST.index(field) if field in _FIRST else len(_FIRST), not field.endswith(".name"), "." in field


def _names(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Names as short as they can be: a field is named where it tells groups apart that the fields before do not."""
    blocks: list[list[int]] = [list(range(len(configs)))]
    named: list[list[tuple[str, Any]]] = [[] for _ in configs]
    for field in differing_fields(configs):
        split: list[list[int]] = []
        for block in blocks:
            parts: dict[Hashable, list[int]] = {}
            for index in block:
                parts.setdefault(_hashed(configs[index].get(field)), []).append(index)
            split += parts.values()
            if len(parts) > 1:
                for index in block:
                    named[index].append((field, configs[index].get(field)))
        blocks = split
    used = {field for parts in named for field, _ in parts}
    if not used:
        return [{"method.name": str(config["method.name"])} for config in configs]
    return [{field: _named(field, value, used) for field, value in parts} for parts in named]


def _named(field: str, value: Any, used: set[str]) -> str:
    if field == "method.name":
        return str(value)
    section, _, own = field.rpartition(".")
    short = section if own == "name" else own
    clash = any(other != field and (other.rpartition(".")[2] == short or other == short) for other in used)
    return f"{field if clash else short}={text_of(value)}"
