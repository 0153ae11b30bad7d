"""The channel functions compiled: tests spend their time compiling, and one program is quicker
than many operations.
"""

import jax

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
