"""Splits that can be verified: a short hash of all assignments, and files of row numbers.

A split file is an `.npz` of whole numbers and texts; docs/partitions.md shows how NumPy alone reads
one. Rows are numbered over the training examples and then the
test examples of the dataset, in the order in which it is loaded.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.federation.federated_data import FederatedData, real_rows
from fedjax_ssl.data.federation.host_inputs import HostInputs, load_examples
from fedjax_ssl.data.reading.formats import damage

FORMAT = 1
# Roles of an example, for a client or for nobody in particular; part of the hash.
_UNLABELLED, _LABELLED, _WEAK, _TEST, _VALIDATION, _SERVER = range(6)
_ENTRY = np.dtype([("example", "<u8"), ("kind", "u1"), ("set", "<u8")])
_NOBODY = -1


class SplitFile(NamedTuple):
    """The content of a split file. R rows of C clients."""

    rows: Int[np.ndarray, " R"]
    # ^ training examples of the clients, one client after the other
    starts: Int[np.ndarray, " C+1"]  # client c has rows[starts[c]:starts[c + 1]]
    labelled: Int[np.ndarray, " L"]  # rows whose class label the client sees
    server: Int[np.ndarray, " S"]  # labelled examples at the server
    validation: Int[np.ndarray, " V"]
    test: Int[np.ndarray, " T"]
    test_client: Int[np.ndarray, " T"]
    # ^ owner of each test example; from C on, clients that do not train; -1: none
    widths: Int[np.ndarray, " 6"]
    # ^ widths of a run's tables, see `_widths`: with equal widths, sums are added in the same order
    dataset: str  # its name, for messages
    content: str  # digest of its examples and labels, in their order
    split: str  # hash of the split


def split_hash(dataset: Dataset, data: FederatedData) -> str:
    """Hash the assignment of examples to clients, the visible labels, and the use of examples.

    Examples are identified by content and clients by their examples, so names, numbers and the
    order of files change nothing.

    Args:
        dataset: dataset of the federation.
        data: not traced.

    Returns:
        12 hexadecimal digits.

    Example:
        >>> digits = fs.load_dataset("digits")
        >>> data = fs.federate(jax.random.key(0), digits, test_clients=3)
        >>> split_hash(digits, data)
        '754b7abc366b'
    """
    ids = dataset.example_ids
    column = np.arange(data.max_examples)
    there = column < np.asarray(data.num_examples)[:, None]
    sees = column < np.asarray(data.num_labelled)[:, None]
    kind = np.where(sees, _LABELLED, _UNLABELLED)
    own_set = np.zeros(there.shape, np.uint64)
    if data.weak is not None:
        observed = np.asarray(data.weak.labels)
        kind[there & (observed >= 0)] = _WEAK
        own_set = _ids_of_sets(ids[np.asarray(data.index)], np.where(there, observed, -1))
    tested = real_rows(data.test_index, data.num_test)
    valid = real_rows(data.valid_index, data.num_valid)
    server = real_rows(data.server_index, data.num_server)
    owner = _owner_of_tests(data, len(tested))
    of_clients = np.nonzero(there)[0], np.asarray(data.index)[there], kind[there], own_set[there]
    parts = [of_clients]
    for rows, what in ((tested, _TEST), (valid, _VALIDATION), (server, _SERVER)):
        holder = owner if what == _TEST else np.full(len(rows), _NOBODY)
        parts.append((holder, rows, np.full(len(rows), what), np.zeros(len(rows), np.uint64)))
    client, rows, kind, own_set = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    entries = np.empty(len(rows), _ENTRY)
    entries["example"] = ids[rows]
    entries["kind"] = kind
    entries["set"] = own_set
    order = np.lexsort((own_set, kind, ids[rows], client))
    client = client[order]
    cuts = np.flatnonzero(np.diff(client)) + 1
    blocks = np.split(entries[order], cuts)
    digests = [hashlib.blake2b(block.tobytes(), digest_size=16).digest() for block in blocks]
    # Examples of nobody come first, if there are any, then clients in the order of their digests.
    of_nobody = client[:1].tolist() == [_NOBODY]
    ordered = digests[:of_nobody] + sorted(digests[of_nobody:])
    return hashlib.blake2b(b"".join(ordered), digest_size=6).hexdigest()


def _ids_of_sets(
    ids: Int[np.ndarray, "C n"], observed: Int[np.ndarray, "C n"]
) -> Int[np.ndarray, "C n"]:
    """Identify each set, or coarse label, of a client by its examples."""
    found = np.zeros(observed.shape, np.uint64)
    for client, seen in enumerate(observed):
        for number in np.unique(seen[seen >= 0]):
            members = seen == number
            content = np.sort(ids[client][members]).tobytes()
            digest = hashlib.blake2b(content, digest_size=8).digest()
            found[client, members] = np.frombuffer(digest, "<u8")[0]
    return found


def content_hash(dataset: Dataset) -> str:
    """Hash examples and labels of a dataset in their order, training examples first."""
    labels = _labels(dataset).astype("<i4")
    content = dataset.example_ids.astype("<u8").tobytes() + labels.tobytes()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def split_path(path: str | Path, seed: int) -> Path:
    """Return the path of a split file; `{seed}` in it stands for the seed of the run."""
    return Path(str(path).replace("{seed}", str(seed))).expanduser()


def write_split(path: str | Path, dataset: Dataset, data: FederatedData) -> str:
    """Write a federation as a split file.

    Args:
        path: ends in .npz.
        dataset: dataset of the federation.
        data: not traced.

    Returns:
        The hash of the split.

    Raises:
        ValueError: clients have weak labels, parts or examples that are dealt twice, which a file
            cannot store.
    """
    table = np.asarray(data.index)
    sizes = np.asarray(data.num_examples)
    labelled = np.asarray(data.num_labelled)
    rows = real_rows(table, sizes)
    more = ""
    if data.weak is not None:
        more = "coarse labels or sets"
    elif data.num_parts > 1:
        more = "unlabelled examples in parts"
    elif len(np.unique(rows)) < len(rows):
        more = "some examples twice"
    if more:
        raise ValueError(
            f"clients of this federation have {more}, which a split file does not hold"
        )
    tested = real_rows(data.test_index, data.num_test)
    owner = _owner_of_tests(data, len(tested))
    found = SplitFile(
        rows=rows,
        starts=np.append(0, np.cumsum(sizes)),
        labelled=real_rows(table, labelled),
        server=real_rows(data.server_index, data.num_server),
        validation=real_rows(data.valid_index, data.num_valid),
        test=tested,
        test_client=owner,
        widths=np.array(_widths(data)),
        dataset=dataset.name,
        content=content_hash(dataset),
        split=split_hash(dataset, data),
    )
    np.savez_compressed(path, format=np.array(FORMAT), **found._asdict())
    return found.split


def read_split(path: str | Path, dataset: Dataset) -> SplitFile:
    """Read a split file.

    Args:
        path: file written by `write_split`.
        dataset: dataset of the file.

    Raises:
        ValueError: it is not there, no split file, or of another dataset.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}; fedjax-ssl data split CONFIG writes such files")
    with damage(path), np.load(path, allow_pickle=False) as content:
        arrays: dict[str, Any] = {name: content[name] for name in content.files}
    if not {"format", *SplitFile._fields} <= arrays.keys() or int(arrays["format"]) != FORMAT:
        raise ValueError(
            f"{path} is no split file of format {FORMAT}; fedjax-ssl data split CONFIG writes such "
            "files"
        )
    fields = SplitFile.__annotations__
    values: dict[str, Any] = {
        name: str(arrays[name]) if fields[name] is str else arrays[name] for name in fields
    }
    found = SplitFile(**values)
    if found.content != (here := content_hash(dataset)):
        raise ValueError(
            f"{path} is a split of {found.dataset} with other content, or in another order, than "
            f"{dataset.name!r} has here (digest {found.content}, here {here}): its rows would be "
            "other examples"
        )
    return found


