"""Checks of label channels before tracing: NumPy in float64 on the host.

First come checks of users' sets and correspondences, then of whether a federation's observations
determine the class posterior. Client c observes q = A eta / sum(A eta) of the class posterior eta,
one linear constraint on eta per observation: q_o * sum_o' (A eta)_o' = (A eta)_o. They sum to 0
over o, so the last one is left out. The federation identifies eta if the stacked constraints of all
clients have a null space of one dimension, the ray of eta. A matrix of full column rank at every
client is sufficient, but not necessary.
"""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Set priors and test prior: a sum farther from 1 is an error, a nearer one is divided out.
ROW_TOLERANCE = 1e-3
COLUMN_TOLERANCE = 1e-6  # the same for correspondence matrices
# Singular values below this share of the largest one count as 0, because shares come in float32.
RANK_TOLERANCE = 1e-6


def check_set_priors(
    set_priors: ArrayLike,
    set_shares: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    client: int | str | None = None,
) -> NDArray[np.float64]:
    """Return the class proportions of a client's sets, rows scaled to sum exactly to 1; rows of
    sets without examples are 0.

    Args:
        set_priors: [M, K], a row per set.
        set_shares: [M], share or number of examples of every set; 0 = empty set, whose row is not
            read.
        num_classes: K, if it is known.
        client: name of the client in messages.

    Raises:
        ValueError: wrong shape, NaN or negative entries, or a row whose sum is off 1 by more than
            1e-3.
    """
    owner = _owner(client)
    priors = _matrix("set_priors", set_priors, "[sets, classes]", num_classes, owner)
    shares = np.ones(len(priors)) if set_shares is None else np.asarray(set_shares, np.float64)
    if shares.shape != (len(priors),) or not np.all(np.isfinite(shares)) or np.any(shares < 0):
        raise ValueError(
            f"set_shares{owner} are {shares.tolist()}; they must be {len(priors)} finite numbers "
            ">= 0, one per row of set_priors: the number or the share of the examples in every "
            "set."
        )
    filled = shares > 0
    for row in np.flatnonzero(filled):
        _check_entries(priors[row], f"Row {row} of set_priors{owner}")
        total = priors[row].sum()
        if abs(total - 1) > ROW_TOLERANCE:
            raise ValueError(
                f"Row {row} of set_priors{owner} sums to {total:.6g}; the class proportions of a "
                f"set must sum to 1 (up to {ROW_TOLERANCE:g}): divide counts by the size of the "
                "set."
            )
    priors = np.where(filled[:, None], priors, 0.0)
    return priors / np.where(filled, priors.sum(axis=1), 1.0)[:, None]


def check_test_prior(test_prior: ArrayLike, num_classes: int) -> NDArray[np.float64]:
    """Return the class proportions at test time, scaled to sum exactly to 1.

    Raises:
        ValueError: wrong shape, an entry that is not positive, or a sum that is off 1 by more than
            1e-3.
    """
    prior = np.asarray(test_prior, np.float64)
    if prior.shape != (num_classes,):
        raise ValueError(
            f"test_prior has shape {prior.shape}; it must have one entry for each of "
            f"{num_classes} classes."
        )
    if not np.all(np.isfinite(prior)) or np.any(prior <= 0):
        bad = _first(~(np.isfinite(prior) & (prior > 0)))
        raise ValueError(
            f"test_prior is {prior[bad]:.6g} for class {bad}; every entry must be positive, since "
            "set priors are divided by it: remove the class, or give it a small share."
        )
    if abs(prior.sum() - 1) > ROW_TOLERANCE:
        raise ValueError(
            f"test_prior sums to {prior.sum():.6g}; class proportions must sum to 1: divide by "
            "the sum."
        )
    return prior / prior.sum()


