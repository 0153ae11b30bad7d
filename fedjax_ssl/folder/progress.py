"""The report of a run on the terminal: a start table, a progress bar or plain lines, an end
table.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TextIO

import rich.console
import rich.progress
import rich.table
from rich.text import Text

from fedjax_ssl.folder.files import Closing, bytes_in_words

_SHOWN = (
    ("accuracy", "test_accuracy", "{:.1%}"),
    ("pseudo-labels", "pseudo_label_accuracy", "{:.1%}"),
    ("epsilon", "epsilon", "{:.3g}"),
    ("client updates/s", "client_updates_per_second", "{:,.0f}"),
)
COMPILING = "compiling ..."
_WEAK_DELTA = 1e-3  # a delta above this protects too little
_LISTED_CLIENTS = 10  # most clients listed by accuracy at the end of a run


class Console(rich.console.Console):
    """Rich's console, but with an error if the reader is gone: rich would end the process
    silently.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Act while a BrokenPipeError is handled: whoever prints hears of it,
        `fedjax_ssl.cli.main` in the end.
        """
        raise


def no_protection(delta: float) -> str:
    """Return a warning if epsilon at this delta protects no example or client; otherwise ""."""
    return f"no protection, as delta {delta:.3g} is above 0.001" if delta > _WEAK_DELTA else ""


class Progress(Closing):
    """Reports a run to a person.

    On a terminal there is one live line; elsewhere (a file, a pipe, a notebook) one plain line per
    evaluation without control characters. Use it as a context manager, so that an error leaves the
    terminal in order.
    """

    def __init__(
        self,
        total_rounds: int,
        *,
        start_round: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        delta: float = 0.0,
    ):
        """Prepare the report; nothing is printed yet.

        Args:
            total_rounds: rounds of the whole run.
            start_round: rounds that a restored checkpoint has finished already.
            stream: where to write; standard output by default.
            clock: seconds, for the time left.
            delta: of the privacy of the run, if it has any.
        """
        self._weak = no_protection(delta)
        stream = sys.stdout if stream is None else stream
        # Rich would also colour a pipe if FORCE_COLOR is set; lines in a log file must stay plain.
        terminal = stream.isatty()
        self._console = Console(
            file=stream, force_terminal=terminal, force_jupyter=False, highlight=False
        )
        self._lines = not terminal or self._console.is_dumb_terminal
        count = rich.table.Column(
            no_wrap=True, min_width=len(f"round {total_rounds}/{total_rounds}")
        )
        said = rich.table.Column(no_wrap=True, overflow="ellipsis")
        self._bar = rich.progress.Progress(
            rich.progress.SpinnerColumn(),
            rich.progress.TextColumn(
                "round {task.completed:.0f}/{task.total:.0f}", table_column=count
            ),
            rich.progress.BarColumn(12),
            rich.progress.TextColumn("{task.fields[said]}", table_column=said),
            console=self._console,
            transient=True,
            disable=self._lines,
            get_time=clock,
            speed_estimate_period=math.inf,
        )
        self._bar.add_task("", total=total_rounds, completed=start_round, said=COMPILING)
        (self._task,) = self._bar.tasks

    def start(self, fields: Mapping[str, str]) -> None:
        """Print what is about to run, a line for each field, and start the bar."""
        self._table(fields)
        self._bar.start()
        if self._lines and self._task.remaining:
            self._line(COMPILING)

    def update(self, round: int, row: Mapping[str, Any]) -> None:
        """Report an evaluation.

        Args:
            round: finished rounds.
            row: metric row; of it are shown "test_accuracy", "pseudo_label_accuracy", "epsilon"
                and "client_updates_per_second", and how long the run still takes.
        """
        values = {
            name: f"{label} {form.format(float(row[name]))}"
            for label, name, form in _SHOWN
            if row.get(name) is not None and math.isfinite(float(row[name]))
        }
        if self._weak and "epsilon" in values:
            values["epsilon"] += f" ({self._weak})"
        if 0 < (rate := float(row.get("client_updates_per_second") or 0)) < 10:
            values["client_updates_per_second"] = f"client updates/s {rate:.2g}"
        done = round - self._task.completed
        self._bar.update(self._task.id, completed=round)
        left = self._task.time_remaining
        if left is None and done > 0:  # the first block: its row has no seconds of compiling
            left = row.get("seconds", math.nan) / done * self._task.remaining
        if left is not None and left > 0:
            values["left"] = f"{timedelta(seconds=math.ceil(left))} left"
        said = ", ".join(values.values())
        if self._lines:
            count = f"round {round}/{self._task.total}"
            self._line(", ".join([count, said] if said else [count]))
        self._bar.update(self._task.id, said=said, refresh=True)

    def compiling(self) -> None:
        """Say so on a terminal; elsewhere a line at the start has said it."""
        self._bar.update(self._task.id, said=COMPILING, refresh=True)

    def training(self) -> None:
        """Say on a terminal that compiling is over."""
        if self._task.fields["said"] == COMPILING:
            self._bar.update(self._task.id, said="training ...", refresh=True)

    def note(self, text: str) -> None:
        """Print a line above the bar, for example a warning."""
        self._line(text)

    def finish(self, summary: Mapping[str, Any], files: Mapping[str, str | Path]) -> None:
        """End the bar and print the result and where everything is.

        Args:
            summary: from `summarize`.
            files: places of files, for example {"predictions": Path("runs/x/predictions.csv")}.
        """
        self.close()
        self._console.print()
        lines = {**_summary_lines(summary), **_prediction_lines(summary.get("predictions", ()))}
        self._table({**lines, **{name: str(path) for name, path in files.items()}})

    def clients(self, accuracies: Mapping[str, float], file: str | Path) -> None:
        """Print how accurate the last model is for each client, the worst first.

        Args:
            accuracies: by name of the client; of clients that have test examples with labels.
            file: where those stand for which there is no room.
        """
        ranked = sorted(accuracies.items(), key=lambda item: item[1])
        shown = ranked if len(ranked) <= 2 * _LISTED_CLIENTS else ranked[:_LISTED_CLIENTS]
        width = max((len(name) for name, _ in shown), default=0)
        self._line(f"test accuracy by client{', the worst' if len(shown) < len(ranked) else ''}:")
        for name, value in shown:
            self._line(f"  {name:<{width}}  {value:7.2%}")
        if len(shown) < len(ranked):
            self._line(f"  ... {len(ranked) - len(shown):,} more in {file}")

    def close(self) -> None:
        """Remove the bar from the terminal; a second call does nothing."""
        self._bar.stop()

    def _line(self, text: str | Text) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _table(self, fields: Mapping[str, str]) -> None:
        width = max(map(len, fields))
        for name, value in fields.items():
            self._line(Text.assemble((f"{name:<{width}}", "bold cyan"), "  ", value))


def _pace(rate: float) -> str:
    """Write a rate; below one per second, the time of one."""
    return f"{rate:,.0f} per second" if rate >= 1 else f"one in {1 / rate:,.1f} s"


def _summary_lines(summary: Mapping[str, Any]) -> dict[str, str]:
    lines = {
        "test accuracy": (summary.get("test_accuracy"), "{:.2%}".format),
        "best round": (summary.get("best_test_accuracy"), "{:.2%}".format),
        "macro F1": (summary.get("test_macro_f1"), "{:.2%}".format),
        "AUROC": (summary.get("test_auroc"), "{:.4f}".format),
        "ECE": (summary.get("test_ece"), "{:.4f}".format),
        "training": (summary.get("train_seconds") or None, "{:,.1f} s".format),
        "evaluating": (summary.get("evaluate_seconds"), "about {:,.1f} s of that".format),
        "compiling": (summary.get("compile_seconds") or None, "{:,.1f} s".format),
        "client updates": (summary.get("client_updates_per_second") or None, _pace),
        "examples": (summary.get("examples_per_second"), "{:,.0f} per second".format),
    }
    shown = {name: form(value) for name, (value, form) in lines.items() if value is not None}
    # Clients that train alone have no model for a new client.
    known = summary.get("test_client_accuracy_spread")
    if known is not None and not math.isnan(known):
        mean, worst, spread = (
            summary[f"test_client_accuracy{part}"] for part in ("", "_worst_tenth", "_spread")
        )
        shown["clients"] = (
            f"mean accuracy {mean:.2%}, worst tenth {worst:.2%}, standard deviation {spread:.2%}"
        )
    if scores := summary.get("scores"):
        low = scores["accuracy_low"]
        high = scores["accuracy_high"]
        shown["95 % interval"] = (
            f"{low:.2%} to {high:.2%}, around {scores['accuracy']:.2%} on "
            f"{scores['examples']:,} test examples, of the model for `predict`"
        )
    if summary.get("epsilon") is not None:
        delta = summary.get("delta", 0)
        weak = no_protection(delta)
        shown["epsilon"] = f"{summary['epsilon']:.4g} at delta {delta:.3g}" + f" ({weak})" * bool(
            weak
        )
    if summary.get("stopped_early"):
        best = summary.get("selected_round")
        by_validation = "" if best is None else f"; best by validation: round {best}"
        if summary.get("budget_spent"):
            by_validation = f", which spends the budget of privacy{by_validation}"
        shown["stopped early"] = f"after round {summary['rounds']}{by_validation}"
    if summary.get("rounds"):
        chosen = summary.get("selected_round")
        by = summary.get("validation_examples")
        last = f"round {summary['rounds']} (the last)"
        error = f", whose accuracy is known to about {50 / by**0.5:.1f} points" if by else ""
        best = f"round {chosen} (the best on {by or 'the'} validation examples{error})"
        # Validation examples say nothing of clients that have models of their own.
        of_clients = chosen == summary["rounds"] and "test_client_accuracy" in summary
        kept = last if chosen is None or of_clients else best
        shown["model"] = f"`predict` uses the model of {kept}"
    for name, field in (
        ("sent up", "bytes_up"),
        ("sent down", "bytes_down"),
        ("peak memory", "peak_memory_bytes"),
    ):
        # If nothing was trained, it is obvious that nothing was sent.
        if summary.get(field) is not None and (summary[field] or summary.get("train_seconds")):
            shown[name] = bytes_in_words(summary[field])
    if summary.get("lost_clients") is not None:
        shown["clients lost"] = f"{summary['lost_clients']:,} times"
    return shown


def _prediction_lines(predictions: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return a line per prediction: the share of correct labels among the new examples."""
    lines = {}
    for row in predictions:
        parts = [f"{row['seconds']:,.1f} s"]
        if row["coverage"] < 1:
            parts = [f"{1 - row['coverage']:.2%} without a label", *parts]
        if "accuracy" in row:
            accuracies = f"accuracy {row['accuracy']:.2%}, balanced {row['balanced_accuracy']:.2%}"
            clients = (
                f"clients {row['mean_client_accuracy']:.2%}, lowest "
                f"{row['lowest_client_accuracy']:.2%}"
            )
            parts = [accuracies, clients, *parts]
        else:
            parts = [f"{row['new_examples']:,} new examples", *parts]
        lines[row["name"]] = ", ".join(parts)
    return lines
