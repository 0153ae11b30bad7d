"""What clients are called: by the dataset's names where they are its natural clients, by their numbers otherwise."""

import numpy as np

from fedjax_ssl.data import Dataset, FederatedData


def client_names(dataset: Dataset, federation: FederatedData, natural: bool) -> list[str]:
    """Names of all clients, those that train and then the new ones.

    Args:
        dataset: its `client_names`, or the numbers of its natural clients.
        federation: not traced. A client is known by the first example that it has.
        natural: whether its clients are those of the dataset; otherwise they have numbers.

    Returns:
        As many names as there are clients; a client without any example, or without a name, has its number.
    """
    number = federation.num_clients + federation.num_new_clients
    names = [str(client) for client in range(number)]
    owner = _owners(dataset)
    if not natural or owner is None:
        return names
    known = dataset.client_names
    first = np.asarray(federation.index)[:, 0]
    rows = {int(client): int(first[client]) for client in np.flatnonzero(np.asarray(federation.num_examples) > 0)}
    holders, places = np.unique(np.asarray(federation.test_client), return_index=True)
    tested = zip(holders.tolist(), np.asarray(federation.test_index)[places].tolist(), strict=True)
    rows = {client: row for client, row in tested if client >= 0} | rows
    for client, row in rows.items():
        identity = int(owner[row])
        if identity >= 0:
            names[client] = str(identity) if known is None else known[identity]
    return names


def _owners(dataset: Dataset) -> np.ndarray | None:
    """Natural client of every row of `FederatedData.inputs`, -1 = none; None where the dataset has no clients."""
    owner = dataset.train.client
    if owner is None or dataset.test is None:
        return owner
    of_test = dataset.test.client if dataset.test.client is not None else np.full(len(dataset.test), -1, np.int32)
    return np.concatenate([owner, of_test])