def federate_by_file(
    path: str | Path, dataset: Dataset, inputs: Array | HostInputs | None = None
) -> FederatedData:
    """Deal the examples of a dataset by a split file.

    Args:
        path: see `read_split`.
        dataset: dataset of the file.
        inputs: see `federate`.

    Returns:
        The federation; its clients have their examples in the order of the file, labelled ones
        first.

    Raises:
        ValueError: as `read_split`, or the file was changed since it was written.
    """
    given = read_split(path, dataset)
    truth = _labels(dataset)
    used = np.concatenate([given.rows, given.server, given.validation, given.test])
    changed = f"{path} was changed since it was written; write it again by fedjax-ssl data split"
    if used.min(initial=0) < 0 or used.max(initial=0) >= len(truth):
        raise ValueError(changed)
    seen = np.zeros(len(truth), bool)
    seen[given.labelled] = True
    sees = seen[given.rows]
    seen[given.server] = True
    sizes = np.diff(given.starts)
    client = np.repeat(np.arange(len(sizes)), sizes)
    with_label = np.bincount(client[sees], minlength=len(sizes))
    max_labelled, max_unlabelled, examples, *others = given.widths.tolist()
    column = np.arange(examples)
    index = np.zeros((len(sizes), examples), np.int32)
    index[column < sizes[:, None]] = given.rows[np.lexsort((~sees, client))]
    splits = [split.x for split in dataset.splits().values()]
    count = len(truth)
    # The dataset's own test examples are loaded if they are used.
    if used.max(initial=0) < len(dataset.train):
        splits = splits[:1]
        count = len(dataset.train)
    if inputs is None or inputs.shape[0] < count:
        inputs = jnp.asarray(splits[0] if len(splits) == 1 else np.concatenate(splits))
    tables: dict[str, Any] = {}
    uses = {"test": given.test, "valid": given.validation, "server": given.server}
    for (name, rows), width in zip(uses.items(), others, strict=True):
        tables[f"{name}_index"] = jnp.asarray(np.pad(rows, (0, width - len(rows))), jnp.int32)
        tables[f"num_{name}"] = jnp.asarray(len(rows), jnp.int32)
    owner = np.full(others[0], _NOBODY)
    owner[: len(given.test)] = given.test_client
    fewest = with_label[with_label > 0]
    federation = FederatedData(
        inputs=cast(Array, inputs),
        labels=jnp.asarray(truth[:count], jnp.int32),
        observed=jnp.asarray(np.where(seen, truth, -1)[:count], jnp.int32),
        index=jnp.asarray(index),
        num_labelled=jnp.asarray(with_label, jnp.int32),
        num_examples=jnp.asarray(sizes, jnp.int32),
        test_client=jnp.asarray(owner, jnp.int32),
        num_classes=dataset.num_classes,
        max_labelled=max_labelled,
        max_unlabelled=max_unlabelled,
        min_labelled=int(fewest.min()) if fewest.size else 1,
        num_new_clients=max(int(given.test_client.max(initial=-1)) + 1 - len(sizes), 0),
        owned_test=bool((given.test_client >= 0).any()),
        coarse_names=dataset.coarse_names or (),
        **tables,
    )
    if split_hash(dataset, federation) != given.split:
        raise ValueError(changed)
    if isinstance(inputs, HostInputs):
        loaded = cast(Array, load_examples(inputs, federation))
        federation = dataclasses.replace(federation, inputs=loaded)
    return federation


def holds_validation(path: str | Path) -> bool:
    """Return whether a split file has validation examples; a missing file has none."""
    try:
        with np.load(path, allow_pickle=False) as content:
            return "validation" in content.files and content["validation"].size > 0
    except (OSError, ValueError):
        return False


def _widths(data: FederatedData) -> tuple[int, int, int, int, int, int]:
    """Return bounds of a client's labelled and unlabelled examples, and widths of the tables of
    clients, test, validation and server.
    """
    tables = data.index, data.test_index, data.valid_index, data.server_index
    examples, test, valid, server = (table.shape[-1] for table in tables)
    return data.max_labelled, data.max_unlabelled, examples, test, valid, server


def _owner_of_tests(data: FederatedData, count: int) -> Int[np.ndarray, " T"]:
    """Return the client that owns each of the first `count` test examples."""
    if data.owned_test:
        return np.asarray(data.test_client)[:count]
    return np.full(count, _NOBODY)


def _labels(dataset: Dataset) -> Int[np.ndarray, " N"]:
    """Return the labels of the training examples and then of the test examples."""
    return np.concatenate([split.y for split in dataset.splits().values()])
