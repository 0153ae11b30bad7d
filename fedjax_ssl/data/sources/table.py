"""`table`: the user's own features, a row per example, as CSV or Parquet."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Names
from fedjax_ssl.data.federation.federated_data import client_number
from fedjax_ssl.data.reading.cache import facts_of, kept_for
from fedjax_ssl.data.reading.columns import TableOptions, proportions_digest, read_columns
from fedjax_ssl.data.reading.own import (
    SHOWN,
    Findings,
    Place,
    as_numbers,
    given_path,
    no_column,
    possible_columns,
    read_roles,
    read_table,
    say_one_client,
)
from fedjax_ssl.data.reading.register import dataset
from fedjax_ssl.data.reading.table_reading import CellOptions, TableReading, fit, identifiers

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
    root: Place = None,
    path: Place = None,
    left_out_client: int | str | None = None,
    features: Names | None = None,
    ignore: Names = (),
    cells: CellOptions,
    options: TableOptions,
) -> Dataset:
    """Read a table of numbers, dates and words, once; the arrays are kept in `<root>/table/` until
    the file changes.

    The first line names the columns. A column with a number in it holds numbers, one of `dates`
    days since 1970, any other words, which are one-hot encoded. Words, medians and means come from
    the training rows.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the file: CSV in UTF-8 (comma, semicolon or tabulator, whichever the first line has
            most of; also `.csv.gz`), or `.parquet`, which needs pyarrow.
        left_out_client: the client that is the test set, by name or number: its rows are no
            training rows.
        features: input columns, in this order; by default all but those below.
        ignore: columns to leave out.
        cells: content of the cells.
        options: columns beside the features, classes and class shares.

    Returns:
        Dataset "table" with inputs float32 [n, features]; `extra["features"]` has their names.

    Raises:
        DatasetUnavailable: the file is not there.
        BadData: it cannot be trained on; has everything that is wrong.
        ValueError: no path.
    """
    what = "a CSV or Parquet file with the column label and columns of numbers"
    given = given_path("table", path, what)
    by_option = {
        "features": features or (),
        "ignore": ignore,
        "codes": cells.codes,
        "dates": cells.dates,
    }
    # Column names may look like numbers.
    named = {option: tuple(map(str, columns)) for option, columns in by_option.items()}
    marks = tuple(map(str, cells.missing_marks))

    def make() -> Dataset:
        findings = Findings()
        table = read_table(given)
        findings.notes += _about_names(table)
        roles = {
            role: name
            for role, name in options.columns().items()
            if role == "label" or name not in named["ignore"]
        }
        texts = read_roles(table, roles, ("label",) if options.classes is None else (), findings)
        there = {role: roles[role] for role in texts}
        chosen = _features(table, there, named, findings)
        if "client" not in there:
            meant = [name for columns in named.values() for name in columns]
            say_one_client(table, (*there.values(), *meant), findings)
        asked = TableReading(
            there,
            cells.missing,
            marks,
            named["codes"],
            named["dates"],
            cells.date_format,
            cells.decimal,
        )
        # report the other problems together with this one
        if "label" not in texts and options.classes is None:
            unsure = possible_columns(table, "label")
            sure = [name for name in chosen if name not in unsure]
            fit(table, sure, np.ones(len(table), bool), asked, findings).read(table, findings)
        findings.stop(given)
        columns = read_columns(texts, options.classes, findings, marks)
        train = ~columns.is_test
        if left_out_client is not None and columns.client_names is not None:
            train &= columns.client != client_number(columns.client_names, left_out_client)
        reading = fit(table, chosen, train, asked, findings)
        x, used = reading.read(table, findings)
        findings.stop(given)
        findings.notes += identifiers(reading.inputs, x[train])
        return columns.rows(used).dataset(
            "table",
            given,
            x[used],
            options.proportions,
            findings.notes,
            reading,
            features=reading.inputs,
        )

    content = [facts_of([given]), proportions_digest(options.proportions)]
    told = [options, cells, named, left_out_client]
    return kept_for(root, "table", given, told, content, make)


def _about_names(table: "pandas.DataFrame") -> list[str]:
    """Return a sentence about column names that are numbers, as in a table without a line of
    names.
    """
    numbers = table.columns[np.isfinite(as_numbers(list(table)))]
    if numbers.empty:
        return []
    return [
        f"names of columns are numbers ({', '.join(numbers[:SHOWN])}); if the first line is an "
        "example, put a line with the names of the columns above it"
    ]


def _features(
    table: "pandas.DataFrame",
    roles: Mapping[str, str],
    named: Mapping[str, Sequence[str]],
    findings: Findings,
) -> list[str]:
    for option, columns in named.items():
        absent = [name for name in columns if name not in table]
        findings.problems += [
            no_column(name, table, f", which data.{option} names") for name in absent
        ]
    for role, name in roles.items():
        if name in named["features"]:
            findings.problems.append(f"column {name!r} is a feature and the {role} at once")
    taken = (*roles.values(), *named["ignore"])
    chosen = [name for name in named["features"] or table if name in table and name not in taken]
    if not chosen:
        findings.problems.append(
            f"there is no column left for features; columns: {', '.join(table)}"
        )
    return chosen
