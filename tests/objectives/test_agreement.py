"""Votes and divergences between models of several clients, to the digits of FedMatch's worked
examples.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl.objectives import agreement_vote, inter_client_kl

HELPERS = np.array([[[0.7, 0.2, 0.1]], [[0.5, 0.4, 0.1]]])
LOCAL = np.array([[0.6, 0.3, 0.1]])


@pytest.mark.parametrize(
    ("local", "helpers", "lowest"), [(0, [2, 2], 2), (3, [1, 2], 1), (2, [2, 0, 0], 0), (3, [], 3)]
)
def test_the_class_with_most_votes_wins(local: int, helpers: list[int], lowest: int) -> None:
    """FedMatch section 13, check 1: four classes, models that are sure; the last helper of three
    may be absent.
    """
    one_hot = np.eye(4)
    padded = np.array([*helpers, 1, 1, 1])[:3]
    there = np.arange(3) < len(helpers)
    found = agreement_vote(one_hot[[local]], one_hot[padded][:, None], jnp.asarray(there))
    assert found.dtype == jnp.int32 and found.tolist() == [lowest]


def test_equal_probabilities_vote_for_the_lowest_class_and_no_helper_is_no_vote() -> None:
    equal = np.array([[0.4, 0.4, 0.1, 0.1]])
    assert agreement_vote(equal, np.zeros((0, 1, 4))).tolist() == [0]


def test_divergence_from_the_helpers_and_its_slope(float64) -> None:
    """FedMatch section 13, check 2; the other direction of the first would be 0.0291491."""

    def mean(logits: jax.Array, there: jax.Array) -> jax.Array:
        return inter_client_kl(jax.nn.log_softmax(logits), jnp.asarray(HELPERS), there)[0]

    both = jax.jit(jax.value_and_grad(mean))
    logits = jnp.log(LOCAL)
    for there, expected in (
        ([1, 0], 0.0268125),
        ([0, 1], 0.0239121),
        ([1, 1], 0.0253623),
        ([0, 0], 0.0),
    ):
        value, slope = both(logits, jnp.asarray(there, bool))
        assert float(value) == pytest.approx(expected, abs=5e-8)
        chosen = HELPERS[np.asarray(there, bool), 0]
        target = chosen.mean(0) if len(chosen) else LOCAL[0]
        np.testing.assert_allclose(slope[0], LOCAL[0] - target, atol=1e-15)
    # The mean divergence is that of the mean and the spread around it.
    middle = HELPERS.mean(0)[0]
    spread = np.mean([(p * np.log(p / middle)).sum() for p in HELPERS[:, 0]])
    assert float(both(logits, jnp.ones(2, bool))[0]) == pytest.approx(
        (middle * np.log(middle / LOCAL[0])).sum() + spread, abs=1e-15
    )


def test_a_helper_that_excludes_a_class_has_a_finite_divergence() -> None:
    sure = np.array([[[1.0, 0.0]]], np.float32)
    found = inter_client_kl(jnp.log(jnp.asarray([[0.5, 0.5]])), jnp.asarray(sure))
    assert float(found[0]) == pytest.approx(np.log(2), rel=1e-6)
