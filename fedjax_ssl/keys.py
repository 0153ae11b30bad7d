"""Named random streams: independent keys that do not depend on the order in which they are asked
for.
"""

import zlib

import jax
from jaxtyping import Array, Key

PRNGKey = Key[Array, ""]  # a typed key, alone


def named_key(key: PRNGKey, name: str) -> PRNGKey:
    """Derive the stream `name` from `key`.

    A chain of splits changes every later draw when one draw is added in front; folding in a name
    does not.

    Args:
        key: a typed PRNG key, scalar.
        name: what the stream is for, for example "cohort".

    Returns:
        A typed PRNG key, scalar.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
