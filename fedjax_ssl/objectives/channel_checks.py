"""Checks of what users say about label channels: NumPy in float64 on the host, before anything is traced."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROW_TOLERANCE = 1e-3  # set priors and test prior: a larger deviation from 1 is an error, a smaller one is divided out
COLUMN_TOLERANCE = 1e-6  # correspondence matrices


def check_set_priors(
    set_priors: ArrayLike,
    set_shares: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    client: int | str | None = None,
) -> NDArray[np.float64]:
    """The class proportions of a client's sets, rows scaled to sum exactly to 1; rows of sets without examples are 0.

    Args:
        set_priors: [M, K], a row per set.
        set_shares: [M], share or number of examples of every set; 0 = empty set, whose row is not looked at.
        num_classes: K, where it is known.
        client: named in the messages.

    Raises:
        ValueError: wrong shape, NaN or negative entries, or a row whose sum is off 1 by more than 1e-3.
    """
    owner = _owner(client)
    priors = _matrix("set_priors", set_priors, "[sets, classes]", num_classes, owner)
    shares = np.ones(len(priors)) if set_shares is None else np.asarray(set_shares, np.float64)
    if shares.shape != (len(priors),) or not np.all(np.isfinite(shares)) or np.any(shares < 0):
        raise ValueError(
            f"set_shares{owner} are {shares.tolist()}; they must be {len(priors)} finite numbers >= 0, one per row "
            "of set_priors: the number or the share of the examples in every set."
        )
    filled = shares > 0
    for row in np.flatnonzero(filled):
        _check_entries(priors[row], f"Row {row} of set_priors{owner}")
        total = priors[row].sum()
        if abs(total - 1) > ROW_TOLERANCE:
            raise ValueError(
                f"Row {row} of set_priors{owner} sums to {total:.6g}; the class proportions of a set must sum to 1 "
                f"(up to {ROW_TOLERANCE:g}): divide counts by the size of the set."
            )
    priors = np.where(filled[:, None], priors, 0.0)
    return priors / np.where(filled, priors.sum(axis=1), 1.0)[:, None]


def check_test_prior(test_prior: ArrayLike, num_classes: int) -> NDArray[np.float64]:
    """The class proportions at test time, scaled to sum exactly to 1.

    Raises:
        ValueError: wrong shape, an entry that is not positive, or a sum that is off 1 by more than 1e-3.
    """
    prior = np.asarray(test_prior, np.float64)
    if prior.shape != (num_classes,):
        raise ValueError(
            f"test_prior has shape {prior.shape}; it must have one entry for each of {num_classes} classes."
        )
    if not np.all(np.isfinite(prior)) or np.any(prior <= 0):
        bad = int(np.flatnonzero(~(np.isfinite(prior) & (prior > 0)))[0])
        raise ValueError(
            f"test_prior is {prior[bad]:.6g} for class {bad}; every entry must be positive, since set priors are "
            "divided by it: remove the class, or give it a small share."
        )
    if abs(prior.sum() - 1) > ROW_TOLERANCE:
        raise ValueError(f"test_prior sums to {prior.sum():.6g}; class proportions must sum to 1: divide by the sum.")
    return prior / prior.sum()


def check_correspondence(
    matrix: ArrayLike,
    observed_counts: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    normalize_columns: bool = False,
    client: int | str | None = None,
) -> NDArray[np.float64]:
    """The correspondence matrix M_jk = P(observed label j | class k), columns scaled to sum exactly to 1.

    There may be more observed labels than classes.

    Args:
        matrix: [J, K], a column per class.
        observed_counts: [J], examples of every observed label, as `check_observed` returns them.
        num_classes: K, where it is known.
        normalize_columns: whether columns may hold counts instead of probabilities.
        client: named in the messages.

    Raises:
        ValueError: wrong shape, entries that are NaN or negative, an empty column, columns that do not sum to 1
            within 1e-6, or a label that examples carry although its row is all 0.
    """
    owner = _owner(client)
    weights = _matrix("The correspondence matrix", matrix, "[observed labels, classes]", num_classes, owner)
    for row in range(len(weights)):
        _check_entries(weights[row], f"Row {row} of the correspondence matrix{owner}")
    sums = weights.sum(axis=0)
    if np.any(sums == 0):
        empty = int(np.flatnonzero(sums == 0)[0])
        raise ValueError(
            f"Column {empty} of the correspondence matrix{owner} is all 0; every class needs observed labels that it "
            f"can carry: give column {empty} the label frequencies if nothing is known."
        )
    off = np.abs(sums - 1) > COLUMN_TOLERANCE
    if np.any(off) and not normalize_columns:
        column = int(np.flatnonzero(off)[0])
        transposed = np.all(np.abs(weights.sum(axis=1) - 1) <= COLUMN_TOLERANCE)
        hint = (
            "all rows sum to 1, so the matrix looks transposed: pass its transpose."
            if transposed
            else "divide columns by their sums, or set normalize_columns=True."
        )
        raise ValueError(
            f"Column {column} of the correspondence matrix{owner} sums to {sums[column]:.8g}; columns must sum to 1 "
            f"(P(observed label | class)), shape [observed labels, classes] = {weights.shape}; {hint}"
        )
    if observed_counts is not None:
        _check_explained(weights, np.asarray(observed_counts), owner)
    return weights / sums


def check_observed(observed: ArrayLike, num_observed: int, *, client: int | str | None = None) -> NDArray[np.int64]:
    """Counts [J] of a client's observed labels.

    Args:
        observed: [n] integers, -1 = nothing observed.
        num_observed: J, number of labels there are.
        client: named in the messages.

    Raises:
        ValueError: labels that are no integers, or outside -1, .., J - 1.
    """
    owner = _owner(client)
    labels = np.asarray(observed)
    if labels.ndim != 1 or (labels.size and not np.issubdtype(labels.dtype, np.integer)):
        raise ValueError(
            f"Observed labels{owner} have shape {labels.shape} and dtype {labels.dtype}; they must be integers [n]."
        )
    outside = (labels < -1) | (labels >= num_observed)
    if np.any(outside):
        first = int(np.flatnonzero(outside)[0])
        raise ValueError(
            f"Observed label {labels[first]} of example {first}{owner} does not exist; labels are 0 to "
            f"{num_observed - 1}, and -1 where nothing was observed."
        )
    return np.bincount(labels[labels >= 0].astype(np.int64), minlength=num_observed)


def _check_explained(weights: NDArray[np.float64], counts: NDArray[np.integer], owner: str) -> None:
    if counts.shape != (len(weights),):
        raise ValueError(
            f"observed_counts{owner} have shape {counts.shape}; the correspondence matrix has {len(weights)} rows, one "
            "per observed label: labels beyond its rows have no meaning."
        )
    unexplained = (counts > 0) & ~np.any(weights > 0, axis=1)
    if np.any(unexplained):
        label = int(np.flatnonzero(unexplained)[0])
        raise ValueError(
            f"Row {label} of the correspondence matrix{owner} is all 0, yet {int(counts[label])} examples carry this "
            "label; a label that no class can carry has probability 0: correct the matrix or drop these examples."
        )


def _matrix(name: str, values: ArrayLike, axes: str, num_classes: int | None, owner: str) -> NDArray[np.float64]:
    matrix = np.asarray(values, np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape or num_classes not in (None, matrix.shape[1]):
        wanted = "" if num_classes is None else f" with {num_classes} classes"
        verb = "have" if name.endswith("s") else "has"
        raise ValueError(f"{name}{owner} {verb} shape {matrix.shape}; the shape must be {axes}{wanted}.")
    return matrix


def _check_entries(row: NDArray[np.float64], name: str) -> None:
    bad = ~(np.isfinite(row) & (row >= 0))
    if np.any(bad):
        column = int(np.flatnonzero(bad)[0])
        raise ValueError(f"{name} holds {row[column]:.6g} for class {column}; entries must be finite and >= 0.")


def _owner(client: int | str | None) -> str:
    return "" if client is None else f" of client {client}"
