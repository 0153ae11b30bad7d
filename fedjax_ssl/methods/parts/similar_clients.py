"""Clients with models that say nearly the same: of an image of noise, by which nobody has to
show examples.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

NOISE_MEAN = NOISE_STD = 125 / 255


def nearest_clients(
    clients: Int[Array, " p"],
    embeddings: Float[Array, "C d"],
    known: Bool[Array, " C"],
    number: int,
) -> tuple[Int[Array, "p H"], Bool[Array, "p H"]]:
    """For each client the others nearest to it by Euclidean distance, nearest first, the lower id
    of equal ones.

    Args:
        clients: who asks; for one that is not known itself there is nobody. Ids out of range are
            nobody.
        embeddings: one for each client.
        known: clients whose embedding is there.
        number: H.

    Returns:
        Ids, and whether there is one at this place: fewer than H where fewer are known.
    """
    ids = jnp.arange(embeddings.shape[0], dtype=jnp.int32)
    own = embeddings.at[clients].get(mode="clip")
    distance = jnp.sum(jnp.square(own[:, None] - embeddings), axis=-1)
    possible = (
        known
        & (ids != clients[:, None])
        & known.at[clients].get(mode="fill", fill_value=False)[:, None]
    )
    distance = jnp.where(possible, distance, jnp.inf)
    order = jnp.argsort(distance, axis=1, stable=True)[:, :number].astype(jnp.int32)
    there = jnp.take_along_axis(possible, order, axis=1)
    missing = ((0, 0), (0, number - order.shape[1]))
    return jnp.pad(jnp.where(there, order, 0), missing), jnp.pad(there, missing)


def noise_image(
    key: Key[Array, ""], shape: tuple[int, ...], kind: str = "truncated"
) -> Float[Array, "*shape"]:
    """Independent normal values of mean and deviation 125 / 255, as input of a network.

    Args:
        key: typed PRNG key.
        shape: shape of the image.
        kind: "normal", or "truncated" to [0, 1], as in the code, which gives them the mean 0.497
            and the deviation 0.269.
    """
    dtype = jnp.result_type(float)
    if kind == "normal":
        return NOISE_MEAN + NOISE_STD * jax.random.normal(key, shape, dtype)
    lowest = -NOISE_MEAN / NOISE_STD
    highest = (1 - NOISE_MEAN) / NOISE_STD
    return NOISE_MEAN + NOISE_STD * jax.random.truncated_normal(key, lowest, highest, shape, dtype)
