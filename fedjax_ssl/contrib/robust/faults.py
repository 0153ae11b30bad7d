"""Faulty clients: flipped labels, or updates with a flipped sign or scaled.

The run's key alone decides which clients are faulty, so all methods with a seed have the same ones.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from fedjax_ssl.data import FederatedData
from fedjax_ssl.errors import counted
from fedjax_ssl.federated import ClientResult, PyTree, Upload
from fedjax_ssl.federated.uploads import UploadTransform
from fedjax_ssl.keys import named_key


class Fault(NamedTuple):
    """Fault of some clients: wrong labels or wrong updates."""

    share: float  # share of clients that are faulty
    action: str  # in words
    factor: float | None = None  # factor of their updates; None: updates are right
    flips_labels: bool = False  # they see class K - 1 - y in place of class y

    def in_federation(self, data: FederatedData, run_key: Key[Array, ""]) -> FederatedData:
        """Return the federation as faulty clients see it; true labels and weak labels do not
        change.
        """
        if not self.flips_labels:
            return data
        wrong = faulty_clients(run_key, data.num_clients, self.share)
        place = jnp.arange(data.index.shape[1], dtype=jnp.int32)
        mine = wrong[:, None] & (place < data.num_labelled[:, None])
        rows = jnp.where(mine, data.index, data.observed.shape[0])
        flipped = data.num_classes - 1 - data.observed[data.index]
        return replace(data, observed=data.observed.at[rows].set(flipped, mode="drop"))

    def in_uploads(self, num_clients: int) -> tuple[UploadTransform, ...]:
        """Return the transforms that make the updates of faulty clients wrong, out of `num_clients`
        clients.
        """
        if self.factor is None:
            return ()

        def at_client(
            key: Key[Array, ""], upload: Upload, trained: ClientResult, state: PyTree
        ) -> Upload:
            run_key = trained.now.run_key
            assert run_key is not None, "the run's is known where clients train"
            wrong = faulty_clients(run_key, num_clients, self.share)[trained.client.id]
            update = jax.tree.map(lambda x: jnp.where(wrong, self.factor * x, x), upload.update)
            return upload._replace(update=update)

        return (UploadTransform("faults", at_client=at_client),)

    def in_words(self, run_key: Key[Array, ""], clients: list[str]) -> str:
        """Describe the faulty ones among these clients, and their faults."""
        wrong = faulty_clients(run_key, len(clients), self.share).tolist()
        named = [client for client, is_wrong in zip(clients, wrong, strict=True) if is_wrong]
        shown = ", ".join(named[:5]) + ", ..." * (len(named) > 5)
        number = f"{len(named)} of {counted(len(clients), 'client')}"
        return f"faults: {number} {self.action}: {shown or 'nobody'}"


def faulty_clients(run_key: Key[Array, ""], num_clients: int, share: float) -> Bool[Array, " C"]:
    """Draw the faulty clients of a run.

    Args:
        run_key: the run's.
        num_clients: C.
        share: of these, rounded.
    """
    order = jax.random.permutation(named_key(run_key, "faults"), num_clients)
    return jnp.zeros(num_clients, bool).at[order[: round(share * num_clients)]].set(True)


def flip_labels(share: float, factor: float) -> Fault:
    """Faulty clients see class K - 1 - y in place of class y."""
    return Fault(share, "see class K - 1 - y in place of class y", flips_labels=True)


def flip_signs(share: float, factor: float) -> Fault:
    """Faulty clients send the opposite of their change."""
    return Fault(share, "send the opposite of what they learned", -1.0)


def scale(share: float, factor: float) -> Fault:
    """Faulty clients send their change times a factor."""
    return Fault(share, f"send {factor:g} times what they learned", factor)
