"""Fingerprints of data: arrays and files are identified by content, not by modification time."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split

MOST = 1 << 28  # bytes that are read of an array, or of all files together, at most
# Evenly spaced blocks that are read of larger data, and their least bytes.
_BLOCKS = 256
_LEAST = 1 << 12
# names in a fingerprint, for fields of `Split`
_NAMED = {"inputs": "x", "labels": "y", "clients": "client"}


def fingerprint(dataset: Dataset) -> dict[str, int | str]:
    """Compute the fingerprint of a dataset: numbers of examples, and digests of everything that a
    run reads.

    Returns:
        "training_examples" and "test_examples"; digests of "inputs", "labels", "clients", and of
        "other fields": weak labels, names of classes and clients, and the like.

    Example:
        >>> from fedjax_ssl.data.fingerprint import fingerprint
        >>> fingerprint(fs.load_dataset("digits"))["training_examples"]
        1797
    """
    splits = dataset.splits().values()
    rest = [field.name for field in fields(Split) if field.name not in (*_NAMED.values(), "names")]
    names = np.array([*dataset.class_names, "", *(dataset.client_names or ())], str)
    others = [getattr(split, field) for split in splits for field in rest]
    return {
        "training_examples": len(dataset.train),
        "test_examples": 0 if dataset.test is None else len(dataset.test),
        **{
            what: of_arrays(getattr(split, field) for split in splits)
            for what, field in _NAMED.items()
        },
        "other fields": of_arrays([names, dataset.correspondence, dataset.set_shares, *others]),
    }


def of_files(files: Iterable[Path]) -> str:
    """Compute a digest of the content of files, in this order; folders among them are left out."""
    there = [file for file in files if file.is_file()]
    mapped = (np.memmap(file, mode="r") if file.stat().st_size else None for file in there)
    return of_arrays(mapped, MOST // max(len(there), 1))


def of_arrays(arrays: Iterable[np.ndarray | None], most: int = MOST) -> str:
    """Compute a digest of shapes, types and bytes of arrays; at most `most` bytes of each are read.

    Only the size decides which bytes are read, because an array in memory may later be opened as a
    mapped file.
    """
    found = hashlib.blake2b(digest_size=8)
    for values in arrays:
        found.update(repr(values if values is None else (values.dtype.str, values.shape)).encode())
        if values is None or not values.size:
            continue
        bytes_each = values[0].nbytes
        size = min(max(most // _BLOCKS, _LEAST) // bytes_each + 1, len(values))
        starts: Iterable[int] = range(0, len(values), size)
        if values.nbytes > most:
            blocks = max(most // (size * bytes_each), 2)
            starts = np.linspace(0, len(values) - size, blocks).astype(int).tolist()
        for start in starts:
            found.update(np.ascontiguousarray(values[start : start + size]).data)
    return found.hexdigest()


def of_examples(inputs: np.ndarray) -> np.ndarray:
    """Compute a digest of every example, str [n], equal for equal values of any type."""
    found = [
        hashlib.blake2b(np.ascontiguousarray(one, np.float32).data, digest_size=8).hexdigest()
        for one in inputs
    ]
    return np.array(found, "U16")
