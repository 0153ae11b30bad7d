"""`table`: the user's own features, a row per example, as CSV or Parquet."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import data_root, facts_of, fingerprint, kept_for
from fedjax_ssl.data.reading.columns import Texts, misspelt, read_columns
from fedjax_ssl.data.reading.problems import DatasetUnavailable, Findings, some
from fedjax_ssl.data.reading.proportions import proportions_digest
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.reading.tables import Sheet, as_numbers, as_text, read_sheet
from fedjax_ssl.registry import did_you_mean


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
    classes: tuple[str, ...] | None = None,
    proportions: Path | str | None = None,
    label_column: str = "label",
    client_column: str = "client",
    split_column: str = "split",
    set_column: str = "set",
    coarse_column: str = "coarse",
) -> Dataset:
    """Read a table of numbers, once; the arrays are kept in `<root>/table/` until the file or an option changes.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the file: CSV (comma, semicolon or tabulator), or `.parquet`, which needs pyarrow.
        features: columns that are inputs, in this order; by default all but those below.
        ignore: columns that are not.
        missing: what becomes of rows in which a feature is empty: an error, or they are left out and counted.
        classes: names of all classes in order; by default those that occur.
        proportions: CSV file with the class shares of each client's sets; see `fedjax_ssl.data.reading.proportions`.
        label_column: name of the class of each row; empty = no label.
        client_column: whose row it is, if there is such a column.
        split_column: train or test, if there is such a column.
        set_column: set within the client, if there is such a column.
        coarse_column: label of another space, if there is such a column.

    Returns:
        Dataset "table" with inputs float32 [n, features]; `extra["features"]` has the names of the columns.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it cannot be trained on; has everything that is wrong.
        ValueError: no path.
    """
    if path is None:
        raise ValueError(
            'load("table") needs path=, a CSV or Parquet file with the column label and columns of numbers'
        )
    given = Path(path).expanduser()
    if not given.is_file():
        raise DatasetUnavailable(
            f"table: {given} is not {'a file' if given.exists() else 'there'}. Give path= a CSV or Parquet file with "
            "the column label and columns of numbers."
        )
    named = (label_column, client_column, split_column, set_column, coarse_column)
    roles = dict(zip(Texts._fields[1:], named, strict=True))

    def make() -> Dataset:
        findings, sheet = Findings(), read_sheet(given)
        _check_roles(sheet, roles, classes, findings)
        names = _features(sheet, roles, features, ignore, findings)
        x = _numbers(sheet, names, missing, findings)
        findings.stop(given)
        text = {role: as_text(sheet.columns[name]) for role, name in roles.items() if name in sheet.columns}
        columns = read_columns(Texts(sheet.where, *(text.get(role) for role in roles)), len(x), classes, findings)
        whole = np.isfinite(x).all(axis=1)
        columns, x = columns.rows(whole), x[whole]
        findings.stop(given)
        return columns.dataset("table", given, x, proportions, findings.notes, features=list(names))

    content = [facts_of([given]), proportions_digest(proportions)]
    told = [str(given.resolve()), roles, features, ignore, missing, classes, str(proportions)]
    home = data_root(root) / "table" / f"{given.stem}-{fingerprint(told)}"
    return kept_for(home, content, make)


def _check_roles(sheet: Sheet, roles: Mapping[str, str], classes: Sequence[str] | None, findings: Findings) -> None:
    for role, name in roles.items():
        if name in sheet.columns or (name == role and (role != "label" or classes is not None)):
            continue
        asked = "" if name == role else f", which data.{role}_column names"
        findings.problems.append(
            f"there is no column {name!r}{asked}.{did_you_mean(name, sheet.columns)} Columns: "
            f"{', '.join(sheet.columns)}; give the right one as data.{role}_column"
        )
    findings.notes += misspelt(sheet.columns, {role: name for role, name in roles.items() if role != "label"})


def _features(
    sheet: Sheet,
    roles: Mapping[str, str],
    features: Sequence[str] | None,
    ignore: Sequence[str],
    findings: Findings,
) -> list[str]:
    for what, names in (("features", features or ()), ("ignore", ignore)):
        for name in names:
            if name not in sheet.columns:
                findings.problems.append(
                    f"{what} names the column {name!r}, which is not there.{did_you_mean(name, sheet.columns)} "
                    f"Columns: {', '.join(sheet.columns)}"
                )
    taken = {name for role, name in roles.items() if name in sheet.columns}
    if features is not None:
        used = [name for name in features if name in taken]
        if used:
            findings.problems.append(f"column {used[0]!r} is a feature and the {_role(roles, used[0])} at once")
        return [name for name in features if name in sheet.columns]
    names = [name for name in sheet.columns if name not in taken and name not in ignore]
    if not names:
        findings.problems.append(f"there is no column left for features; columns: {', '.join(sheet.columns)}")
    return names


def _role(roles: Mapping[str, str], column: str) -> str:
    return next(role for role, name in roles.items() if name == column)


def _numbers(sheet: Sheet, names: Sequence[str], missing: str, findings: Findings) -> np.ndarray:
    """float32 [n, features]; NaN in rows that are to be left out."""
    x = np.zeros((len(sheet.lines), len(names)), np.float32)
    gaps: dict[str, np.ndarray] = {}
    for place, name in enumerate(names):
        values, wrong = as_numbers(sheet.columns[name])
        if wrong is not None:
            cell = sheet.columns[name][wrong]
            is_comma = cell.replace(",", "", 1).lstrip("-").isdigit()
            hint = "write decimals with a point" if is_comma else f"leave the column out with data.ignore={name}"
            findings.problems.append(
                f"column {name!r} holds {cell!r} in {sheet.where(wrong)}, which is no number; {hint}"
            )
            continue
        with np.errstate(over="ignore"):
            x[:, place] = values
        gap = ~np.isfinite(x[:, place])
        if gap.any():
            gaps[name] = gap
    if gaps:
        rows = np.flatnonzero(np.logical_or.reduce(list(gaps.values()))).tolist()
        text = (
            f"{len(rows):,} of {len(x):,} rows have empty, NaN or infinite features ({some(rows, sheet.where)}), in "
            f"the columns {', '.join(list(gaps)[:10])}"
        )
        if missing == "refuse" or len(rows) == len(x):
            findings.problems.append(f"{text}; fill them in, or leave these rows out with data.missing=drop")
        else:
            findings.notes.append(f"{text}; they are left out")
    return x
