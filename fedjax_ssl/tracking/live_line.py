"""The one live line of a run on a terminal, as wide as the terminal is."""

import math
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

COMPILING = "compiling ..."
_BAR = (8, 24)  # columns that the bar takes, at least and at most


class LiveLine(Progress):
    """One line that always fits: what matters least goes first where the terminal is narrow."""

    def __init__(self, total: int, done: int, console: Console):
        super().__init__(console=console, transient=True)
        self.state: dict[str, str] = {"values": COMPILING}
        self._spinner = SpinnerColumn()
        self._task = self.add_task("", total=total, completed=done)

    def show(self, done: int | None = None, **state: str) -> None:
        """Changes what is shown, at once."""
        self.state.update(state)
        self.update(self._task, completed=done, refresh=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The line for the width of the terminal as it is now."""
        if not self.tasks:  # rich asks once before there is one
            return
        task = self.tasks[0]
        seconds = task.finished_time if task.finished else task.elapsed
        parts = {
            "round": f"round {int(task.completed)}/{int(task.total or 0)}",
            "values": self.state.get("values", ""),
            "more": self.state.get("more", ""),
            "speed": self.state.get("speed", ""),
            "elapsed": f"{duration(seconds or 0.0)} so far",
            "left": self.state.get("left", ""),
        }
        room = self.console.width - 3  # after the spinner and a blank on both of its sides
        shown = fitting(parts, ("round", "values", "left", "more", "elapsed", "speed"), room)
        line = Table.grid(padding=(0, 1, 0, 0))
        before, after = shown.pop("round", ""), ", ".join(shown.values())
        cells: list[RenderableType] = [self._spinner.render(task), Text(before, no_wrap=True)]
        bar = min(room - len(before) - len(after) - 2, _BAR[1])
        if bar >= _BAR[0]:
            cells.append(ProgressBar(task.total, task.completed, width=bar))
        cells.append(Text(after, no_wrap=True))
        line.add_row(*cells)
        yield line


def fitting(parts: Mapping[str, str], order: Sequence[str], width: int) -> dict[str, str]:
    """The parts of a line that fit side by side, two columns apart.

    Args:
        parts: texts by name, in the order in which they stand.
        order: names, the most important first; the first one is always kept.
        width: of the line.

    Returns:
        Those that are kept, without the empty ones.
    """
    kept, used = set(), -2
    for number, name in enumerate(order):
        needed = len(parts[name]) + 2
        if parts[name] and (used + needed <= width or number == 0):
            kept.add(name)
            used += needed
    return {name: text for name, text in parts.items() if name in kept}


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, rounded up: "0:01:05"."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