def check_correspondence(
    matrix: ArrayLike,
    observed_counts: ArrayLike | None = None,
    *,
    num_classes: int | None = None,
    normalize_columns: bool = False,
    client: int | str | None = None,
) -> NDArray[np.float64]:
    """Return the correspondence matrix M_jk = P(observed label j | class k), columns scaled to sum
    exactly to 1.

    There may be more observed labels than classes.

    Args:
        matrix: [J, K], a column per class.
        observed_counts: [J], examples of every observed label, as `check_observed` returns them.
        num_classes: K, if it is known.
        normalize_columns: whether columns may hold counts instead of probabilities.
        client: name of the client in messages.

    Raises:
        ValueError: wrong shape, entries that are NaN or negative, an empty column, columns that do
            not sum to 1 within 1e-6, or a label that examples carry although its row is all 0.
    """
    owner = _owner(client)
    weights = _matrix(
        "The correspondence matrix", matrix, "[observed labels, classes]", num_classes, owner
    )
    for row in range(len(weights)):
        _check_entries(weights[row], f"Row {row} of the correspondence matrix{owner}")
    sums = weights.sum(axis=0)
    if np.any(sums == 0):
        empty = _first(sums == 0)
        raise ValueError(
            f"Column {empty} of the correspondence matrix{owner} is all 0; every class needs "
            f"observed labels that it can carry: give column {empty} the label frequencies if "
            "nothing is known."
        )
    off = np.abs(sums - 1) > COLUMN_TOLERANCE
    if np.any(off) and not normalize_columns:
        column = _first(off)
        transposed = np.all(np.abs(weights.sum(axis=1) - 1) <= COLUMN_TOLERANCE)
        hint = (
            "all rows sum to 1, so the matrix looks transposed: pass its transpose."
            if transposed
            else "divide columns by their sums, or set normalize_columns=True."
        )
        raise ValueError(
            f"Column {column} of the correspondence matrix{owner} sums to {sums[column]:.8g}; "
            "columns must sum to 1 (P(observed label | class)), shape [observed labels, classes] "
            f"= {weights.shape}; {hint}"
        )
    if observed_counts is not None:
        counts = np.asarray(observed_counts)
        if counts.shape != (len(weights),):
            raise ValueError(
                f"observed_counts{owner} have shape {counts.shape}; the correspondence matrix has "
                f"{len(weights)} rows, one per observed label: labels beyond its rows have no "
                "meaning."
            )
        unexplained = (counts > 0) & ~np.any(weights > 0, axis=1)
        if np.any(unexplained):
            label = _first(unexplained)
            raise ValueError(
                f"Row {label} of the correspondence matrix{owner} is all 0, yet "
                f"{int(counts[label])} examples carry this label; a label that no class can carry "
                "has probability 0: correct the matrix or drop these examples."
            )
    return weights / sums


def check_observed(
    observed: ArrayLike, num_observed: int, *, client: int | str | None = None
) -> NDArray[np.int64]:
    """Return the counts [J] of a client's observed labels.

    Args:
        observed: [n] integers, -1 = nothing observed.
        num_observed: J, number of labels.
        client: name of the client in messages.

    Raises:
        ValueError: labels that are no integers, or outside -1, .., J - 1.
    """
    owner = _owner(client)
    labels = np.asarray(observed)
    if labels.ndim != 1 or (labels.size and not np.issubdtype(labels.dtype, np.integer)):
        raise ValueError(
            f"Observed labels{owner} have shape {labels.shape} and dtype {labels.dtype}; they "
            "must be integers [n]."
        )
    outside = (labels < -1) | (labels >= num_observed)
    if np.any(outside):
        first = _first(outside)
        raise ValueError(
            f"Observed label {labels[first]} of example {first}{owner} does not exist; labels are "
            f"0 to {num_observed - 1}, and -1 where nothing was observed."
        )
    return np.bincount(labels[labels >= 0].astype(np.int64), minlength=num_observed)


