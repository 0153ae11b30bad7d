"""Copies of an example, and groups of examples that belong together: said, and kept on one side of every split."""

from dataclasses import replace

import numpy as np

from fedjax_ssl.data.dataset import Dataset


def keep_copies_together(dataset: Dataset) -> Dataset:
    """Find examples whose inputs are equal to the bit; where nobody says what belongs together, copies do.

    Returns:
        The dataset, with `extra["notes"]` about groups and copies, and with copies as groups where it has no groups
        of its own.
    """
    train, test, group, notes = dataset.train, dataset.test, dataset.train.group, list(dataset.extra.get("notes", ()))
    if group is not None:
        known = np.unique(group[group >= 0])
        both = 0 if test is None or test.group is None else len(np.intersect1d(known, test.group))
        notes.append(
            f"{(group >= 0).sum():,} training examples are in {len(known):,} groups, each on one side of every split"
            + (f"; but {both:,} groups have test examples of their own, too" if both else "")
        )
    seen: dict[int, int] = {}
    number, test_number = (
        np.array([seen.setdefault(hash(row.tobytes()), len(seen)) for row in (() if split is None else split.x)], int)
        for split in (train, test)
    )
    first = np.unique(number, return_index=True)[1]
    copies = np.setdiff1d(np.arange(len(train)), first)
    original = first[number[copies]]
    if len(copies):
        copy, of = (f"example {row[0]}" if train.names is None else train.names[row[0]] for row in (copies, original))
        differ = int((train.y[copies] != train.y[original]).sum())
        apart = 0 if group is None else int((group[copies] != group[original]).sum())
        notes.append(
            f"{len(copies):,} of {len(train):,} {'rows' if train.x.ndim == 2 else 'images'} are copies of others, "
            f"first {copy} (of {of}){f', and {differ:,} of them have another label' if differ else ''}; "
            + (f"{apart:,} are in another group, so that splits may part them" if apart else "they stay together")
        )
        if group is None:
            train, test = replace(train, group=number), test and replace(test, group=test_number)
    if test is not None and (again := int(np.isin(test_number, number).sum())):
        notes.append(f"{again:,} of {len(test):,} test examples are training examples too, to the bit")
    return replace(dataset, train=train, test=test, extra={**dataset.extra, "notes": notes})
