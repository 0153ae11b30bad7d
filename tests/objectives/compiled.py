"""The channel functions compiled: tests spend their time compiling, and one program is quicker
than many operations. Beside them a label channel in plain NumPy.
"""

import jax
import numpy as np

from fedjax_ssl import objectives

channel_cross_entropy = jax.jit(objectives.channel_cross_entropy)
channel_cross_entropy_on_probs = jax.jit(objectives.channel_cross_entropy_on_probs)
channel_log_probs = jax.jit(objectives.channel_log_probs)
correspondence_channel = jax.jit(objectives.correspondence_channel)
cross_entropy = jax.jit(objectives.cross_entropy)
prototype_log_probs = jax.jit(objectives.prototype_log_probs, static_argnames="distance")
helper_pseudo_labels = jax.jit(objectives.helper_pseudo_labels, static_argnames="distance")
set_channel = jax.jit(objectives.set_channel)


@jax.jit
def loss_and_slope(
    logits: jax.Array, observed: jax.Array, channel: objectives.Channel
) -> tuple[jax.Array, jax.Array]:
    """Summed loss of a batch and its gradient with respect to the logits."""
    return jax.value_and_grad(
        lambda z: objectives.channel_cross_entropy(z, observed, channel).sum()
    )(logits)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Row by row."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def by_hand(
    logits: np.ndarray, observed: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of what a channel lets see, the losses -log q_o and their slopes: the client's
    class posterior minus that of the observation.
    """
    seen = softmax(logits)[:, None] * weights  # [n, O, K]
    total = seen.sum(axis=(1, 2))
    probs = seen.sum(axis=2) / total[:, None]
    own = seen[np.arange(len(logits)), observed]
    slopes = seen.sum(axis=1) / total[:, None] - own / own.sum(axis=1, keepdims=True)
    return probs, -np.log(probs[np.arange(len(logits)), observed]), slopes
