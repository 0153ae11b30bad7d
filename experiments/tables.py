"""Tables over seeds: one compiled program per cell that trains all seeds, cells as text, facts
about the run.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pandas

from fedjax_ssl import folder
from fedjax_ssl.federated import to_numbers
from fedjax_ssl.train import make_train, over_seeds

MISSING = "-"


def train_seeds(
    config: ml_collections.ConfigDict, seeds: Sequence[int]
) -> tuple[Any, dict[str, np.ndarray]]:
    """Trains a config with every seed, in one program; seed s is `--config.seed=s` of the command
    line.

    Returns:
        (final states, metrics), each with a leading axis over seeds; metrics then have one entry
        per evaluation.
    """
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    states, metrics = over_seeds(make_train(config))(keys)
    return states, {name: values.astype(np.float64) for name, values in to_numbers(metrics).items()}


def spread(shares: np.ndarray, sign: str = "") -> str:
    """Mean and sample standard deviation in percent; only the mean of a single run, a dash where
    one is missing.

    Args:
        shares: one entry per seed.
        sign: "+" to write the mean with its sign.
    """
    if np.isnan(shares).any():
        return MISSING
    mean = format(100 * shares.mean(), f"{sign}.1f")
    if float(mean) == 0:
        mean = "0.0"  # neither -0.0 nor +0.0
    return mean if len(shares) < 2 else f"{mean} ± {100 * shares.std(ddof=1):.1f}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def facts(seconds: float, seeds: int, rounds: int | None = None) -> list[str]:
    """Where a table comes from, a line each: command, seeds, device, time, versions, commit.

    Args:
        seconds: wall time of the whole.
        seeds: runs per cell.
        rounds: in place of those of the configs.
    """
    found = folder.versions()
    commit = found.pop("git_commit", "not in a checkout")
    return [
        f"command: python experiments/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".rstrip(),
        f"{seeds} seeds, {'the rounds of the configs' if rounds is None else f'{rounds} rounds'}",
        f"device: {folder.device_description()}; wall time {seconds:.0f} s",
        "versions: " + ", ".join(f"{name} {version}" for name, version in found.items()),
        f"commit: {commit}",
    ]


def positive(text: str) -> int:
    """A whole number of the command line, for `argparse`."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def leave(
    options: argparse.Namespace,
    name: str,
    parts: Sequence[str],
    notes: Iterable[str],
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> str:
    """Write NAME.md, of parts and a list of notes, and NAME.csv to the output folder.

    Args:
        options: as `parser_of` reads them.
        name: name of the script.
        parts: what stands above the notes.
        notes: a line each.
        header: columns of the CSV file.
        rows: its rows, one per run.

    Returns:
        The text, with the paths of both files below it.
    """
    options.output.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes)]) + "\n"
    files = [options.output / f"{name}.{kind}" for kind in ("md", "csv")]
    folder.write_atomically(files[0], text)
    folder.write_atomically(
        files[1], pandas.DataFrame(rows, columns=header, dtype=object).to_csv(index=False)
    )
    return "\n".join(["", text, *map(str, files)])


def parser_of(description: str | None, name: str, seeds: int) -> argparse.ArgumentParser:
    """Make the parser of a table, with its description, number of seeds and output folder.

    Args:
        description: text of the script.
        name: of the script, after which the folder is named.
        seeds: runs per experiment by default.
    """
    parser = argparse.ArgumentParser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--seeds", type=positive, default=seeds, help="runs per experiment, seeds 0, 1, ..."
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs") / name, help="folder for the files"
    )
    return parser
