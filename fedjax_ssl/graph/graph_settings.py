"""Settings of one propagation, and checks of arguments: shapes always, values if they are known.

Values are checked with NumPy, because a JAX operation inside a trace would make a known value
unknown.
"""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fedjax_ssl.checks import In, Whole, check_numbers, check_whole_numbers, checked

LabelNorm = Literal["none", "class"]
ConfidenceScale = Literal["none", "max", "client_max"]
Solver = Literal["auto", "cholesky", "conjugate_gradient"]
# Protocols that find distances and scores, see `exchange.protocols`; "none": the kernels alone.
Level = Literal["none", "ideal", "accounted", "real"]
Hamming = Literal["transfer", "paillier"]


@checked
@dataclasses.dataclass(frozen=True)
class GraphSettings:
    """Settings of label propagation over a graph. Alpha and the power may be traced.

    Attributes:
        num_bits: L, bits per code; not used with exact cosines.
        num_neighbors: k, neighbours per example.
        alpha: how far labels travel.
        similarity_power: exponent of the kept similarities.
        label_norm: "none", or "class" to divide each label by the number of labels of its class, so
            that the class with most labels does not win everywhere.
        confidence_scale: "none", "max" (divide by the largest confidence of the graph) or
            "client_max" (by the largest of each client).
        solver: solver of the linear system: "cholesky" (dense), "conjugate_gradient" (sparse), or
            "auto": the first up to 512 points.
    """

    num_bits: Annotated[int, Whole(1, 2**20)] = 4096
    num_neighbors: Annotated[int, Whole(1)] = 10
    alpha: Annotated[float | Array, In("[0, 1)")] = 0.99
    similarity_power: Annotated[float | Array, In("(0, inf)")] = 1.0
    label_norm: LabelNorm = "none"
    confidence_scale: ConfidenceScale = "none"
    solver: Solver = "auto"


# The paper's text, and the authors' code.
PAPER = GraphSettings()
CODE = GraphSettings(similarity_power=3.0, label_norm="class", confidence_scale="max")


def is_known(value: object) -> bool:
    """Return whether a value can be read now, so is not traced."""
    return not isinstance(value, jax.core.Tracer)


def check_known(interval: str, /, **numbers: Any) -> None:
    """Raise ValueError for a known number, or scalar array, outside of an interval."""
    known = {name: value for name, value in numbers.items() if is_known(value)}
    check_numbers(interval, **{name: np.asarray(value).item() for name, value in known.items()})


def check_features(features: jax.Array) -> None:
    """Raise ValueError unless features are floats of shape [n, d], and finite if that is known."""
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
    """Raise ValueError unless labels are integers [n], and within {-1, .., num_classes - 1} if that
    is known.
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
