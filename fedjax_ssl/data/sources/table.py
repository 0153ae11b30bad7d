"""`table`: the user's own features, a row per example, as CSV or Parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import facts_of, kept_for
from fedjax_ssl.data.reading.columns import TableOptions, read_columns
from fedjax_ssl.data.reading.problems import Findings, given_path, some
from fedjax_ssl.data.reading.proportions import proportions_digest
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.reading.tables import as_numbers, read_roles, read_table
from fedjax_ssl.registry import did_you_mean

if TYPE_CHECKING:  # takes long to import
    import pandas


@dataset(
    "table",
    "your own features: path= a CSV or Parquet file with the columns label and, if known, client",
    terms="yours",
    kind="own",
)
def load_table(
    *,
    root: Path | str | None = None,
    path: Path | str | None = None,
    features: tuple[str, ...] | None = None,
    ignore: tuple[str, ...] = (),
    missing: Literal["refuse", "drop"] = "refuse",
    options: TableOptions,
) -> Dataset:
    """Read a table of numbers, once; the arrays are kept in `<root>/table/` until the file or an option changes.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the file: CSV (comma, semicolon or tabulator), or `.parquet`, which needs pyarrow.
        features: columns that are inputs, in this order; by default all but those below.
        ignore: columns that are not.
        missing: what becomes of rows in which a feature is empty: an error, or they are left out and counted.
        options: columns beside the features, classes and class shares.

    Returns:
        Dataset "table" with inputs float32 [n, features]; `extra["features"]` has the names of the columns.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it cannot be trained on; has everything that is wrong.
        ValueError: no path.
    """
    what = "a CSV or Parquet file with the column label and columns of numbers"
    given = given_path("table", path, what)

    def make() -> Dataset:
        findings, table = Findings(), read_table(given)
        roles = options.columns()
        texts = read_roles(table, roles, ("label",) if options.classes is None else (), findings)
        names = _features(table, {role: roles[role] for role in texts}, features, ignore, findings)
        x = _numbers(table, names, missing, findings)
        findings.stop(given)
        columns = read_columns(texts, options.classes, findings)
        whole = np.isfinite(x).all(axis=1)
        findings.stop(given)
        columns = columns.rows(whole)
        return columns.dataset("table", given, x[whole], options.proportions, findings.notes, features=names)

    content = [facts_of([given]), proportions_digest(options.proportions)]
    return kept_for(root, "table", given, [options, features, ignore, missing], content, make)


def _features(
    table: "pandas.DataFrame",
    roles: Mapping[str, str],
    features: Sequence[str] | None,
    ignore: Sequence[str],
    findings: Findings,
) -> list[str]:
    for what, names in (("features", features or ()), ("ignore", ignore)):
        for name in names:
            if name not in table:
                findings.problems.append(
                    f"{what} names the column {name!r}, which is not there.{did_you_mean(name, list(table))} Columns: "
                    f"{', '.join(table)}"
                )
    for role, name in roles.items():
        if name in (features or ()):
            findings.problems.append(f"column {name!r} is a feature and the {role} at once")
    taken = (*roles.values(), *ignore)
    chosen = [name for name in table if name not in taken] if features is None else [n for n in features if n in table]
    if not chosen:
        findings.problems.append(f"there is no column left for features; columns: {', '.join(table)}")
    return chosen


def _numbers(table: "pandas.DataFrame", names: Sequence[str], missing: str, findings: Findings) -> np.ndarray:
    """Read float32 [n, features]; NaN in rows that are to be left out."""
    x = np.zeros((len(table), len(names)), np.float32)
    for place, name in enumerate(names):
        values, wrong = as_numbers(table[name])
        if wrong is None:
            with np.errstate(over="ignore"):
                x[:, place] = values
            continue
        cell = str(table[name].iloc[wrong])
        is_comma = cell.replace(",", "", 1).lstrip("-").isdigit()
        hint = "write decimals with a point" if is_comma else f"leave the column out with data.ignore={name}"
        findings.problems.append(f"column {name!r} holds {cell!r} in {table.index[wrong]}, which is no number; {hint}")
    gaps = ~np.isfinite(x)
    if gaps.any():
        rows, columns = np.flatnonzero(gaps.any(axis=1)).tolist(), np.flatnonzero(gaps.any(axis=0))[:10]
        text = (
            f"{len(rows):,} of {len(x):,} rows have empty, NaN or infinite features ({some(rows, table.index)}), in "
            f"the columns {', '.join(names[column] for column in columns)}"
        )
        if missing == "refuse" or len(rows) == len(x):
            findings.problems.append(f"{text}; fill them in, or leave these rows out with data.missing=drop")
        else:
            findings.notes.append(f"{text}; they are left out")
    return x
