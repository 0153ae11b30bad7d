"""The settings of one propagation, and checks of arguments: shapes always, values where they are
known.

Values are looked at with NumPy: a known value inside somebody's trace would become unknown in a JAX
operation.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_ssl.checks import check_choices, check_whole_numbers

SOLVERS = ("auto", "cholesky", "conjugate_gradient")


class PropagationSettings(NamedTuple):
    """Settings of label propagation over a graph; the defaults are the paper's. Alpha and the
    power may be traced.
    """

    num_bits: int = 4096  # L, bits per code; graphs of exact cosines have none
    num_neighbors: int = 10  # k
    alpha: float | Float[Array, ""] = 0.99  # in [0, 1), how far labels travel
    similarity_power: float | Float[Array, ""] = 1.0
    # ^ exponent of kept similarities; 3 in the code of the paper
    # "none", or "class" (the code): divide each label by the number of labels of its class, so that
    # the class with most labels does not win everywhere.
    label_norm: str = "none"
    # "none", "max" (the code: divide by the largest over all points) or "client_max" (by the
    # largest of each client).
    confidence_scale: str = "none"
    solver: str = "auto"  # "auto", "cholesky" or "conjugate_gradient", see `propagation.solve`


def is_known(value: object) -> bool:
    """Return whether a value can be looked at now, that is, whether it is not being traced."""
    return not isinstance(value, jax.core.Tracer)


def check_alpha(alpha: float | jax.Array) -> None:
    """Raise ValueError unless a known alpha lies in [0, 1): at 1 the propagation has no
    solution.
    """
    if is_known(alpha) and not np.all((np.asarray(alpha) >= 0) & (np.asarray(alpha) < 1)):
        raise ValueError(f"alpha is {alpha}; it must lie in [0, 1), for example 0.99.")


def check_power(similarity_power: float | jax.Array) -> None:
    """Raise ValueError unless a known similarity power is positive."""
    if is_known(similarity_power) and not np.all(np.asarray(similarity_power) > 0):
        raise ValueError(
            f"similarity_power is {similarity_power}; it must be positive (1 in the paper, 3 in "
            "its code)."
        )


def check_settings(settings: PropagationSettings) -> None:
    """Raise ValueError for a known number out of range or an unknown word; searches check their
    own settings.
    """
    check_alpha(settings.alpha)
    check_power(settings.similarity_power)
    check_choices(("none", "class"), label_norm=settings.label_norm)
    check_choices(("none", "max", "client_max"), confidence_scale=settings.confidence_scale)
    check_choices(SOLVERS, solver=settings.solver)


def check_features(features: jax.Array) -> None:
    """Raise ValueError unless features are floats of shape [n, d], and finite where that can be
    seen.
    """
    if features.ndim != 2:
        raise ValueError(
            f"features have shape {features.shape}; they must be [points, features]: flatten "
            "images first."
        )
    if not jnp.issubdtype(features.dtype, jnp.floating):
        raise ValueError(
            f"features have dtype {features.dtype}; they must be floating: cast them first."
        )
    if is_known(features):
        bad = int(np.sum(~np.isfinite(np.asarray(features)).all(axis=1)))
        if bad:
            raise ValueError(
                f"features hold NaN or infinity in {bad} of {features.shape[0]} rows; "
                "drop these rows, or mark them with valid=False and set them to 0."
            )


def check_codes(codes: jax.Array, num_bits: int) -> None:
    """Raise ValueError unless codes are uint32 [n, ceil(num_bits / 32)]."""
    check_whole_numbers(num_bits=num_bits)
    words = -(-num_bits // 32)
    if codes.ndim != 2 or codes.dtype != jnp.uint32 or codes.shape[1] != words:
        raise ValueError(
            f"codes have shape {codes.shape} and dtype {codes.dtype}; {num_bits} bits per point "
            f"need uint32 [points, {words}], as lsh_codes returns them."
        )


def check_labels(labels: jax.Array, num_points: int, num_classes: int) -> None:
    """Raise ValueError unless labels are integers [n], and within {-1, .., num_classes - 1}
    where that can be seen.
    """
    check_whole_numbers(num_classes=num_classes)
    if labels.shape != (num_points,) or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels have shape {labels.shape} and dtype {labels.dtype}; "
            f"they must be integers of shape ({num_points},), -1 where there is none."
        )
    if is_known(labels) and num_points:
        low = int(np.min(labels))
        high = int(np.max(labels))
        if low < -1 or high >= num_classes:
            raise ValueError(
                f"labels lie in {low}..{high}; with num_classes={num_classes} they must lie in "
                f"-1..{num_classes - 1}, -1 where there is none."
            )


def check_rows(name: str, values: jax.Array | None, num_points: int) -> None:
    """Raise ValueError unless an optional per-point array has one entry per point."""
    if values is not None and values.shape != (num_points,):
        raise ValueError(
            f"{name} has shape {values.shape}; it must have one entry per point: ({num_points},)."
        )
