"""`fed_heart_disease`: 740 patients of four hospitals, with the columns, rows and split of FLamby.

Source: du Terrail et al., FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning,
NeurIPS 2022.
"""

from pathlib import Path

import numpy as np

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.cache import raw_folder
from fedjax_ssl.data.reading.columns import Columns
from fedjax_ssl.data.reading.fetch import Facts
from fedjax_ssl.data.reading.own import (
    BadData,
    Findings,
    Place,
    as_numbers,
    not_here,
    read_table,
)
from fedjax_ssl.data.reading.register import dataset

NAME = "fed_heart_disease"
HOSPITALS = {
    "cleveland": "Cleveland",
    "hungarian": "Hungary",
    "switzerland": "Switzerland",
    "va": "VA",
}
PUBLISHED = {"Cleveland": (199, 104), "Hungary": (172, 89), "Switzerland": (30, 16), "VA": (85, 45)}
LEVELS = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}  # one feature for each level but the first
USED = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
COLUMNS = [*USED, "slope", "ca", "thal", "num"]
NUMBERS = [name for name in USED if name not in LEVELS]
ENCODED = [(name, level) for name, levels in LEVELS.items() for level in levels[1:]]
TRAINED = 0.66  # share of a hospital's rows for training
ADDRESS = "https://archive.ics.uci.edu/dataset/45/heart+disease"
TERMS = (
    "UCI dataset 45: CC BY 4.0; cite Janosi, Steinbrunn, Pfisterer and Detrano (1988), Heart "
    "Disease, and du Terrail et al. (2022), FLamby"
)


@dataset(
    NAME,
    "740 patients of 4 hospitals, 13 features, sick or healthy; you place UCI's four files at "
    "path=",
    terms=TERMS,
    kind="placed",
    facts=Facts(592, 148, (13,), 2, clients=4),
)
def load_fed_heart_disease(*, root: Place = None, path: Place = None) -> Dataset:
    """Read the processed files of UCI's Heart Disease as FLamby does.

    Rows in which one of the first ten columns is missing are left out, slope, ca and thal are not
    used, cp and restecg become one feature for each level but the first. 66 % of a hospital's rows
    are for training, drawn as scikit-learn's `train_test_split` does with random_state 43,
    stratified where both classes have more than 2 rows.

    Args:
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: the folder of `processed.cleveland.data`, `processed.hungarian.data`,
            `processed.switzerland.data` and `processed.va.data`, or of the same without
            "processed."; default `<root>/fed_heart_disease/raw`.

    Returns:
        Dataset with inputs float32 [n, 13], classes "healthy" and "sick", and the hospitals as
        clients.

    Raises:
        DatasetUnavailable: a file is not there; says which, and where to get it.
        BadData: a file is in another form; has everything that is wrong.
    """
    folder = raw_folder(NAME, root, path)
    missing = []
    found = []
    for name in HOSPITALS:
        files = [folder / f"processed.{name}.data", folder / f"{name}.data"]
        there = [file for file in files if file.is_file()]
        found += there[:1]
        missing += [] if there else [files[0].name]
    if missing:
        how = (
            f"get {ADDRESS}, unpack it, and give path= (config.data.path) the folder of the four "
            "processed.*.data"
        )
        raise not_here(f"{NAME}: {' and '.join(missing)}", (f"{folder}/",), [how])
    findings = Findings()
    parts = []
    for client, (file, hospital) in enumerate(zip(found, HOSPITALS.values(), strict=True)):
        read = _read(file, findings)
        if read is None or findings.problems:
            continue
        tested = np.isin(np.arange(len(read[1])), _test_rows(read[1]))
        parts.append((*read, np.full(len(tested), client), tested))
        if (counts := (int((~tested).sum()), int(tested.sum()))) != PUBLISHED[hospital]:
            findings.notes.append(
                f"{hospital} has {counts} training and test rows; FLamby has "
                f"{PUBLISHED[hospital]}, so that this is another table than the published one"
            )
    findings.stop(folder)
    x, y, lines, owner, tested = map(np.concatenate, zip(*parts, strict=True))
    columns = Columns(y, ("healthy", "sick"), owner, tuple(HOSPITALS.values()), tested, names=lines)
    features = [*NUMBERS, *(f"{name}={level}" for name, level in ENCODED)]
    return columns.dataset(NAME, folder, x, None, findings.notes, terms=TERMS, features=features)


def _read(path: Path, findings: Findings) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Read one hospital's features [n, 13], classes [n] and lines [n], without rows with missing
    cells.
    """
    try:
        table = read_table(path, COLUMNS)
    except BadData as error:
        findings.problems += [
            f"{path.name}: {problem}; take UCI's processed.*.data" for problem in error.problems
        ]
        return None
    known = {}
    for name, column in table.items():
        cells = column.tolist()
        known[name] = as_numbers(cells)
        what = "a number"
        strange = np.isnan(known[name])
        if allowed := {**LEVELS, "num": range(5)}.get(str(name)):
            what = f"one of {', '.join(map(str, allowed))}"
            strange = ~np.isin(known[name], tuple(allowed))
        bad = [row for row in np.flatnonzero(strange) if cells[row] not in ("", "?")]
        if bad:
            findings.problems.append(
                f"{table.index[bad[0]]}: {name} is {cells[bad[0]]!r}; needed: {what}"
            )
    used = np.isfinite([known[name] for name in (*USED, "num")]).all(axis=0)
    if used.sum() < 2 and not findings.problems:
        findings.problems.append(
            f"{path.name} has {used.sum()} rows without a missing value; needed: at least 2"
        )
    x = [known[name] for name in NUMBERS] + [known[name] == level for name, level in ENCODED]
    return (
        np.stack(x, axis=1)[used].astype(np.float32),
        (known["num"][used] > 0).astype(np.int32),
        table.index[used],
    )


def _test_rows(labels: np.ndarray) -> np.ndarray:
    """Draw the rows of a hospital's test set, with exactly scikit-learn's draws."""
    rng = np.random.RandomState(43)
    total = len(labels)
    num_train = int(np.floor(TRAINED * total))
    num_test = int(np.ceil((1 - TRAINED) * total))
    counts = np.bincount(labels, minlength=2)
    if counts.min() <= 2:
        return rng.permutation(total)[:num_test]
    train = _shares(counts, num_train, rng)
    test = _shares(counts - train, num_test, rng)
    orders = [np.flatnonzero(labels == k)[rng.permutation(counts[k])] for k in (0, 1)]
    return np.concatenate(
        [order[a : a + b] for order, a, b in zip(orders, train, test, strict=True)]
    )


def _shares(counts: np.ndarray, number: int, rng: np.random.RandomState) -> np.ndarray:
    """Deal `number` rows to two classes in proportion to their counts; a tie is drawn."""
    exact = counts / counts.sum() * number
    dealt = np.floor(exact)
    if missing := int(number - dealt.sum()):
        parts = exact - dealt
        largest = np.flatnonzero(parts == parts.max())
        dealt[rng.choice(largest, size=min(len(largest), missing), replace=False)] += 1
    return dealt.astype(int)
