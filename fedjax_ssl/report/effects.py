"""What a swept number does: which groups lie on one line because they differ in nothing else."""

import json
from collections.abc import Sequence
from typing import Any

from fedjax_ssl.report.groups import Group, differing_fields
from fedjax_ssl.report.metrics import is_number

_FEWEST_DOTS = 4  # values from which on numbers that were drawn together, as in a search, are shown


def effects_of(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The numbers that differ between groups, each with its lines.

    Args:
        groups: of a report.

    Returns:
        For every field: "field", "log" (values of several sizes), "alone" (nothing else differs along a line) and
        "lines": a name and points (value, number of the group), by value.
    """
    configs = [group.config for group in groups]
    fields = differing_fields(configs)
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for field in fields:
        values = [config.get(field) for config in configs]
        given = {float(value) for value in values if value is not None and is_number(value)}
        copied = json.dumps(values) in seen  # rounds and schedule_rounds
        seen.add(json.dumps(values))
        if copied or len(given) < 2:
            continue
        others = [one for one in fields if one != field and not _follows(one, field, configs)]
        lines = _lines(groups, field, others)
        joined = [(name, points) for name, points in lines if len(points) > 1]
        if joined:
            lines = joined
        else:
            lines = _lines(groups, field, [one for one in others if one.endswith(".name")])
            if max(len({value for value, _ in points}) for _, points in lines) < _FEWEST_DOTS:
                continue
        log = min(given) > 0 and max(given) >= 10 * min(given)
        drawn = [{"name": name, "points": points} for name, points in lines]
        found.append({"field": field, "log": log, "alone": bool(joined), "lines": drawn})
    return found


def _follows(other: str, field: str, configs: Sequence[dict[str, Any]]) -> bool:
    """Whether `other` is the same number as `field` everywhere, as `schedule_rounds` is where it is not given."""
    return all(json.dumps(config.get(other)) == json.dumps(config.get(field)) for config in configs)


def _lines(groups: Sequence[Group], field: str, others: Sequence[str]) -> list[tuple[str, list[tuple[float, int]]]]:
    lines: dict[str, tuple[str, list[tuple[float, int]]]] = {}
    for index, group in enumerate(groups):
        value = group.config.get(field)
        if value is None or not is_number(value):
            continue
        key = json.dumps([group.config.get(other) for other in others])
        name = ", ".join(text for part, text in group.parts.items() if part in others)
        lines.setdefault(key, (name, []))[1].append((value, index))
    return [(name, sorted(points)) for name, points in lines.values()]
