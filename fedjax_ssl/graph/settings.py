"""The settings of one propagation, in one tuple."""

from typing import NamedTuple

from jaxtyping import Array, Float


class PropagationSettings(NamedTuple):
    """How labels travel over a graph; the defaults are the paper's. Alpha and the power may be traced."""

    num_bits: int = 4096  # L, bits per code; graphs of exact cosines have none
    num_neighbors: int = 10  # k
    alpha: float | Float[Array, ""] = 0.99  # in [0, 1), how far labels travel
    similarity_power: float | Float[Array, ""] = 1.0  # exponent of kept similarities; 3 in the code of the paper
    # "none", or "class" (the code): divide each label by the number of labels of its class, so that the class with most
    # labels does not win everywhere.
    label_norm: str = "none"
    # "none", "max" (the code: divide by the largest over all points) or "client_max" (by the largest of each client).
    confidence_scale: str = "none"
    solver: str = "auto"  # "auto", "cholesky" or "conjugate_gradient", see `propagation.solve`
