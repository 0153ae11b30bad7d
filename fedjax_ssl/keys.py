"""Named random streams: independent keys that do not depend on the order of their use."""

import zlib

import jax
from jaxtyping import Array, Key

PRNGKey = Key[Array, ""]  # a typed key, alone


def named_key(key: PRNGKey, name: str) -> PRNGKey:
    """Derive the stream `name` from `key`.

    With a chain of splits, an added draw changes all later draws; folding in a name does not.

    Args:
        key: a typed PRNG key, scalar.
        name: purpose of the stream, for example "cohort".

    Returns:
        A typed PRNG key, scalar.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
