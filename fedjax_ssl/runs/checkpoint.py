"""Checkpoints of a run: the last few rounds, one file each, proved by a digest.

    checkpoints/round_00000010.ckpt
        {"round": 10, "extra": {...}, "arrays": [...]}      one line of JSON
        the bytes of the arrays, one after another
        the SHA-256 of all that, 32 bytes

A file gets its name when all of it is on the disk. What a killed process leaves behind has another name, and the next
save removes it.
"""

import hashlib
import itertools
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_ssl.runs.files import decode_json, encode_json, write_atomically

_NAME = re.compile(r"round_(\d+)\.ckpt")
_DIGEST_BYTES = hashlib.sha256().digest_size


class CheckpointError(RuntimeError):
    """There is no checkpoint that can be used."""


class CheckpointDamaged(UserWarning):
    """A checkpoint was passed over because its file is damaged."""


class Checkpoints:
    """Saves and restores the state of a run, bit for bit."""

    def __init__(self, workdir: str | os.PathLike, keep: int = 2, folder: str = "checkpoints"):
        """Opens `workdir/checkpoints`; the folder is made by the first save.

        Args:
            workdir: the run folder.
            keep: rounds that stay on the disk; with 2, a damaged file costs the rounds since the one before.
            folder: another name for it.

        Raises:
            ValueError: keep is below 1.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least 1 checkpoint has to stay on the disk")
        self._folder = Path(workdir).absolute() / folder
        self._keep = keep

    def save(self, round: int, state: Any, extra: Mapping[str, Any] | None = None) -> None:
        """Saves a round and removes the old ones; when it returns, the checkpoint is there.

        Killed at any moment it leaves the earlier checkpoints usable. Later rounds than this one, which a run
        leaves behind when it goes on from an earlier checkpoint, are removed.

        Args:
            round: number of finished rounds, at least 0.
            state: pytree of arrays, typed PRNG keys and Python scalars.
            extra: values that JSON can hold, such as counters and the best accuracy so far.

        Raises:
            ValueError: round is negative, or `extra` has a value that JSON cannot hold.
        """
        if round < 0:
            raise ValueError(f"round={round}: a round is at least 0")
        described, arrays = to_arrays(state)
        header = {"round": round, "extra": extra or {}, "arrays": [array._asdict() for array in described]}
        try:
            line = encode_json(header)
        except TypeError as error:
            raise ValueError(f"extra={extra!r} cannot be stored: {error}") from error
        self._folder.mkdir(exist_ok=True)
        path = self._path(round)
        for in_the_way in (*self._folder.glob(".*.tmp"), *([path] if path.is_dir() else [])):
            _remove(in_the_way)
        bodies = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays)
        write_atomically(path, _with_digest(itertools.chain([f"{line}\n".encode()], bodies)))
        self._remove_obsolete(round)

    def latest(self) -> int | None:
        """Returns the newest round that was saved, or None; whether it is sound, `restore` finds out."""
        return max(self.rounds(), default=None)

    def rounds(self) -> list[int]:
        """Returns the rounds that were saved, in increasing order; whether they are sound, `restore` finds out."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def forget(self, after_round: int) -> None:
        """Removes the checkpoints of later rounds.

        Args:
            after_round: those up to and including it stay.
        """
        for round in self.rounds():
            if round > after_round:
                _remove(self._path(round))

    def restore(self, template: Any) -> tuple[int, Any, dict[str, Any]]:
        """Loads the newest sound checkpoint.

        A damaged one is passed over with a `CheckpointDamaged` warning that names the file.

        Args:
            template: pytree of arrays or jax.ShapeDtypeStruct, for example the freshly initialized state: its
                structure, shapes and types must be those of the saved state, its placement is taken over.

        Returns:
            round, state, extra, as they were given to `save`.

        Raises:
            CheckpointError: there is no checkpoint, none is sound, or the state has another structure.
        """
        rounds = self.rounds()[::-1]
        if not rounds:
            raise CheckpointError(f"no checkpoint in {self._folder}; start the run without restoring")
        for round in rounds:
            try:
                header, content = self._read(round)
            except _Damage as damage:
                text = f"the checkpoint of round {round} is damaged and passed over: {self._path(round)} {damage}"
                warnings.warn(text, CheckpointDamaged, stacklevel=2)
                continue
            stored = [StoredArray(**array) for array in header["arrays"]]
            if lines := differences(template, stored):
                raise CheckpointError(
                    f"the checkpoint of round {round} in {self._folder} does not fit this run's state; "
                    "it was saved by another version or with other settings:\n"
                    + "".join(f"  {line}\n" for line in lines)
                    + "Give another --workdir, or restore with the version that saved it (see summary.json)."
                )
            return round, from_arrays(template, stored, _arrays(stored, content)), header["extra"]
        raise CheckpointError(
            f"no checkpoint in {self._folder} is usable: all {len(rounds)} are damaged (see the notes above). "
            "Delete the run folder, or give another --workdir, to start again."
        )

    def _path(self, round: int) -> Path:
        return self._folder / f"round_{round:08d}.ckpt"

    def _read(self, round: int) -> tuple[dict[str, Any], memoryview]:
        """The header of a sound file, and the bytes of its arrays."""
        try:
            content = self._path(round).read_bytes()
        except OSError as error:
            raise _Damage(f"cannot be read: {error.strerror}") from error
        written = memoryview(content)[:-_DIGEST_BYTES]
        if hashlib.sha256(written).digest() != content[-_DIGEST_BYTES:]:
            raise _Damage(f"has changed since it was written; it has {len(content):,} bytes")
        try:
            end = content.index(b"\n")
            header = decode_json(content[:end].decode())
            size = sum(map(_size, header["arrays"]))
            sound = isinstance(header["extra"], dict) and size <= len(written) - end - 1
            found = header["round"]
        except (ValueError, KeyError, TypeError) as error:
            raise _Damage("is no checkpoint of this program") from error
        if not sound:
            raise _Damage("is shorter than it says")
        if found != round:
            raise _Damage(f"holds round {found}")
        return header, written[end + 1 :]

    def _remove_obsolete(self, current: int) -> None:
        rounds = self.rounds()
        kept = [round for round in rounds if round <= current][-self._keep :]
        for round in set(rounds).difference(kept):
            _remove(self._path(round))


