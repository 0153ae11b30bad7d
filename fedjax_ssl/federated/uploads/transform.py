"""Upload transforms: pure functions between what a client sends and the sum over the clients.

In the manner of optax: a transform has a state and two functions, and `chain` puts several
together. Clipping, noise, sparse messages and lost uploads are transforms. Transforms see the whole
upload, so that nothing leaves beside them; a run is refused where a method sends more than one of
them covers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from fedjax_ssl.federated.messages import Sums, Upload
from fedjax_ssl.federated.method import ClientResult, RoundContext
from fedjax_ssl.federated.optimizers import Grouped

PyTree = Any
# All that may leave a client: the parts of an upload, and things sent beside it, before local
# training or after the average (XCLP's codes), which no transform sees.
EVERYTHING = frozenset(("update", "statistics", "optimizer", "terms", "weight", "beside"))


class UploadTransform(NamedTuple):
    """A change of what clients send.

    Example:
        >>> def at_client(key, upload, trained, state):
        ...     return upload._replace(arrived=upload.arrived & (trained.num_steps > 10))
        >>> transform = UploadTransform("enough_work", at_client=at_client, covers=EVERYTHING)
        >>> chain(transform, identity()).name
        'enough_work'
    """

    name: str
    init: Callable[[Grouped], PyTree] = lambda params: ()
    # ^ shared parameters -> state at the server, which every client is sent
    at_client: Callable[[Key[Array, ""], Upload, ClientResult, PyTree], Upload] | None = None
    # ^ (key of client and round, upload, the client after training, state) -> upload; None: it
    # stays as it is
    at_server: (
        Callable[[Key[Array, ""], Sums, RoundContext, PyTree], tuple[Sums, PyTree]] | None
    ) = None
    # ^ (key of the round, sums over the cohort, round, state) -> (sums, state); None: as they are
    covers: frozenset[str] = frozenset()
    # ^ parts of `EVERYTHING` that it treats, or may leave as they are


def identity() -> UploadTransform:
    """Return the transform that changes nothing."""
    return UploadTransform("", covers=EVERYTHING)


def chain(*transforms: UploadTransform) -> UploadTransform:
    """Put transforms together: the first one sees what the client sends, the last one's result
    arrives. Sums go through them in the same order.
    """
    parts = [one for one in transforms if one.at_client or one.at_server]
    if not parts:
        return identity()

    def at_client(key: Array, upload: Upload, trained: ClientResult, states: PyTree) -> Upload:
        for place, (one, state) in enumerate(zip(parts, states, strict=True)):
            if one.at_client is not None:
                upload = one.at_client(jax.random.fold_in(key, place), upload, trained, state)
        return upload

    def at_server(
        key: Array, summed: Sums, context: RoundContext, states: PyTree
    ) -> tuple[Sums, PyTree]:
        after = []
        for place, (one, state) in enumerate(zip(parts, states, strict=True)):
            if one.at_server is not None:
                here = jax.random.fold_in(key, place)
                summed, state = one.at_server(here, summed, context, state)
            after.append(state)
        return summed, tuple(after)

    return UploadTransform(
        ", ".join(one.name for one in parts),
        init=lambda params: tuple(one.init(params) for one in parts),
        at_client=at_client if any(one.at_client for one in parts) else None,
        at_server=at_server if any(one.at_server for one in parts) else None,
        covers=frozenset.intersection(*(one.covers for one in parts)),
    )


def check_covers(transforms: Iterable[UploadTransform], sent: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where clients send more than a transform covers.

    Args:
        transforms: the run's own; those of a method know what it sends.
        sent: what leaves clients, of `EVERYTHING` -> names of it.
    """
    for one in transforms:
        left = [name for part, names in sent.items() if part not in one.covers for name in names]
        if left:
            covered = ", ".join(sorted(one.covers)) or "nothing"
            raise ValueError(
                f"upload transform {one.name!r} covers {covered}; "
                f"clients of this method also send {', '.join(left)}, which would stay as it is. "
                "Use another method, or a transform that covers it"
            )


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Return whether all numbers of a tree are finite."""
    finite = jnp.ones((), bool)
    for values in jax.tree.leaves(tree):
        finite = finite & jnp.all(jnp.isfinite(values))
    return finite
