"""Checkpoints of a run: the last few rounds, one file each, verified by a digest.

    checkpoints/round_00000010.ckpt
        as MessagePack of flax:
        {"round": 10, "extra": JSON, "arrays": {name: array}, "keys": {name: generator}}
        the SHA-256 of that, 32 bytes

A file gets its name once it is completely on the disk. A killed process leaves a file with another
name, and the next save removes it.
"""

import hashlib
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization

from fedjax_ssl.folder.files import decode_json, encode_json, write_atomically

PyTree = Any
_NAME = re.compile(r"round_(\d+)\.ckpt")
_DIGEST_BYTES = hashlib.sha256().digest_size


class CheckpointError(RuntimeError):
    """No checkpoint can be used."""


class CheckpointDamaged(UserWarning):
    """A checkpoint was skipped because its file is damaged."""


class Checkpoints:
    """Saves and restores the state of a run, bit for bit.

    Example:
        >>> checkpoints = Checkpoints("runs/digits")
        >>> checkpoints.save(10, state, {"best": 0.9})  # doctest: +SKIP
        >>> round, state, extra = checkpoints.restore(template=state)  # doctest: +SKIP
    """

    def __init__(self, workdir: str | os.PathLike, keep: int = 2, folder: str = "checkpoints"):
        """Open `workdir/checkpoints`; the folder is made by the first save.

        Args:
            workdir: the run folder.
            keep: number of rounds kept on the disk; with 2, a damaged file costs the rounds since
                the previous one.
            folder: another name of the folder.

        Raises:
            ValueError: keep is below 1.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least 1 checkpoint has to stay on the disk")
        self._folder = Path(workdir).absolute() / folder
        self._keep = keep

    def save(self, round: int, state: PyTree, extra: Mapping[str, Any] | None = None) -> None:
        """Save a round and remove the old ones; on return, the checkpoint is on the disk.

        If the process is killed at any moment, earlier checkpoints stay usable. Checkpoints of
        later rounds are removed; they exist if a run goes on from an earlier checkpoint.

        Args:
            round: number of finished rounds, at least 0.
            state: pytree of arrays, typed PRNG keys and Python scalars.
            extra: values that JSON can hold, such as counters and the best accuracy so far.

        Raises:
            ValueError: round is negative, or `extra` has a value that JSON cannot hold.
        """
        self.write(round, *to_arrays(state), extra)

    def write(
        self,
        round: int,
        arrays: dict[str, np.ndarray],
        keys: dict[str, str],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a round like `save`, from a state split by `to_arrays`."""
        if round < 0:
            raise ValueError(f"round={round}: a round is at least 0")
        try:
            more = encode_json(extra or {})
        except TypeError as error:
            raise ValueError(f"extra={extra!r} cannot be stored: {error}") from error
        content = {"round": round, "extra": more, "arrays": arrays, "keys": keys}
        written = serialization.msgpack_serialize(content, in_place=True)
        self._folder.mkdir(exist_ok=True)
        path = self._path(round)
        for in_the_way in (*self._folder.glob(".*.tmp"), *([path] if path.is_dir() else [])):
            _remove(in_the_way)
        write_atomically(path, [written, hashlib.sha256(written).digest()])
        kept = [one for one in self.rounds() if one <= round][-self._keep :]
        self._remove_all_but(kept)

    def latest(self) -> int | None:
        """Return the newest saved round, or None; `restore` checks whether it is sound."""
        return max(self.rounds(), default=None)

    def rounds(self) -> list[int]:
        """Return the saved rounds in increasing order; `restore` checks whether they are sound."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)

    def forget(self, after_round: int) -> None:
        """Remove the checkpoints of later rounds.

        Args:
            after_round: those up to and including it stay.
        """
        self._remove_all_but([round for round in self.rounds() if round <= after_round])

    def restore(
        self, template: PyTree, up_to: int | None = None
    ) -> tuple[int, Any, dict[str, Any]]:
        """Load the newest sound checkpoint.

        A damaged file is skipped with a `CheckpointDamaged` warning that names it.

        Args:
            template: pytree of arrays or jax.ShapeDtypeStruct, for example the freshly initialized
                state: its structure, shapes and types must be those of the saved state, its
                placement is taken over.
            up_to: the last round that may be taken; None: any.

        Returns:
            round, state, extra, as they were given to `save`.

        Raises:
            CheckpointError: there is no checkpoint, none is sound, or the state has another
                structure.
        """
        rounds = [one for one in self.rounds()[::-1] if up_to is None or one <= up_to]
        if not rounds:
            raise CheckpointError(
                f"no checkpoint in {self._folder}; start the run without restoring"
            )
        for round in rounds:
            try:
                arrays, keys, extra = self._read(round)
            except _Damage as damage:
                text = (
                    f"the checkpoint of round {round} is damaged and passed over: "
                    f"{self._path(round)} {damage}"
                )
                warnings.warn(text, CheckpointDamaged, stacklevel=2)
                continue
            if lines := _differences(template, arrays, keys):
                raise CheckpointError(
                    f"the checkpoint of round {round} in {self._folder} does not fit this run's "
                    "state; it was saved by another version or with other settings:\n"
                    + "".join(f"  {line}\n" for line in lines)
                    + (
                        "Give another --workdir, or restore with the version that saved it (see "
                        "summary.json)."
                    )
                )
            rebuilt = jax.tree_util.tree_map_with_path(
                lambda path, leaf, arrays=arrays: rebuild(leaf, arrays[jax.tree_util.keystr(path)]),
                template,
            )
            return round, rebuilt, extra
        raise CheckpointError(
            f"no checkpoint in {self._folder} is usable: all {len(rounds)} are damaged (see the "
            "notes above). Delete the run folder, or give another --workdir, to start again."
        )

    def arrays(self, round: int) -> dict[str, np.ndarray]:
        """Return the arrays of a round, by their path in the saved pytree.

        Raises:
            CheckpointError: there is no sound file of this round.
        """
        try:
            return self._read(round)[0]
        except _Damage as damage:
            raise CheckpointError(f"{self._path(round)} {damage}") from damage

    def _path(self, round: int) -> Path:
        return self._folder / f"round_{round:08d}.ckpt"

    def _read(self, round: int) -> tuple[dict[str, np.ndarray], dict[str, str], dict[str, Any]]:
        """Read arrays, key generators and extra values of a sound file."""
        try:
            content = self._path(round).read_bytes()
        except OSError as error:
            raise _Damage(f"cannot be read: {error.strerror}") from error
        written = content[:-_DIGEST_BYTES]
        if hashlib.sha256(written).digest() != content[-_DIGEST_BYTES:]:
            raise _Damage(f"has changed since it was written; it has {len(content):,} bytes")
        try:
            found = serialization.msgpack_restore(written)
            parts = found["arrays"], found["keys"], decode_json(found["extra"])
            there = found["round"]
        except Exception as error:  # a file from another program or version may have any content
            raise _Damage("is no checkpoint of this version of the program") from error
        if there != round:
            raise _Damage(f"holds round {there}")
        return parts

    def _remove_all_but(self, kept: list[int]) -> None:
        for round in set(self.rounds()).difference(kept):
            _remove(self._path(round))


class _Damage(Exception):
    """The damage of a file, as the end of a sentence that begins with its name."""


def _remove(path: Path) -> None:
    """Remove a file, or a folder in its place."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def to_arrays(state: PyTree) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Split a pytree into host arrays.

    Args:
        state: pytree of arrays, typed PRNG keys and Python scalars; arrays that lie on devices of
            other processes too are whole on each of them.

    Returns:
        Arrays by their path in the pytree, keys as the data of keys; and the generators of these.
    """
    named = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }
    for name, leaf in named.items():
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            named[name] = leaf.addressable_data(0)  # computing with it needs no other process
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in named.items() if is_key(leaf)}
    plain = {
        name: jax.random.key_data(leaf) if name in keys else leaf for name, leaf in named.items()
    }
    return {name: np.asarray(array) for name, array in jax.device_get(plain).items()}, keys


def is_key(leaf: Any) -> bool:
    """Return whether a leaf is a typed PRNG key."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _differences(
    template: PyTree, arrays: Mapping[str, np.ndarray], keys: Mapping[str, str]
) -> list[str]:
    """List the arrays that are missing, extra, or of another shape or type, a line each."""

    def describe(array: Any, key: str | None) -> str:
        return f"{f'{key} key as ' if key else ''}{array.dtype}{list(array.shape)}"

    wanted = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(template):
        key = str(jax.random.key_impl(leaf)) if is_key(leaf) else None
        array = jax.eval_shape(jax.random.key_data, leaf) if key else leaf
        wanted[jax.tree_util.keystr(path)] = describe(
            array if hasattr(array, "dtype") else np.asarray(array), key
        )
    found = {name: describe(array, keys.get(name)) for name, array in arrays.items()}
    return [
        f"state{name}: stored {found.get(name, 'nothing')}, expected {wanted.get(name, 'nothing')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


def rebuild(template: Any, array: np.ndarray) -> Any:
    """Make an array like a leaf of a state, with other content."""
    if isinstance(template, np.ndarray):
        return array.copy()
    if isinstance(template, bool | int | float | complex):
        return array.item()
    value = jnp.array(array)
    if is_key(template):
        value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(template))
    # An uncommitted leaf stays uncommitted: pinned to a device, it could not be combined with
    # arrays on a mesh.
    sharding = getattr(template, "sharding", None)
    committed = getattr(template, "committed", sharding is not None)
    return jax.device_put(value, sharding) if sharding is not None and committed else value
