"""Copies of an example, and groups of examples that belong together: reported, and kept on one side
of every split.
"""

from dataclasses import replace

import numpy as np

from fedjax_ssl.data.dataset import Dataset, distinct

MOST = 1 << 32  # bytes of inputs that are searched, at most


def keep_copies_together(dataset: Dataset) -> Dataset:
    """Find examples with bitwise equal inputs; if the dataset has no groups, copies form groups.

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
    import pandas

    contents = [hash(row.tobytes()) for array in inputs for row in array]
    # Copies share a number, in the order of first appearance.
    number = pandas.factorize(np.array(contents))[0]
    first = np.unique(number, return_index=True)[1][number]
    copies = np.flatnonzero(first[: len(train)] != np.arange(len(train)))
    original = first[copies]
    if len(copies):
        copy, of = (
            f"example {row[0]}" if train.names is None else train.names[row[0]]
            for row in (copies, original)
        )
        frame = pandas.DataFrame({"copy": number[: len(train)], "label": train.y})
        labels_of = frame[train.y >= 0].groupby("copy")["label"]
        differ = int((labels_of.transform("first") != frame["label"][train.y >= 0]).sum())
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