def _matrix(
    name: str, values: ArrayLike, axes: str, num_classes: int | None, owner: str
) -> NDArray[np.float64]:
    matrix = np.asarray(values, np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape or num_classes not in (None, matrix.shape[1]):
        wanted = "" if num_classes is None else f" with {num_classes} classes"
        verb = "have" if name.endswith("s") else "has"
        raise ValueError(
            f"{name}{owner} {verb} shape {matrix.shape}; the shape must be {axes}{wanted}."
        )
    return matrix


def _check_entries(row: NDArray[np.float64], name: str) -> None:
    bad = ~(np.isfinite(row) & (row >= 0))
    if np.any(bad):
        column = _first(bad)
        raise ValueError(
            f"{name} holds {row[column]:.6g} for class {column}; entries must be finite and >= 0."
        )


def _first(found: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(found)[0])


def _owner(client: int | str | None) -> str:
    return "" if client is None else f" of client {client}"


def posterior_constraints(
    matrices: Sequence[ArrayLike], posterior: ArrayLike
) -> NDArray[np.float64]:
    """Return the constraints [sum_c (O_c - 1), K] on the class posterior by the clients'
    observations, stacked.

    Args:
        matrices: A_c [O_c, K] of every client, entries >= 0; no rows for a client that observes
            nothing.
        posterior: [K], the class posterior for which the constraints hold; it lies in their null
            space.
    """
    eta = np.asarray(posterior, np.float64)
    rows = [np.zeros((0, len(eta)))]
    for matrix in matrices:
        # A zero row only says 0 = 0, and as the last row it would replace a real constraint.
        weights = _filled_rows(matrix)
        if len(weights):
            scores = weights @ eta
            observed = scores / scores.sum()
            rows.append((observed[:, None] * weights.sum(axis=0) - weights)[:-1])
    return np.concatenate(rows)


def open_directions(matrices: Sequence[ArrayLike], posterior: ArrayLike | None = None) -> int:
    """Return the number of directions of the class posterior that all clients' observations
    together leave open; 0: they determine it.

    Args:
        matrices: A_c [O_c, K] of every client: the identity for labels, the correspondence matrix
            for labels of another space, diag(shares) priors diag(1 / test prior) for sets, an array
            [0, K] for nothing.
        posterior: [K], all positive, the posterior at which it is tested; by default three random
            ones, and the smallest rank counts.

    Raises:
        ValueError: no client, or matrices that differ in their number of classes.
    """
    widths = {np.asarray(matrix).shape[-1] for matrix in matrices}
    if len(widths) != 1:
        raise ValueError(
            f"The clients' matrices have {sorted(widths)} columns; at least one client is needed, "
            "and all matrices must have one column per class."
        )
    num_classes = widths.pop()
    drawn = np.random.default_rng(0).dirichlet(np.ones(num_classes), size=3)
    posteriors = drawn if posterior is None else np.asarray(posterior, np.float64)[None]
    return num_classes - 1 - min(_rank(posterior_constraints(matrices, eta)) for eta in posteriors)


def is_constant(matrix: ArrayLike) -> bool:
    """Return whether a client's loss ignores the logits: it has one observation, or all of its
    observations have proportional rows.
    """
    rows = _filled_rows(matrix)
    # The size of a set says nothing about the classes that it can separate.
    return len(rows) > 0 and _rank(rows / rows.sum(axis=1, keepdims=True)) <= 1


def channel_warnings(matrices: Sequence[ArrayLike], quiet: Collection[int] = ()) -> list[str]:
    """Return the weaknesses of clients' observations, a sentence each, with the clients concerned.

    Args:
        matrices: as for `open_directions`.
        quiet: clients that are not mentioned.
    """
    clients_with: dict[str, list[int]] = {}
    for client, matrix in enumerate(matrices):
        for weakness in [] if client in quiet else _weaknesses(matrix):
            clients_with.setdefault(weakness, []).append(client)
    return [
        f"{'Client' if len(clients) == 1 else 'Clients'} {_listed(tuple(clients))}: {weakness}"
        for weakness, clients in clients_with.items()
    ]


def _weaknesses(matrix: ArrayLike) -> list[str]:
    found = []
    rows = _filled_rows(matrix)
    if len(rows) == 1:
        found.append("there is only one set, so the loss is constant and its gradient 0.")
    elif is_constant(matrix):
        found.append(
            "all sets have the same class proportions, so the loss is constant and its gradient 0."
        )
    elif len(rows) and not rows.any(axis=0).all():
        missing = tuple(np.flatnonzero(~rows.any(axis=0)).tolist())
        found.append(f"classes {_listed(missing)} occur in no set; nothing is learned about them.")
    return found


def open_note(directions: int, num_classes: int) -> list[str]:
    """Return the sentence about a federation that leaves directions of the class posterior open."""
    notes = []
    if directions:
        notes.append(
            f"The federation as a whole does not identify the class posterior: {directions} of "
            f"{num_classes - 1} directions are left open by all observations together; add "
            "labelled examples, or sets with other class proportions."
        )
    return notes


def _listed(numbers: tuple[int, ...], most: int = 10) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text if len(numbers) <= most else f"{text}, ... ({len(numbers)} in all)"


def _filled_rows(matrix: ArrayLike) -> NDArray[np.float64]:
    """Return the rows of possible observations, that is, of sets with examples."""
    weights = np.asarray(matrix, np.float64)
    return weights[np.any(weights > 0, axis=1)]


def _rank(matrix: NDArray[np.float64]) -> int:
    values = np.linalg.svd(matrix, compute_uv=False)
    if not len(values) or values[0] == 0:
        return 0
    return int(np.sum(values > RANK_TOLERANCE * values[0]))
