"""What the clients of a federation are called."""

import numpy as np

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.federation.federated_data import FederatedData


def natural_names(dataset: Dataset) -> list[str]:
    """Names of the dataset's own clients that have training examples, in their order; none: an empty list."""
    if dataset.train.client is None:
        return []
    return [_name(dataset, number) for number in np.unique(dataset.train.client)]


def client_names(dataset: Dataset, federation: FederatedData, natural: bool = True) -> list[str]:
    """Names of all clients of a federation, those that train and those that only have test examples.

    Args:
        dataset: that the federation was made of.
        federation: not traced.
        natural: whether its clients are the dataset's own; otherwise they are called by their numbers.

    Returns:
        A name for each of `num_clients + num_new_clients`; the number of a client whose examples are all held out.
    """
    count = federation.num_clients + federation.num_new_clients
    names = [str(client) for client in range(count)]
    if not natural or dataset.train.client is None:
        return names
    owner = dataset.train.client
    if dataset.test is not None:
        of_test = dataset.test.client if dataset.test.client is not None else np.full(len(dataset.test), -1, np.int32)
        owner = np.concatenate([owner, of_test])
    # A client's first test example, or else its first training example, tells whose it is.
    row = np.full(count, -1)
    trained = np.flatnonzero(np.asarray(federation.num_examples))
    row[trained] = np.asarray(federation.index)[trained, 0]
    tested, first = np.unique(np.asarray(federation.test_client), return_index=True)
    of_client = tested >= 0
    row[tested[of_client]] = np.asarray(federation.test_index)[first[of_client]]
    for client in np.flatnonzero(row >= 0):
        number = int(owner[row[client]])
        if number >= 0:
            names[client] = _name(dataset, number)
    return names


def _name(dataset: Dataset, number: int) -> str:
    return str(number) if dataset.client_names is None else dataset.client_names[number]
