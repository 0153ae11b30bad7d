"""Prototypes, distances and helpers' pseudo-labels: the worked numbers of ProtoFSSL section 16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import objectives
from fedjax_ssl.objectives import class_prototypes, sharpen
from tests.objectives.compiled import (
    helper_pseudo_labels,
    prototype_log_probs,
)

QUERY = np.array([[1.0, 2.0, 0.0, 1.0]])
HELPERS = np.array(
    [[[1, 0, 0, 1], [0, 2, 2, 1], [3, 2, 1, 1]], [[1, 1, 0, 1], [0, 2, 1, 0], [2, 2, 0, 2]]],
    np.float64,
)
LOCAL = np.array([[1.0, 1, 0, 0], [0, 2, 2, 0], [3, 1, 1, 1]])
LABELLED = np.array([[1.0, 0, 0, 1], [2, 2, 1, 1]])
UNLABELLED = np.array([[1.0, 2, 0, 1], [0, 1, 2, 0]])
ALL = np.ones(3, bool)


def log_probs(
    embeddings: np.ndarray, prototypes: np.ndarray, present: np.ndarray = ALL, **options: str
) -> jax.Array:
    return prototype_log_probs(
        jnp.asarray(embeddings), jnp.asarray(prototypes), jnp.asarray(present), **options
    )


def pseudo_labels(
    embeddings: jax.Array, helpers: np.ndarray = HELPERS, sharpening: float = 0.5
) -> jax.Array:
    present = jnp.ones(helpers.shape[:2], bool)
    return helper_pseudo_labels(
        embeddings, jnp.asarray(helpers), present, 1.0, sharpening, distance="mean_sq"
    )


def test_prototypes_are_class_means_and_padding_is_never_read() -> None:
    """Section 16.1."""
    embeddings = jnp.asarray([[0, 0], [2, 0], [0, 4], [2, 4], [4, 4], [jnp.nan, 99]], jnp.float32)
    labels = jnp.asarray([0, 0, 1, 1, 1, -1], jnp.int32)
    prototypes, present = class_prototypes(embeddings, labels, 3)
    np.testing.assert_array_equal(prototypes, [[1, 0], [2, 4], [0, 0]])
    np.testing.assert_array_equal(present, [True, True, False])
    slope = jax.grad(lambda z: class_prototypes(z, labels, 3)[0].sum())(embeddings)
    np.testing.assert_allclose(slope[:, 0], [0.5, 0.5, 1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("distance", "first", "others"),
    [
        ("mean_sq", 0.3909913152, 0.3045043424),
        ("sq_euclidean", 0.5761168848, 0.2119415576),
        ("euclidean", 0.3876789464, 0.3061605268),
    ],
)
def test_distances(float64, distance: str, first: float, others: float) -> None:
    """Section 16.2; `mean_sq` is `sq_euclidean` with the embedding size as temperature."""
    found = np.exp(log_probs(QUERY, HELPERS[0], distance=distance))
    np.testing.assert_allclose(found, [[first, others, others]], atol=1e-10)
    if distance == "mean_sq":
        tempered = prototype_log_probs(
            jnp.asarray(QUERY), jnp.asarray(HELPERS[0]), jnp.asarray(ALL), 4.0
        )
        np.testing.assert_allclose(np.exp(tempered), found, rtol=1e-14)


def test_helpers_are_averaged_and_sharpened(float64) -> None:
    """Section 16.3."""
    mean = [0.4051101334, 0.2793897775, 0.3155000891]
    np.testing.assert_allclose(
        pseudo_labels(jnp.asarray(QUERY), sharpening=1.0), [mean], atol=1e-10
    )
    expected = [[0.4802689290, 0.2284332407, 0.2912978303]]
    np.testing.assert_allclose(pseudo_labels(jnp.asarray(QUERY)), expected, atol=1e-10)
    np.testing.assert_allclose(sharpen(jnp.asarray([mean]), 0.5), expected, atol=1e-9)
    for temperature, entropy in [
        (1.0, 1.0862789),
        (0.5, 1.0488072),
        (0.25, 0.9080056),
        (0.1, 0.3683564),
    ]:
        probs = np.asarray(pseudo_labels(jnp.asarray(QUERY), sharpening=temperature))
        assert -(probs * np.log(probs)).sum() == pytest.approx(entropy, abs=1e-7)


def test_worked_probabilities_and_a_gradient(float64) -> None:
    """Sections 16.4 to 16.6; the losses are in tests/methods/test_protofssl_losses.py."""
    labelled = [
        [0.6652409558, 0.0900305732, 0.2447284711],
        [0.3071958857, 0.1863237232, 0.5064803911],
    ]
    found = np.exp(log_probs(LABELLED, LOCAL, distance="mean_sq"))
    np.testing.assert_allclose(found, labelled, atol=1e-10)
    found = np.exp(log_probs(UNLABELLED, LOCAL, distance="mean_sq"))[1]
    np.testing.assert_allclose(found, [0.2537161816, 0.6896720861, 0.0566117322], atol=1e-10)
    targets = pseudo_labels(jnp.asarray(UNLABELLED))[1]
    np.testing.assert_allclose(targets, [0.0957484264, 0.8994307102, 0.0048208634], atol=1e-10)
    slope = jax.grad(lambda z: -log_probs(z, LOCAL, distance="mean_sq")[0, 0])
    expected = [[0.1997131845, 0.0450152866, 0.2123948087, 0.1223642355]]
    np.testing.assert_allclose(slope(jnp.asarray(LABELLED[:1])), expected, atol=1e-10)
    # something absurd in the place of an absent prototype, whose class has probability 0
    absurd = np.where(np.array([[True], [False], [True]]), LOCAL, np.nan)
    found = np.exp(log_probs(UNLABELLED, absurd, np.array([True, False, True]), distance="mean_sq"))
    expected = [[0.7310585786, 0, 0.2689414214], [0.8175744762, 0, 0.1824255238]]
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("distance", ["sq_euclidean", "mean_sq", "euclidean"])
@pytest.mark.parametrize("present", [[True, False, True], [False, False, False]])
def test_gradients_hold_no_nan(distance: str, present: list) -> None:
    """Absent classes, no class at all, and an embedding that lies exactly on a prototype."""
    held = jnp.asarray(present)

    def total(z: jax.Array, prototypes: jax.Array) -> jax.Array:
        targets = helper_pseudo_labels(
            z, jnp.stack([prototypes] * 2), jnp.stack([held] * 2), 0.5, distance=distance
        )
        local = prototype_log_probs(z, prototypes, held, 0.5, distance=distance)
        probs = jnp.clip(jnp.exp(local), 1e-7, 1 - 1e-7)
        return jnp.sum(jnp.where(held, local, 0.0)) - jnp.sum(targets * jnp.log(probs))

    value, gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(
        jnp.asarray(LOCAL[:2], jnp.float32), jnp.asarray(LOCAL, jnp.float32)
    )
    assert np.isfinite(value) and all(np.isfinite(gradient).all() for gradient in gradients)


def test_helpers_that_lack_classes_or_everything() -> None:
    """A lacking class comes from the other helpers, a helper without prototypes is padding, no
    helper is no target.
    """
    query = jnp.asarray(UNLABELLED, jnp.float32)
    full = jnp.asarray(HELPERS, jnp.float32)
    expected = helper_pseudo_labels(query, full, jnp.ones((2, 3), bool))
    padded = jnp.concatenate([full, jnp.full((1, 3, 4), jnp.nan, jnp.float32)])
    present = jnp.asarray([[True] * 3, [True] * 3, [False] * 3])
    np.testing.assert_allclose(helper_pseudo_labels(query, padded, present), expected, rtol=1e-5)
    # The second helper lacks class 0, which then comes from the first.
    lacking = helper_pseudo_labels(query, full, jnp.asarray([[True] * 3, [False, True, True]]))
    filled = helper_pseudo_labels(query, full.at[1, 0].set(full[0, 0]), jnp.ones((2, 3), bool))
    np.testing.assert_allclose(lacking, filled, rtol=1e-6)
    # Nobody has class 1.
    nobody = helper_pseudo_labels(query, full, jnp.asarray([[True, False, True]] * 2))
    np.testing.assert_array_equal(nobody[:, 1], 0.0)
    np.testing.assert_allclose(jnp.sum(nobody, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(helper_pseudo_labels(query, full, jnp.zeros((2, 3), bool)), 0.0)


def test_half_precision_embeddings_are_computed_in_float32() -> None:
    embeddings = jnp.asarray(UNLABELLED, jnp.bfloat16)
    prototypes, present = class_prototypes(embeddings, jnp.asarray([0, 1], jnp.int32), 2)
    found = prototype_log_probs(embeddings, prototypes, present)
    assert prototypes.dtype == found.dtype == jnp.float32
    np.testing.assert_array_equal(
        found, prototype_log_probs(embeddings.astype(jnp.float32), prototypes, present)
    )


def test_sharpening_keeps_zeros_and_small_temperatures(float64) -> None:
    """Section 16.3, last line, and section 15."""
    probs = jnp.asarray([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]])
    np.testing.assert_allclose(sharpen(probs, 0.5)[0], [0.6578947, 0.2368421, 0.1052632], atol=1e-7)
    np.testing.assert_allclose(sharpen(probs, 1.0), probs, rtol=1e-14)
    np.testing.assert_allclose(sharpen(probs, 1e-3), [[1, 0, 0], [1, 0, 0]], atol=1e-12)
    slope = jax.grad(lambda p: sharpen(p, 0.5)[:, 0].sum())(probs)
    assert np.isfinite(slope).all() and float(slope[1, 2]) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distance": "cosine"}, r"distance is 'cosine'.* Allowed: sq_euclidean"),
        ({"temperature": 0}, "temperature is 0; it must be a number above 0"),
        ({"sharpening": -0.5}, r"sharpening is -0.5; it must be a number above 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict, message: str) -> None:
    helpers = jnp.asarray(HELPERS)
    with pytest.raises(ValueError, match=message):
        objectives.helper_pseudo_labels(
            jnp.asarray(QUERY), helpers, jnp.ones((2, 3), bool), **settings
        )
