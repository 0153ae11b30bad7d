"""The symmetric, normalized, sparse graph of nearest neighbours (XCLP, Algorithm 1 steps 7 and
8).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from fedjax_ssl.graph.graph_settings import check_known
from fedjax_ssl.graph.neighbors import Neighbors

_UNROLLED = 32


class Graph(NamedTuple):
    """D^(-1/2) (A + A^T) D^(-1/2) for neighbour lists A, in O(n k) memory and static shapes.

    A is kept as its k entries per row. A^T is kept as its entries sorted by row and cut into chunks
    of k: a row of A^T can have any number of entries, but all rows together need at most 2 n
    chunks. Both halves multiply by gathering alone; scattering is slow on accelerators and serial
    on CPUs.
    """

    index: Int32[Array, "n k"]  # type: ignore[assignment]  # columns of A
    weight: Float[Array, "n k"]  # normalized entries of A, 0 where there is no edge
    reverse_index: Int32[Array, "chunks k"]  # columns of A^T, chunk by chunk
    reverse_weight: Float[Array, "chunks k"]
    chunk_row: Int32[Array, " chunks"]  # row of A^T that a chunk belongs to, n for unused chunks
    first_chunk: Int32[Array, " n"]  # first chunk of a row
    num_chunks: Int32[Array, " n"]
    degree: Float[Array, " n"]  # row sums of A + A^T, 0 for isolated points

    @property
    def num_points(self) -> int:
        """Number of points, n."""
        return self.index.shape[0]


def build_graph(neighbors: Neighbors, similarity_power: float | Float[Array, ""] = 1.0) -> Graph:
    """Build the symmetric normalized graph from neighbour lists (XCLP, Algorithm 1 steps 7 and 8).

    W = A + A^T (the sum, not the maximum) and D = diag(W 1) with zeros replaced by 1.

    Args:
        neighbors: index and similarity, [n, k] each.
        similarity_power: exponent of the kept similarities, positive; 1 in the paper, 3 in its
            code.

    Returns:
        The graph; isolated points have an empty row and degree 0.

    Raises:
        ValueError: if the power is known and not positive, or the lists do not have the same shape.

    Example:
        >>> codes = jnp.array([[0b000], [0b111], [0b101]], jnp.uint32)
        >>> neighbors = fs.graph.nearest_neighbors(codes, num_bits=3, num_neighbors=1)
        >>> built = fs.graph.build_graph(neighbors)
        >>> neighbors.index[:, 0].tolist(), built.degree.tolist()
        ([2, 2, 1], [0.0, 1.0, 1.0])
    """
    check_known("(0, inf)", similarity_power=similarity_power)
    index, similarity = neighbors
    if index.ndim != 2 or index.shape != similarity.shape:
        raise ValueError(
            f"neighbour lists have shapes {index.shape} and {similarity.shape}; both must be "
            "[points, k]."
        )
    return _build_graph(neighbors, jnp.asarray(similarity_power, similarity.dtype))


@jax.jit
def _build_graph(neighbors: Neighbors, similarity_power: Array) -> Graph:
    index, similarity = neighbors
    num_points, width = index.shape
    positive = similarity > 0
    kept = jnp.where(positive, jnp.where(positive, similarity, 1) ** similarity_power, 0)
    lists = _reverse_lists(index, positive)
    reverse_index = lists.edge // width
    reverse_kept = jnp.where(lists.has_edge, kept.reshape(-1)[lists.edge], 0)
    degree = jnp.zeros(num_points, kept.dtype)
    graph = Graph(index, kept, reverse_index, reverse_kept, *lists[2:], degree=degree)
    if num_points == 0:
        return graph
    degree = multiply(graph, jnp.ones((num_points, 1), kept.dtype))[:, 0]
    scale = lax.rsqrt(jnp.where(degree > 0, degree, 1))
    rows = jnp.minimum(graph.chunk_row, num_points - 1)
    return graph._replace(
        weight=kept * (scale[:, None] * scale[index]),
        reverse_weight=reverse_kept * (scale[rows][:, None] * scale[reverse_index]),
        degree=degree,
    )


class _Reverse(NamedTuple):
    """A^T in chunks, see the last three fields of `Graph`."""

    edge: Int32[Array, "chunks k"]  # number of an edge, row * k + place
    has_edge: Bool[Array, "chunks k"]
    chunk_row: Int32[Array, " chunks"]
    first_chunk: Int32[Array, " n"]
    num_chunks: Int32[Array, " n"]


def _reverse_lists(index: Array, is_edge: Array) -> _Reverse:
    """Return the edges sorted by the row they point to, in chunks."""
    num_points, width = index.shape
    num_edges = num_points * width
    target = jnp.where(is_edge, index, num_points).reshape(-1)
    # Edges are numbered by origin, so a stable sort orders each row of A^T by column.
    target, edges = lax.sort(
        (target, jnp.arange(num_edges, dtype=jnp.int32)), num_keys=1, is_stable=True
    )
    start = jnp.searchsorted(target, jnp.arange(num_points + 1, dtype=jnp.int32)).astype(jnp.int32)
    num_chunks = -(-(start[1:] - start[:-1]) // width)
    last_chunk = jnp.cumsum(num_chunks, dtype=jnp.int32)
    first_chunk = last_chunk - num_chunks
    chunks = jnp.arange(2 * num_points, dtype=jnp.int32)
    chunk_row = jnp.searchsorted(last_chunk, chunks, side="right").astype(jnp.int32)
    row = jnp.minimum(chunk_row, max(num_points - 1, 0))
    place = (chunks - first_chunk[row]) * width + start[row]
    place = place[:, None] + jnp.arange(width, dtype=jnp.int32)
    has_edge = (chunk_row < num_points)[:, None] & (place < start[row + 1][:, None])
    edge = jnp.where(has_edge, edges[jnp.clip(place, 0, max(num_edges - 1, 0))], 0)
    return _Reverse(edge, has_edge, chunk_row, first_chunk, num_chunks)


def multiply(graph: Graph, vectors: Float[Array, "n c"]) -> Float[Array, "n c"]:
    """Multiply the graph's matrix by the columns of `vectors`, by gathering alone."""
    vectors = jnp.asarray(vectors)
    own = _weighted_rows(graph.weight, graph.index, vectors)
    chunks = _sum_chunks_to_first(
        graph, _weighted_rows(graph.reverse_weight, graph.reverse_index, vectors)
    )
    others = jnp.where((graph.num_chunks > 0)[:, None], _rows(chunks, graph.first_chunk), 0)
    # A barrier, so that padding cannot change the products that the compiler contracts.
    return lax.optimization_barrier(own + others)


