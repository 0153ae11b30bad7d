"""Clients that are wrong or lie: flipped labels, updates with a flipped sign or scaled.

Which clients these are follows from the run's key alone, so that all methods of a seed have the
same ones.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from fedjax_ssl.data import FederatedData
from fedjax_ssl.errors import counted
from fedjax_ssl.federated.contract import ClientResult, PyTree
from fedjax_ssl.federated.messages import Upload
from fedjax_ssl.federated.uploads.transform import EVERYTHING, UploadTransform
from fedjax_ssl.keys import named_key

FLIP_LABELS = "flip_labels"
FLIP_SIGNS = "flip_signs"
SCALE = "scale"
FAULTS = ("none", FLIP_LABELS, FLIP_SIGNS, SCALE)
_DOES = {
    FLIP_LABELS: "see class K - 1 - y in place of class y",
    FLIP_SIGNS: "send the opposite of what they learned",
    SCALE: "send {factor:g} times what they learned",
}


def faulty_clients(run_key: Key[Array, ""], num_clients: int, share: float) -> Bool[Array, " C"]:
    """Draw which clients of a run are faulty.

    Args:
        run_key: the run's.
        num_clients: C.
        share: of these, rounded.
    """
    order = jax.random.permutation(named_key(run_key, "faults"), num_clients)
    return jnp.zeros(num_clients, bool).at[order[: round(share * num_clients)]].set(True)


def false_updates(factor: float, share: float, num_clients: int) -> UploadTransform:
    """Multiply the updates of faulty clients.

    Args:
        factor: -1 flips their sign.
        share: of the clients.
        num_clients: C.
    """

    def at_client(key: Array, upload: Upload, trained: ClientResult, state: PyTree) -> Upload:
        run_key = trained.now.run_key
        assert run_key is not None, "the run's is known where clients train"
        wrong = faulty_clients(run_key, num_clients, share)[trained.client.id]
        update = jax.tree.map(lambda x: jnp.where(wrong, factor * x, x), upload.update)
        return upload._replace(update=update)

    return UploadTransform("faults", at_client=at_client, covers=EVERYTHING)


def with_flipped_labels(
    data: FederatedData, run_key: Key[Array, ""], share: float
) -> FederatedData:
    """Return a federation in which faulty clients see class K - 1 - y in place of class y.

    Args:
        data: the federation; true labels stay, and so do weak ones.
        run_key: the run's.
        share: of the clients.
    """
    wrong = faulty_clients(run_key, data.num_clients, share)
    place = jnp.arange(data.index.shape[1], dtype=jnp.int32)
    mine = wrong[:, None] & (place < data.num_labelled[:, None])
    rows = jnp.where(mine, data.index, data.observed.shape[0])
    flipped = data.num_classes - 1 - data.observed[data.index]
    return replace(data, observed=data.observed.at[rows].set(flipped, mode="drop"))


def in_words(
    name: str, factor: float, run_key: Key[Array, ""], share: float, clients: list[str]
) -> str:
    """Say which clients are faulty, and how.

    Args:
        name: of `FAULTS`.
        factor: of scaled updates.
        run_key: the run's.
        share: of the clients.
        clients: names of those that train.
    """
    wrong = faulty_clients(run_key, len(clients), share).tolist()
    named = [client for client, is_wrong in zip(clients, wrong, strict=True) if is_wrong]
    shown = ", ".join(named[:5]) + ", ..." * (len(named) > 5)
    number = f"{len(named)} of {counted(len(clients), 'client')}"
    return f"faults: {number} {_DOES[name].format(factor=factor)}: {shown or 'nobody'}"
