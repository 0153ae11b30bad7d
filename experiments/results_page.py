"""Writes docs/results.md: every measured table, with its command and what it shows.

    python -m experiments.results_page

Tables come from four places: experiments/results/NAME.json has a table a file, as its command
printed it; experiments/leaderboard, experiments/label_plan and experiments/papers/results have results
by seed, of which leaderboard.py, label_plan.py and papers/page.py make tables.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments import label_plan, leaderboard
from experiments.papers.claims import load_claims
from experiments.papers.page import chapter
from experiments.papers.table import load_tables
from fedjax_ssl.folder.files import write_atomically
from fedjax_ssl.report.exports import markdown_table

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "experiments" / "results"
PAGE = ROOT / "docs" / "results.md"
HEAD = """# Results

This page is written by `python -m experiments.results_page` from stored results. Each table has its
command, where it was measured, and a sentence on what it shows. Commands that name a file or FOLDER
need [data of your own](datasets.md). Commits are those of the code that ran; a later version may
give other last digits. CPU cores were shared with other programs. Only FLamby's table repeats a paper's
experiment; the others differ in data, networks or rounds. [The papers' tables](#the-papers-tables) are at
the end, times under [Speed](speed.md)."""
LEADERBOARD = """Methods on the same examples, labels, clients, rounds and local steps. Accuracy is
on the test examples after the last round, the mean of the seeds and half of its 95 % t interval;
"over labels alone" is mean and half-interval of the differences, seed by seed. "By more than chance"
means that this interval excludes 0; between equal methods that happens in one comparison of twenty.
"Worst client" is the lowest accuracy among clients with test examples. ± is half of an interval where
a table does not say otherwise. MB are sent both ways in a run. §: other local steps than the table."""
PLANNED = """Labels that [`plan-labels`](plan_labels.md) asks for, against random ones in the same
federations. Test accuracy in %, mean of five seeds; in brackets the difference to random labels ±
half of its 95 % t interval, by seed. The second row knows all classes, which nobody does before
labelling: it is a control. With one-shot XCLP planned labels are ahead on digits, MNIST and
photographs, most with one or two labels of a class; where classes are known, as many labels of each
do as well on digits and MNIST."""
ORDER = (
    "Leaderboard",
    "Methods side by side",
    "Planned labels",
    "XCLP",
    "FedMatch",
    "FedUL",
    "FedMT",
    "ProtoFSSL",
    "Other methods",
    "Pre-trained features",
    "Four hospitals",
    "Privacy",
    "Optimizers",
)


def page() -> str:
    """Return docs/results.md."""
    sections: dict[str, list[str]] = {name: [f"## {name}"] for name in ORDER}
    sections["Leaderboard"] += [LEADERBOARD, *leaderboard.sections()]
    sections["Planned labels"] += [PLANNED, *label_plan.sections()]
    for path in sorted(STORED.glob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        sections[stored["section"]].append(section(stored))
    papers = chapter(load_tables(), load_claims())
    parts = [HEAD, *(part for parts in sections.values() for part in parts), *papers]
    return "\n\n".join(parts) + "\n"


def section(stored: Mapping[str, Any]) -> str:
    """Return the section of a table that is stored as it was printed."""
    parts = [
        f"### {stored['title']}",
        stored["setting"],
        markdown_table(stored["columns"], stored["rows"]),
        stored["shows"],
        f"Measured: {stored['measured']}.",
        "\n".join(f"    {command}" for command in stored["commands"]),
    ]
    return "\n\n".join(part for part in parts if part)


if __name__ == "__main__":
    write_atomically(PAGE, page())
