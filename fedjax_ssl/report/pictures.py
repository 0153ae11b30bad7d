"""Pictures of how data lie with the clients: one for every kind of federation, small enough for a page."""

import base64
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image

from fedjax_ssl.report.groups import Group, text_of
from fedjax_ssl.runs.stored_run import StoredRun

_SECTIONS = ("data.", "partition.", "supervision.")
_WIDTH, _COLOURS, _LINES = 900, 48, 60
_BUDGET = 1_200_000  # bytes of all pictures of a report


class Picture(NamedTuple):
    """The data of some groups, as one of their runs drew them.

    Attributes:
        groups: names of the groups that have such data; other seeds draw other clients and labels.
        settings: what says how they are drawn.
        source: the run.
        image: as a data address; "" where there is none.
        text: the beginning of `partition.txt`.
    """

    groups: list[str]
    settings: str
    source: StoredRun
    image: str
    text: str


def pictures_of(groups: Sequence[Group], problems: list[str]) -> list[Picture]:
    """One picture for every kind of data among the groups.

    Args:
        groups: of a report.
        problems: a sentence is added for every picture that cannot be shown.
    """
    kinds: dict[str, list[Group]] = {}
    for group in groups:
        kinds.setdefault(_settings(group.config), []).append(group)
    found, left = [], _BUDGET
    for settings, members in kinds.items():
        runs = [run for group in members for run in group.runs]
        drawn = [run for run in runs if (run.path / "partition.png").exists()]
        source = (drawn or runs)[0]
        image = _image(source, problems) if drawn else ""
        if len(image) > left:
            problems.append(f"{source.path}: partition.png is left out, the report has too many pictures")
            image = ""
        left -= len(image)
        text = _beginning(source)
        if image or text:
            found.append(Picture([group.name for group in members], settings, source, image, text))
    return found


def _settings(config: dict[str, Any]) -> str:
    chosen = {name: value for name, value in config.items() if name.startswith(_SECTIONS)}
    dull = {name for name, value in chosen.items() if value is False or value == 0}
    ordered = sorted(chosen, key=lambda name: (_SECTIONS.index(name.split(".")[0] + "."), not name.endswith(".name")))
    return ", ".join(f"{name}={text_of(chosen[name])}" for name in ordered if name not in dull)


def _image(run: StoredRun, problems: list[str]) -> str:
    """Small and with few colours: these pictures are circles and text."""
    content = io.BytesIO()
    try:
        with Image.open(run.path / "partition.png") as whole:
            picture = whole.convert("RGB")
            picture.thumbnail((_WIDTH, 2 * _WIDTH))
            picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(content, "PNG", optimize=True)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        problems.append(f"{run.path}: partition.png cannot be shown: {error}")
        return ""
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def _beginning(run: StoredRun) -> str:
    try:
        lines = (run.path / "partition.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[:_LINES] + ["..."] * (len(lines) > _LINES))
