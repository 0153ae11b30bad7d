import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from fedjax_ssl.objectives import batch_cross_entropy, mixup, mixup_cross_entropy, mixup_share

ONE = jnp.ones(1, bool)


def test_mixed_loss_is_cross_entropy_with_a_soft_target(float64) -> None:
    """SemiFL section 12, check 5."""
    logits = jnp.asarray([[0.5, -0.5, 1.0]])
    first = jnp.asarray([0], jnp.int32)
    second = jnp.asarray([2], jnp.int32)
    found = float(mixup_cross_entropy(logits, first, second, 0.3, ONE))
    assert found == pytest.approx(0.7541306053, abs=1e-10)
    log_probs = np.asarray(logits[0]) - np.log(np.exp(logits[0]).sum())
    assert found == pytest.approx(-(0.3 * log_probs[0] + 0.7 * log_probs[2]), abs=1e-14)
    alone = mixup_cross_entropy(logits, first, second, jnp.asarray(1.0), ONE)
    assert float(alone) == float(batch_cross_entropy(logits, first, ONE))


def test_inputs_are_mixed_with_one_weight_in_their_own_type() -> None:
    first = jnp.ones((2, 3, 1), jnp.bfloat16)
    second = jnp.zeros((2, 3, 1), jnp.bfloat16)
    found = mixup(first, second, jnp.asarray(0.25, jnp.float32))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(jnp.float32), 0.25)


def test_images_as_stored_are_refused() -> None:
    with pytest.raises(
        ValueError, match="mixup got dtypes uint8 and uint8; inputs must be floating"
    ):
        mixup(jnp.zeros(2, jnp.uint8), jnp.zeros(2, jnp.uint8), 0.5)


@pytest.mark.parametrize("alpha", [0.75, 2.0])
def test_shares_of_a_mix_are_beta_distributed(alpha: float) -> None:
    """Kolmogorov-Smirnov with 4,000 draws; a right sampler fails for one seed in 1,000, this
    seed is fixed.
    """
    keys = jax.random.split(jax.random.key(0), 4000)
    shares = np.asarray(jax.jit(jax.vmap(lambda key: mixup_share(key, alpha)))(keys), np.float64)
    assert scipy.stats.kstest(shares, scipy.stats.beta(alpha, alpha).cdf).pvalue > 1e-3
    assert shares.min() >= 0 and shares.max() <= 1
    # SemiFL section 12, check 6: below its mean entropy no model brings the mixed loss
    if alpha == 0.75:
        entropy = scipy.special.entr(shares) + scipy.special.entr(1 - shares)
        np.testing.assert_allclose(entropy.mean(), 0.4556857, atol=0.01)


def test_the_parameter_of_the_share_is_checked() -> None:
    with pytest.raises(ValueError, match=r"alpha is 0.*above 0"):
        mixup_share(jax.random.key(0), 0.0)
