"""Graphs of nearest neighbours and label propagation on them: the kernels of XCLP.

Example:
    >>> points = jax.random.normal(jax.random.key(0), (100, 8))
    >>> codes = fs.graph.lsh_codes(jax.random.key(1), points, num_bits=256)
    >>> neighbors = fs.graph.nearest_neighbors(codes, num_bits=256, num_neighbors=5)
    >>> neighbors.index.shape
    (100, 5)
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.graph.codes import cosine_from_hamming, hamming_matrix, has_angle, lsh_codes
    from fedjax_ssl.graph.exchange import IDEAL, Exchange
    from fedjax_ssl.graph.graph import Graph, build_graph, dense_matrix, multiply
    from fedjax_ssl.graph.graph_settings import CODE, PAPER, GraphSettings
    from fedjax_ssl.graph.label_plan import STRATEGIES, Plan, plan_labels
    from fedjax_ssl.graph.labelling import (
        Propagation,
        label,
        propagate_labels,
    )
    from fedjax_ssl.graph.neighbors import (
        Neighbors,
        cosine_neighbors,
        nearest_neighbors,
        neighbors_from_matrix,
    )
    from fedjax_ssl.graph.propagation import (
        Solution,
        influence_columns,
        influence_matrix,
        propagate,
        solve,
    )
    from fedjax_ssl.graph.weighting import class_counts, class_weights, confidence

__getattr__, __dir__ = attach(__name__)
