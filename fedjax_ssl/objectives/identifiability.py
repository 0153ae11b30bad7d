"""Whether what a federation observes determines the class posterior: NumPy in float64 on the host.

Client c observes q = A eta / sum(A eta) of the class posterior eta, which is one linear constraint on eta per
observation: q_o * sum_o' (A eta)_o' = (A eta)_o. They sum to 0 over o, so the last one is left out. The federation
identifies eta if the stacked constraints of all clients have a null space of one dimension, the ray of eta. A matrix of
full column rank at every client is sufficient for that, not necessary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RANK_TOLERANCE = 1e-6  # singular values below this share of the largest one count as 0: shares come in float32
SMALL_SINGULAR_VALUE = 1e-3  # below it a client's own matrix is close to singular


class MatrixDiagnostics(NamedTuple):
    """How well one client's matrix [O, K] could be inverted."""

    num_rows: int  # observations with a positive weight
    num_classes: int
    rank: int
    singular_values: NDArray[np.float64]  # descending, K of them
    condition_number: float  # largest singular value over the K-th; inf for a rank below K
    empty_rows: tuple[int, ...]  # observations without any weight: sets without examples
    missing_classes: tuple[int, ...]  # classes without any weight: zero columns

    @property
    def smallest_singular_value(self) -> float:
        """The K-th singular value; 0 where there are fewer observations than classes."""
        return float(self.singular_values[-1])

    @property
    def is_constant(self) -> bool:
        """Whether the loss does not depend on the logits: one observation, or all of them with proportional rows."""
        return self.num_rows > 0 and self.rank <= 1


class Identifiability(NamedTuple):
    """What the federation as a whole determines."""

    clients: tuple[MatrixDiagnostics, ...]  # with rows scaled to sum 1
    singular_values: NDArray[np.float64]  # of the stacked constraints, descending, K of them
    null_space: NDArray[np.float64]  # [K, m], orthonormal; m = 1 where the posterior is identified
    identified: bool


def diagnose_matrix(matrix: ArrayLike) -> MatrixDiagnostics:
    """Rank, singular values and empty rows and columns of a client's matrix [O, K], used as it is.

    Raises:
        ValueError: not a matrix of finite numbers >= 0.
    """
    weights = np.asarray(matrix, np.float64)
    if weights.ndim != 2 or not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise ValueError(
            f"A client's matrix has shape {weights.shape}; it must be [observations, classes] of finite numbers >= 0."
        )
    singular_values = _singular_values(weights)
    rank = _rank(singular_values)
    full = rank == weights.shape[1]
    return MatrixDiagnostics(
        num_rows=int(np.any(weights > 0, axis=1).sum()),
        num_classes=weights.shape[1],
        rank=rank,
        singular_values=singular_values,
        condition_number=float(singular_values[0] / singular_values[-1]) if full else float("inf"),
        empty_rows=tuple(np.flatnonzero(~np.any(weights > 0, axis=1)).tolist()),
        missing_classes=tuple(np.flatnonzero(~np.any(weights > 0, axis=0)).tolist()),
    )


def posterior_constraints(matrices: Sequence[ArrayLike], posterior: ArrayLike) -> NDArray[np.float64]:
    """The stacked constraints [sum_c (O_c - 1), K] that the clients' observations put on the class posterior.

    Args:
        matrices: A_c [O_c, K] of every client, entries >= 0; no rows for a client that observes nothing.
        posterior: [K], the class posterior at which they are taken; it lies in their null space.
    """
    eta = np.asarray(posterior, np.float64)
    rows = [np.zeros((0, len(eta)))]
    for matrix in matrices:
        weights = np.asarray(matrix, np.float64)
        # A row of zeros would only say that 0 = 0, and as the last row it would take the place of a real constraint.
        weights = weights[np.any(weights > 0, axis=1)]
        if len(weights):
            scores = weights @ eta
            observed = scores / scores.sum()
            rows.append((observed[:, None] * weights.sum(axis=0) - weights)[:-1])
    return np.concatenate(rows)


