"""Tables over seeds: one compiled program per cell that trains all seeds, cells as text, facts about the run."""

import argparse
import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_ssl import config as configs
from fedjax_ssl.federated import to_numbers
from fedjax_ssl.runs.environment import device_description, versions
from fedjax_ssl.train import make_train, over_seeds

MISSING = "-"


def load_config(path: str | Path, argument: str | None = None) -> ml_collections.ConfigDict:
    """What `--config PATH:ARGUMENT` stands for on the command line."""
    return configs.load(str(path) if argument is None else f"{path}:{argument}")


def train_seeds(config: ml_collections.ConfigDict, seeds: Sequence[int]) -> tuple[Any, dict[str, np.ndarray]]:
    """Trains a config with every seed, in one program; seed s is `--config.seed=s` of the command line.

    Returns:
        (final states, metrics), each with a leading axis over seeds; metrics then have one entry per evaluation.
    """
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    states, metrics = over_seeds(make_train(config))(keys)
    return states, {name: values.astype(np.float64) for name, values in to_numbers(metrics).items()}


def spread(shares: np.ndarray, sign: str = "") -> str:
    """Mean and sample standard deviation in percent; only the mean of a single run, a dash where one is missing.

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
    found = versions()
    commit = found.pop("git_commit", "not in a checkout")
    return [
        f"command: python experiments/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".rstrip(),
        f"{seeds} seeds, {'the rounds of the configs' if rounds is None else f'{rounds} rounds'}",
        f"device: {device_description()}; wall time {seconds:.0f} s",
        "versions: " + ", ".join(f"{name} {version}" for name, version in found.items()),
        f"commit: {commit}",
    ]


def positive(text: str) -> int:
    """A whole number of the command line, for `argparse`."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def rows_as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write rows as a CSV file has them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


def parser_of(description: str | None, name: str, seeds: int) -> argparse.ArgumentParser:
    """Make the parser of a table, with its description, number of seeds and output folder.

    Args:
        description: text of the script.
        name: of the script, after which the folder is named.
        seeds: runs per experiment by default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--seeds", type=positive, default=seeds, help="runs per experiment, seeds 0, 1, ...")
    parser.add_argument("--output", type=Path, default=Path("runs") / name, help="folder for the files")
    return parser
