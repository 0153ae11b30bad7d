"""Label propagation: solve (I - alpha W) Z = Y on the sparse graph (XCLP, Algorithm 1 steps 9 to
12).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import jax.scipy.linalg
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int32

from fedjax_ssl.checks import check_choices, check_whole_numbers
from fedjax_ssl.graph.graph import Graph, dense_matrix, multiply
from fedjax_ssl.graph.graph_settings import Solver, check_known

# Up to this many points, the dense factorization was as fast as the iterations, at alpha 0.99.
CHOLESKY_POINTS = 512
_SUM_WIDTH = 32


class Solution(NamedTuple):
    """A solution found by `solve`, with its residual."""

    scores: Float[Array, "n c"]
    iterations: Int32[Array, ""]  # steps of conjugate gradients, 0 for Cholesky
    converged: Bool[Array, ""]  # every column reached the tolerance
    residual: Float[Array, ""]
    # ^ largest ||b - A x|| / ||b|| over the columns, computed anew from the scores


def propagate(
    graph: Graph,
    label_matrix: Float[Array, "n c"],
    alpha: float | Float[Array, ""],
    solver: str = "auto",
) -> Float[Array, "n c"]:
    """Spread labels over the graph: Z = (I - alpha W)^(-1) Y (XCLP, Algorithm 1 steps 9 to 12).

    Arguments and errors are those of `solve`. Rows of Y are one-hot for labelled points and zero
    for the others.
    """
    return solve(graph, label_matrix, alpha, solver).scores


def solve(
    graph: Graph,
    label_matrix: Float[Array, "n c"],
    alpha: float | Float[Array, ""],
    solver: str = "auto",
    *,
    tolerance: float | None = None,
    max_iterations: int = 1000,
) -> Solution:
    """Solve (I - alpha W) Z = Y; return the solution with its residual.

    The matrix is symmetric positive definite with condition at most (1 + alpha) / (1 - alpha).
    Conjugate gradients run over all columns at once; a column stops moving when it has converged,
    so the result for one class does not depend on the others.

    Args:
        graph: from `build_graph`, n points.
        label_matrix: [n, c] right-hand sides.
        alpha: in [0, 1).
        solver: "cholesky" (dense, O(n^2) memory), "conjugate_gradient" (O(n k)), or "auto":
            Cholesky up to 512 points.
        tolerance: goal of conjugate gradients for ||r|| / ||b|| of every column; None: 1e-6 in
            float32 and 1e-12 in float64.
        max_iterations: most steps of conjugate gradients.

    Raises:
        ValueError: if alpha is known and outside [0, 1), the solver is unknown or shapes do not
            fit.
    """
    check_known("[0, 1)", alpha=alpha)
    check_choices(get_args(Solver), solver=solver)
    check_whole_numbers(max_iterations=max_iterations)
    label_matrix = jnp.asarray(label_matrix)
    if label_matrix.ndim != 2 or label_matrix.shape[0] != graph.num_points:
        raise ValueError(
            f"label_matrix has shape {label_matrix.shape}; for this graph it must be "
            f"({graph.num_points}, classes)."
        )
    dtype = graph.weight.dtype
    if solver == "auto":
        solver = "cholesky" if graph.num_points <= CHOLESKY_POINTS else "conjugate_gradient"
    if tolerance is None:
        tolerance = 1e-12 if dtype == jnp.float64 else 1e-6
    alpha = jnp.asarray(alpha, dtype)
    goal = jnp.asarray(tolerance, dtype)
    return _solve(graph, label_matrix.astype(dtype), alpha, goal, solver, max_iterations)


@partial(jax.jit, static_argnames=("solver", "max_iterations"))
def _solve(
    graph: Graph, target: Array, alpha: Array, tolerance: Array, solver: str, max_iterations: int
) -> Solution:
    def system(vectors: Array) -> Array:
        return vectors - alpha * multiply(graph, vectors)

    if graph.num_points == 0:
        return Solution(target, jnp.int32(0), jnp.bool_(True), jnp.zeros((), target.dtype))
    if solver == "cholesky":
        dense_system = jnp.eye(graph.num_points, dtype=target.dtype) - alpha * dense_matrix(graph)
        factor = jax.scipy.linalg.cho_factor(dense_system, lower=True)
        scores = jax.scipy.linalg.cho_solve(factor, target)
        iterations = jnp.int32(0)
    else:
        scores, iterations = _conjugate_gradients(system, target, tolerance, max_iterations)
    size = sum_rows(target**2)
    error = sum_rows((target - system(scores)) ** 2)
    residual = jnp.sqrt(jnp.max(jnp.where(size > 0, error / jnp.where(size > 0, size, 1), 0)))
    # The recomputed residual has the rounding of one multiplication on top of the tolerance.
    rounding = 100 * jnp.finfo(target.dtype).eps
    return Solution(scores, iterations, residual <= 2 * tolerance + rounding, residual)


def _conjugate_gradients(
    system: Callable[[Array], Array], target: Array, tolerance: Array, max_iterations: int
) -> tuple[Array, Array]:
    # Not `jax.scipy.sparse.linalg.cg`: it stops by the sum over columns, so classes would depend on
    # each other. Here a converged column takes steps of length 0 while the others continue.
    goal = tolerance**2 * sum_rows(target**2)

    def unfinished(carry: tuple) -> Array:
        _, _, _, size, iteration = carry
        return jnp.any(size > goal) & (iteration < max_iterations)

    def improve(carry: tuple) -> tuple:
        scores, residual, direction, size, iteration = carry
        moving = size > goal
        image = system(direction)
        curvature = sum_rows(direction * image)
        step = jnp.where(moving, size / jnp.where(moving, curvature, 1), 0)
        scores = scores + step * direction
        residual = residual - step * image
        next_size = sum_rows(residual**2)
        ratio = jnp.where(moving, next_size / jnp.where(moving, size, 1), 0)
        return scores, residual, residual + ratio * direction, next_size, iteration + 1

    start = (jnp.zeros_like(target), target, target, sum_rows(target**2), jnp.int32(0))
    scores, _, _, _, iterations = lax.while_loop(unfinished, improve, start)
    return scores, iterations


def sum_rows(values: Array) -> Array:
    """Sum over axis 0 in an order that zero rows at the end do not change.

    The compiler splits long sums in a way that depends on their length, and padding must not change
    a bit.
    """
    while values.shape[0] > 1:
        padding = -values.shape[0] % _SUM_WIDTH
        values = jnp.pad(values, ((0, padding), (0, 0))).reshape(-1, _SUM_WIDTH, values.shape[1])
        total = values[:, 0]
        for place in range(1, _SUM_WIDTH):
            total = total + values[:, place]
        values = total
    return values[0]


def influence_matrix(graph: Graph, alpha: float | Float[Array, ""]) -> Float[Array, "n n"]:
    """Return the matrix S = (I - alpha W)^(-1), which the server of the protocol holds (XCLP,
    Algorithm 1 step 9).

    O(n^2) memory and O(n^3) time: for the protocol layer and for studies; `propagate` never needs
    it.

    Args:
        graph: from `build_graph`, n points.
        alpha: in [0, 1).

    Returns:
        [n, n], symmetric.

    Raises:
        ValueError: if alpha is known and outside [0, 1).

    Example:
        >>> neighbors = fs.graph.Neighbors(jnp.array([[1], [0]]), jnp.array([[1.0], [1.0]]))
        >>> built = fs.graph.build_graph(neighbors)  # two points, each the other's neighbour
        >>> influence = fs.graph.influence_matrix(built, alpha=0.5)
        >>> bool(jnp.allclose(influence, jnp.array([[4.0, 2.0], [2.0, 4.0]]) / 3))
        True
    """
    check_known("[0, 1)", alpha=alpha)
    return _influence_matrix(graph, jnp.asarray(alpha, graph.weight.dtype))


@jax.jit
def _influence_matrix(graph: Graph, alpha: Array) -> Array:
    inverse = influence_columns(graph, alpha, jnp.arange(graph.num_points), "cholesky")
    return (inverse + inverse.T) / 2


def influence_columns(
    graph: Graph, alpha: float | Float[Array, ""], rows: Int[Array, " m"], solver: str = "auto"
) -> Float[Array, "n m"]:
    """Return the columns of S that one client receives, one for each of its labelled rows (XCLP,
    Algorithm 1 step 10).

    Args:
        graph: from `build_graph`, n points.
        alpha: in [0, 1).
        rows: [m], row numbers of the points.
        solver: see `solve`.

    Returns:
        [n, m].

    Raises:
        ValueError: as `solve`.
    """
    points = jnp.arange(graph.num_points, dtype=jnp.int32)
    unit_columns = points[:, None] == jnp.asarray(rows, jnp.int32)[None, :]
    return solve(graph, unit_columns.astype(graph.weight.dtype), alpha, solver).scores