def assess_identifiability(
    matrices: Sequence[ArrayLike], posterior: ArrayLike | None = None, *, num_draws: int = 3, seed: int = 0
) -> Identifiability:
    """Whether the clients' observations together determine the class posterior.

    Args:
        matrices: A_c [O_c, K] of every client: the identity for labels, the correspondence matrix for labels of
            another space, diag(shares) priors diag(1 / test prior) for sets, an array [0, K] for nothing.
        posterior: [K], all positive, the posterior at which it is tested; by default `num_draws` random ones, of which
            the one with the smallest rank counts.
        num_draws: number of random posteriors.
        seed: of the random posteriors.

    Raises:
        ValueError: no client, or matrices that differ in their number of classes.
    """
    arrays = [np.asarray(matrix, np.float64) for matrix in matrices]
    widths = {array.shape[-1] for array in arrays}
    if len(widths) != 1:
        raise ValueError(
            f"The clients' matrices have {sorted(widths)} columns; at least one client is needed, and all matrices "
            "must have one column per class."
        )
    clients = tuple(diagnose_matrix(_rows_of_sum_one(array)) for array in arrays)
    if posterior is None:
        rng = np.random.default_rng(seed)
        posteriors = rng.dirichlet(np.ones(widths.pop()), size=num_draws)
    else:
        posteriors = np.asarray(posterior, np.float64)[None]
    stacks = [posterior_constraints(arrays, eta) for eta in posteriors]
    worst = min(stacks, key=lambda stack: _rank(_singular_values(stack)))
    singular_values = _singular_values(worst)
    rank = _rank(singular_values)
    # The triangular factor has the same null space as the stack, and no more rows than there are classes.
    square = np.zeros((worst.shape[1], worst.shape[1]))
    factor = np.linalg.qr(worst, mode="r")
    square[: len(factor)] = factor
    _, _, right = np.linalg.svd(square)
    return Identifiability(clients, singular_values, right[rank:].T, rank == worst.shape[1] - 1)


def identifiability_warnings(report: Identifiability) -> list[str]:
    """What a user should know about a federation, a sentence per weakness with the clients that have it."""
    clients_with: dict[str, list[int]] = {}
    for client, diagnostics in enumerate(report.clients):
        for weakness in _weaknesses(diagnostics):
            clients_with.setdefault(weakness, []).append(client)
    warnings = [
        f"{'Client' if len(clients) == 1 else 'Clients'} {_listed(tuple(clients))}: {weakness}"
        for weakness, clients in clients_with.items()
    ]
    if not report.identified:
        num_classes, dimension = report.null_space.shape
        warnings.append(
            f"The federation as a whole does not identify the class posterior: {dimension - 1} of {num_classes - 1} "
            "directions are left open by all observations together; add labelled examples, or sets with other class "
            "proportions."
        )
    return warnings


def _weaknesses(diagnostics: MatrixDiagnostics) -> list[str]:
    found = []
    if diagnostics.empty_rows:
        found.append(
            f"observations {_listed(diagnostics.empty_rows)} have no weight (sets without examples, or labels that no "
            "class carries); they are dropped."
        )
    if not diagnostics.num_rows:
        return found
    if diagnostics.is_constant:
        reason = "there is only one set" if diagnostics.num_rows == 1 else "all sets have the same class proportions"
        found.append(f"{reason}, so the loss is constant and its gradient 0.")
        return found
    if diagnostics.missing_classes:
        found.append(f"classes {_listed(diagnostics.missing_classes)} occur in no set; nothing is learned about them.")
    if diagnostics.rank < diagnostics.num_classes:
        found.append(
            f"rank {diagnostics.rank} of {diagnostics.num_classes}; a client's observations alone do not tell all "
            "classes apart."
        )
    elif diagnostics.smallest_singular_value < SMALL_SINGULAR_VALUE:
        found.append(
            f"the smallest singular value is {diagnostics.smallest_singular_value:.1g} (condition number "
            f"{diagnostics.condition_number:.1g}); some classes are hardly told apart."
        )
    return found


def _listed(numbers: tuple[int, ...], most: int = 10) -> str:
    text = ", ".join(map(str, numbers[:most]))
    return text if len(numbers) <= most else f"{text}, ... ({len(numbers)} in all)"


def _rows_of_sum_one(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows scaled to sum 1: how large a set is says nothing about what it can tell apart."""
    sums = matrix.sum(axis=-1, keepdims=True)
    return np.divide(matrix, sums, out=matrix.copy(), where=sums > 0)


def _singular_values(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """As many singular values as columns: those that a matrix with few rows lacks are 0."""
    found = np.linalg.svd(matrix, compute_uv=False)
    return np.pad(found, (0, matrix.shape[1] - len(found)))


def _rank(singular_values: NDArray[np.float64]) -> int:
    if not len(singular_values) or singular_values[0] == 0:
        return 0
    return int(np.sum(singular_values > RANK_TOLERANCE * singular_values[0]))
