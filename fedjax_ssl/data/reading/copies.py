"""Copies of an example, and groups of examples that belong together: said, and kept on one side
of every split.
"""

from dataclasses import replace

import numpy as np

from fedjax_ssl.data.dataset import Dataset, distinct

MOST = 1 << 32  # bytes of inputs that are looked through
_BLOCK = 1 << 22  # bytes at once


def keep_copies_together(dataset: Dataset) -> Dataset:
    """Find examples whose inputs are equal to the bit; where nobody says what belongs together,
    copies do.

    Returns:
        The dataset, with `extra["notes"]` about groups and copies, and with copies as groups where
        it has no groups of its own.
    """
    train = dataset.train
    test = dataset.test
    group = train.group
    notes = list(dataset.extra.get("notes", ()))
    if group is not None:
        known = distinct(group[group >= 0])
        both = 0 if test is None or test.group is None else len(np.intersect1d(known, test.group))
        notes.append(
            f"{(group >= 0).sum():,} training examples are in {len(known):,} groups, each on one "
            "side of every split"
            + (f"; but {both:,} groups have test examples of their own, too" if both else "")
        )
    inputs = [split.x for split in dataset.splits().values()]
    size = sum(array.nbytes for array in inputs)
    if size > MOST:
        notes.append(
            f"inputs of {size / 1e9:,.1f} GB: above {MOST / 1e9:,.1f} GB nobody looks for copies "
            "of examples"
        )
        return replace(dataset, extra={**dataset.extra, "notes": notes})
    first = _first_copies(inputs)
    # in the order in which they appear
    number = (np.cumsum(first == np.arange(len(first))) - 1)[first]
    copies = np.flatnonzero(first[: len(train)] != np.arange(len(train)))
    original = first[copies]
    if len(copies):
        copy, of = (
            f"example {row[0]}" if train.names is None else train.names[row[0]]
            for row in (copies, original)
        )
        differ = _other_labels(train.y, first[: len(train)])
        apart = 0 if group is None else int((group[copies] != group[original]).sum())
        what = "rows" if train.x.ndim == 2 else "images"
        labels = f", and {differ:,} of them have another label" if differ else ""
        parted = f"{apart:,} are in another group, so that splits may part them"
        together = parted if apart else "they stay together"
        notes.append(
            f"{len(copies):,} of {len(train):,} {what} are copies of others, first {copy} (of "
            f"{of}){labels}; {together}"
        )
        if group is None:
            train = replace(train, group=number[: len(train)])
            test = test and replace(test, group=number[len(train) :])
    if test is not None and (again := int((first[len(train) :] < len(train)).sum())):
        notes.append(
            f"{again:,} of {len(test):,} test examples are training examples too, to the bit"
        )
    return replace(dataset, train=train, test=test, extra={**dataset.extra, "notes": notes})


def _other_labels(labels: np.ndarray, first: np.ndarray) -> int:
    """Count labelled examples whose label is not that of the first labelled copy of theirs."""
    rows = np.flatnonzero(labels >= 0)
    _, place, copy_of = np.unique(first[rows], return_index=True, return_inverse=True)
    return int((labels[rows] != labels[rows[place]][copy_of]).sum())


def _first_copies(arrays: list[np.ndarray]) -> np.ndarray:
    """Return the first example that each one is equal to, over all arrays; its own number where it
    is no copy.
    """
    sums = np.concatenate([_row_sums(array) for array in arrays])
    order = np.argsort(sums)
    equal = np.diff(sums[order]) == 0
    first = np.arange(len(sums))
    seen = dict[int, int]()
    for row in np.union1d(order[1:][equal], order[:-1][equal]).tolist():  # only these can be copies
        array, at = (arrays[0], row) if row < len(arrays[0]) else (arrays[1], row - len(arrays[0]))
        first[row] = seen.setdefault(hash(array[at].tobytes()), row)
    return first


def _row_sums(array: np.ndarray) -> np.ndarray:
    """Return a number for every row, equal for equal rows: its bytes as whole numbers, times random
    factors.
    """
    size = array[0].nbytes
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    factors = np.random.default_rng(0).integers(1, 1 << 63, size // width, dtype=np.uint64)
    rows = max(_BLOCK // size, 1)
    blocks = (array[start : start + rows] for start in range(0, len(array), rows))
    words = (
        np.ascontiguousarray(block).reshape(len(block), -1).view(f"u{width}") for block in blocks
    )
    return np.concatenate([block.astype(np.uint64) @ factors for block in words])
