"""Stored views of each example in a dataset, in place of augmentation: encoded images."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from fedjax_ssl.data.dataset import StoredViews
from fedjax_ssl.data.images.weak import Augmentation
from fedjax_ssl.keys import PRNGKey

# Advice for a dataset without stored views.
ENCODE = "encode them with `fedjax-ssl features CONFIG --views 4`"


def drawn_views(views: StoredViews, strong: bool) -> Augmentation:
    """Draw one of the stored views of every example, uniformly.

    Without weak views, the example itself is the weak view.

    Args:
        views: numbers of views.
        strong: draw strong views, not weak ones.

    Returns:
        (key, inputs [n, 1 + weak + strong, d]) -> [n, d]. It raises ValueError if a method needs
        strong views and none are stored.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from fedjax_ssl.data import StoredViews, drawn_views
        >>> draw = drawn_views(StoredViews(weak=0, strong=1), strong=True)
        >>> draw(jax.random.key(0), jnp.asarray([[[1.0], [2.0]]])).tolist()
        [[2.0]]
    """
    first = 1 + views.weak if strong else 1
    count = views.strong if strong else views.weak

    def draw(key: PRNGKey, inputs: Shaped[Array, "n views d"]) -> Shaped[Array, "n d"]:
        if not count and strong:
            raise ValueError(
                f"the method draws strong views, and the features hold none; {ENCODE}, say which "
                "of those in an .npz file are strong with --data.strong_views=2, or use a method "
                "without them"
            )
        if not count:
            return inputs[:, 0]
        bits = jax.random.bits(key, inputs.shape[:1], jnp.uint32)
        chosen = (bits % jnp.uint32(count)).astype(jnp.int32) + first
        return jnp.take_along_axis(inputs, chosen[:, None, None], axis=1)[:, 0]

    return draw


def views_in_words(views: StoredViews) -> str:
    """Return a sentence on the views of a run, for the log."""
    weak = f"one of {views.weak} stored ones" if views.weak else "the example as it is"
    strong = f"one of {views.strong}" if views.strong else "not there"
    return f"a weak view is {weak}, a strong one {strong}"
