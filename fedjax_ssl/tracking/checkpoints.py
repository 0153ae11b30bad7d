"""Checkpoints of a run: the last few rounds, each whole and proved by digests.

The arrays are written by orbax. What it does not do is notice a changed byte (it returns other numbers) or
tell which file is damaged, so every checkpoint has a manifest with the SHA-256 of each of its files:

    checkpoints/round_00000010/         orbax
    checkpoints/round_00000010.json     manifest: leaves, extra values, digests; written last, whole

A checkpoint exists when its manifest does. Whatever a killed process leaves behind has none, and the next
save removes it.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from fedjax_ssl.tracking.files import decode_json, encode_json, write_atomically
from fedjax_ssl.tracking.state_arrays import Leaf, differences, from_arrays, to_arrays

_MANIFEST = re.compile(r"round_(\d+)\.json")


class CheckpointError(RuntimeError):
    """There is no checkpoint that can be used."""


class CheckpointDamaged(UserWarning):
    """A checkpoint was passed over because a file of it is damaged."""


class Checkpoints:
    """Saves and restores the state of a run, bit for bit."""

    def __init__(self, workdir: str | os.PathLike, keep: int = 2):
        """Opens `workdir/checkpoints`; the folder is made by the first save.

        Args:
            workdir: the run folder.
            keep: rounds that stay on the disk; with 2, a damaged file costs the rounds since the one before.

        Raises:
            ValueError: keep is below 1.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least 1 checkpoint has to stay on the disk")
        self._folder = Path(workdir).absolute() / "checkpoints"
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
        try:
            extra_text = encode_json(extra or {})
        except TypeError as error:
            raise ValueError(f"extra={extra!r} cannot be stored: {error}") from error
        leaves, arrays = to_arrays(state)
        self._folder.mkdir(exist_ok=True)
        folder = self._free_folder(round)
        self._write_arrays(folder, arrays)
        body = {
            "round": round,
            "folder": folder.name,
            "leaves": [leaf._asdict() for leaf in leaves],
            "extra": json.loads(extra_text),
            "files": _digests(folder),
        }
        manifest = {**body, "digest": _digest_of(body)}
        write_atomically(self._manifest_path(round), json.dumps(manifest, indent=1) + "\n")
        self._remove_obsolete(round)

    def latest(self) -> int | None:
        """Returns the newest round that was saved, or None; whether it is sound, `restore` finds out."""
        return max(self._rounds(), default=None)

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
        rounds = sorted(self._rounds(), reverse=True)
        if not rounds:
            raise CheckpointError(f"no checkpoint in {self._folder}; start the run without restoring")
        for round in rounds:
            try:
                manifest = self._read_manifest(round)
            except _Damage as damage:
                warnings.warn(
                    f"the checkpoint of round {round} is damaged and passed over: {damage}",
                    CheckpointDamaged,
                    stacklevel=2,
                )
                continue
            leaves = [Leaf(**leaf) for leaf in manifest["leaves"]]
            if lines := differences(template, leaves):
                raise CheckpointError(
                    f"the checkpoint of round {round} in {self._folder} does not fit this run's state; "
                    "it was saved by another version or with other settings:\n"
                    + "".join(f"  {line}\n" for line in lines)
                    + "Give another --workdir, or restore with the version that saved it (see summary.json)."
                )
            arrays = self._read_arrays(self._folder / manifest["folder"], leaves)
            return round, from_arrays(template, leaves, arrays), manifest["extra"]
        raise CheckpointError(
            f"no checkpoint in {self._folder} is usable: all {len(rounds)} are damaged (see the notes above). "
            "Delete the run folder, or give another --workdir, to start again."
        )

    def _manifest_path(self, round: int) -> Path:
        return self._folder / f"round_{round:08d}.json"

    def _rounds(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        matches = (_MANIFEST.fullmatch(item.name) for item in self._folder.iterdir())
        return [int(match[1]) for match in matches if match]

    def _free_folder(self, round: int) -> Path:
        """A round saved again gets a second folder: the first is good until the manifest changes over."""
        first = self._folder / f"round_{round:08d}"
        folder, attempt = first, 1
        while folder.exists():
            attempt += 1
            folder = first.with_name(f"{first.name}-{attempt}")
        return folder

    @staticmethod
    def _write_arrays(folder: Path, arrays: list[np.ndarray]) -> None:
        # Orbax refuses arrays without elements; the manifest knows their shape, and that is all of them.
        named = {_array_name(i): array for i, array in enumerate(arrays) if array.size}
        if named:
            with _checkpointer() as checkpointer:
                checkpointer.save(folder, args=ocp.args.StandardSave(named))
        else:
            folder.mkdir()

    @staticmethod
    def _read_arrays(folder: Path, leaves: list[Leaf]) -> list[np.ndarray]:
        empty = [np.empty(leaf.shape, np.dtype(leaf.dtype)) for leaf in leaves]
        named = {_array_name(i): array for i, array in enumerate(empty) if array.size}
        if named:
            with _checkpointer() as checkpointer:
                named = checkpointer.restore(folder, args=ocp.args.StandardRestore(named))
        return [named.get(_array_name(i), array) for i, array in enumerate(empty)]

    def _read_manifest(self, round: int) -> dict[str, Any]:
        path = self._manifest_path(round)
        try:
            manifest = json.loads(path.read_bytes())
            digest = manifest.pop("digest")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise _Damage(f"{path} is not readable") from error
        if digest != _digest_of(manifest):
            raise _Damage(f"{path} has changed since it was written")
        folder = self._folder / manifest["folder"]
        for name, expected in manifest["files"].items():
            try:
                found = _digest(folder / name)
            except OSError as error:
                raise _Damage(f"{folder / name} is missing or not readable") from error
            if found != expected:
                raise _Damage(
                    f"{folder / name} has {found['bytes']:,} bytes with SHA-256 {found['sha256'][:12]}..., "
                    f"written were {expected['bytes']:,} with {expected['sha256'][:12]}..."
                )
        manifest["extra"] = decode_json(json.dumps(manifest["extra"]))
        return manifest

    def _remove_obsolete(self, current: int) -> None:
        rounds = sorted(self._rounds())
        kept = [round for round in rounds if round <= current][-self._keep :]
        for round in rounds:
            if round not in kept:
                self._manifest_path(round).unlink()
        folders = set()
        for round in kept:
            try:
                folders.add(json.loads(self._manifest_path(round).read_bytes())["folder"])
            except (ValueError, KeyError, TypeError):
                folders.add(f"round_{round:08d}")
        for item in self._folder.glob("round_*"):
            if item.is_dir() and item.name not in folders:
                shutil.rmtree(item, ignore_errors=True)  # what resists goes with the next save


class _Damage(Exception):
    """A file of a checkpoint is not what was written."""


def _checkpointer() -> ocp.Checkpointer:
    """Orbax for this process: where there are several, it would wait for the others, which neither save nor load."""
    if jax.process_count() == 1:
        return ocp.Checkpointer(ocp.StandardCheckpointHandler())
    here = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )
    return ocp.Checkpointer(ocp.StandardCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone)


def _array_name(index: int) -> str:
    return f"{index:05d}"


def _digest(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {
            "bytes": os.fstat(file.fileno()).st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def _digests(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _digest(path) for path in files}


def _digest_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
