"""How much of the work of a placement is padding."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fedjax_ssl.federated.lanes import pack


def padded_share(num_steps: Int[np.ndarray, " p"], placement: str, chunk_size: int) -> float | None:
    """Share of the steps of a cohort's lanes in which no client takes a step.

    Args:
        num_steps: local steps of every client of the cohort.
        placement: "vmap": a lane per client, as long as the longest; "chunked": the same for every `chunk_size`
            clients; "lanes": `chunk_size` lanes that take one client after another; "sequential": one lane.
        chunk_size: see above.

    Returns:
        A number in [0, 1); None for another placement.
    """
    size = len(num_steps)
    lanes = min(chunk_size, size)
    if placement == "sequential":
        taken = int(num_steps.sum())
    elif placement == "vmap":
        taken = size * int(num_steps.max())
    elif placement == "chunked":
        taken = sum(lanes * int(num_steps[start : start + lanes].max()) for start in range(0, size, lanes))
    elif placement == "lanes":
        taken = lanes * int(pack(jnp.asarray(num_steps, jnp.int32), lanes).length)
    else:
        return None
    return 1 - int(num_steps.sum()) / taken