def _rows(vectors: Array, index: Array) -> Array:
    return vectors.at[index].get(mode="promise_in_bounds")


def _weighted_rows(weight: Array, index: Array, vectors: Array) -> Array:
    """Return the sum over j of weight[:, j] * vectors[index[:, j]].

    Written out over j, the compiler makes one loop of vectorized row gathers. A reduction over j
    was 2 times slower for 10 columns of `vectors`, and 28 times for 62.
    """
    width = weight.shape[1]
    if width <= _UNROLLED:
        total = weight[:, 0, None] * _rows(vectors, index[:, 0])
        for place in range(1, width):
            total = total + weight[:, place, None] * _rows(vectors, index[:, place])
        return total
    blocks = -(-width // _UNROLLED)
    padding = ((0, 0), (0, blocks * _UNROLLED - width))
    weights = jnp.pad(weight, padding).reshape(-1, blocks, _UNROLLED).swapaxes(0, 1)
    indices = jnp.pad(index, padding).reshape(-1, blocks, _UNROLLED).swapaxes(0, 1)

    def add_block(total: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        return total + _weighted_rows(*block, vectors), None

    start = jnp.zeros((weight.shape[0], vectors.shape[1]), weight.dtype)
    return lax.scan(add_block, start, (weights, indices))[0]


def _sum_chunks_to_first(graph: Graph, chunks: Array) -> Array:
    """Add up the chunks of each row into its first one, doubling the stride, in log2(most chunks)
    gathers.
    """
    places = jnp.arange(chunks.shape[0], dtype=jnp.int32)
    most = jnp.max(graph.num_chunks)

    def unfinished(carry: tuple[Array, Array]) -> Array:
        return carry[0] < most

    def add_next(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        stride, partial_sums = carry
        following = jnp.minimum(places + stride, chunks.shape[0] - 1)
        same_row = (places + stride < chunks.shape[0]) & (
            graph.chunk_row[following] == graph.chunk_row
        )
        return 2 * stride, partial_sums + jnp.where(
            same_row[:, None], _rows(partial_sums, following), 0
        )

    return lax.while_loop(unfinished, add_next, (jnp.int32(1), chunks))[1]


@jax.jit
def dense_matrix(graph: Graph) -> Float[Array, "n n"]:
    """Return the graph's normalized symmetric matrix, dense, for small graphs and tests."""
    num_points = graph.num_points
    rows = jnp.arange(num_points, dtype=jnp.int32)[:, None]
    half = (
        jnp.zeros((num_points, num_points), graph.weight.dtype)
        .at[rows, graph.index]
        .add(graph.weight)
    )
    return half + half.T