class _Damage(Exception):
    """What is wrong with a file, as the end of a sentence that begins with its name."""


def _remove(path: Path) -> None:
    """Removes a file, or the folder that somebody left in its place."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _with_digest(parts: Iterable[Any]) -> Iterator[Any]:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
        yield part
    yield digest.digest()


def _size(array: dict[str, Any]) -> int:
    """Bytes of an array that a header describes."""
    return int(np.prod(array["shape"], dtype=np.int64)) * np.dtype(array["dtype"]).itemsize


def _arrays(stored: "list[StoredArray]", content: memoryview) -> list[np.ndarray]:
    arrays, offset = [], 0
    for one in stored:
        arrays.append(np.ndarray(one.shape, one.dtype, content, offset))
        offset += arrays[-1].nbytes
    return arrays


class StoredArray(NamedTuple):
    """What a stored array is, beside its numbers."""

    name: str  # its path in the pytree, as jax.tree_util.keystr writes it
    dtype: str
    shape: list[int]
    key_impl: str | None  # the generator's name if this is the data of a typed PRNG key

    def __str__(self) -> str:
        return f"{'' if self.key_impl is None else f'{self.key_impl} key as '}{self.dtype}{self.shape}"


def to_arrays(state: Any) -> tuple[list[StoredArray], list[np.ndarray]]:
    """Takes a pytree apart into host arrays.

    Args:
        state: pytree of arrays, typed PRNG keys and Python scalars; arrays that lie on devices of other processes too
            are whole on each of them.

    Returns:
        The arrays' descriptions, and the arrays, both in the pytree's order.
    """
    leaves = [_local(leaf) for leaf in jax.tree.leaves(state)]
    data = jax.device_get([jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves])
    return _describe(state), [np.asarray(array) for array in data]


def tree_bytes(state: Any) -> int:
    """Bytes that the arrays of a pytree take in a checkpoint."""
    return sum(int(np.prod(one.shape, dtype=np.int64)) * np.dtype(one.dtype).itemsize for one in _describe(state))


def differences(template: Any, stored: list[StoredArray]) -> list[str]:
    """Compares a template with what is stored.

    Args:
        template: pytree of arrays or jax.ShapeDtypeStruct with the structure, shapes and types asked for.
        stored: descriptions from `to_arrays`.

    Returns:
        One line per array that is missing, superfluous, or of another shape or type; empty when it fits.
    """
    wanted = {array.name: str(array) for array in _describe(template)}
    found = {array.name: str(array) for array in stored}
    return [
        f"state{name}: stored {found.get(name, 'nothing')}, expected {wanted.get(name, 'nothing')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def from_arrays(template: Any, stored: list[StoredArray], arrays: list[np.ndarray]) -> Any:
    """Puts a pytree together again.

    Args:
        template: as in `differences`, which must have found none. A leaf that lives on chosen devices tells
            where its successor goes; the others go to the default device.
        stored: descriptions from `to_arrays`.
        arrays: in the order of `stored`; they are copied.

    Returns:
        A pytree like the template: JAX arrays, typed keys, and NumPy arrays and Python scalars where the
        template has them.
    """
    by_name = {one.name: (one.key_impl, array) for one, array in zip(stored, arrays, strict=True)}
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _rebuild(leaf, *by_name[jax.tree_util.keystr(path)]), template
    )


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _local(leaf: Any) -> Any:
    """The copy on a device of this process: what is computed with it takes no other process."""
    return leaf.addressable_data(0) if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable else leaf


def _describe(tree: Any) -> list[StoredArray]:
    described = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        impl = str(jax.random.key_impl(leaf)) if is_key(leaf) else None
        array = jax.eval_shape(jax.random.key_data, leaf) if impl else leaf
        array = array if hasattr(array, "dtype") else np.asarray(array)
        described.append(StoredArray(jax.tree_util.keystr(path), str(array.dtype), list(array.shape), impl))
    return described


def _rebuild(template: Any, key_impl: str | None, array: np.ndarray) -> Any:
    if isinstance(template, np.ndarray):
        return array.copy()
    if isinstance(template, bool | int | float | complex):
        return array.item()
    value = jnp.array(array)
    if key_impl is not None:
        value = jax.random.wrap_key_data(value, impl=key_impl)
    # An uncommitted leaf stays one: pinned to a device it could not meet arrays that live on a mesh.
    sharding = getattr(template, "sharding", None)
    committed = getattr(template, "committed", sharding is not None)
    return jax.device_put(value, sharding) if sharding is not None and committed else value
