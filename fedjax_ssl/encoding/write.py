"""Encode a dataset into a folder, block by block, so that finished blocks survive a stop."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedjax_ssl.data import Dataset
from fedjax_ssl.data.fingerprint import fingerprint
from fedjax_ssl.data.images.weak import Augmentation
from fedjax_ssl.data.sources.features import Encoded, Rows, begin, read_facts
from fedjax_ssl.encoding.encoders import Encoder, checked
from fedjax_ssl.errors import UserError
from fedjax_ssl.folder.files import StorageError, bytes_in_words, storing
from fedjax_ssl.keys import named_key

# Features of the same example and encoder may differ by rounding, on another machine or in another
# program.
_CLOSE = 0.02


class Wanted(NamedTuple):
    """A dataset, its encoder and its views: the job of `write`."""

    dataset: Dataset
    encoder: Encoder
    name: str  # name of the encoder, for messages
    weak: Augmentation | None
    strong: Augmentation | None
    views: int  # stored views of each kind, weak and strong
    augmentation: dict[str, Any]  # facts that identify the augmentation
    seed: int  # random seed of the views
    block: int  # examples encoded at once


def describe(wanted: Wanted) -> Encoded:
    """Describe the features; this encodes the first block."""
    dataset = wanted.dataset
    first = dataset.train.x[: wanted.block]
    width = checked(_first(wanted, len(first)), len(first), None, wanted.name).shape[1]
    sizes = {name: len(split) for name, split in dataset.splits().items()}
    return Encoded(
        data=dict(fingerprint(dataset)),
        encoder=json.loads(json.dumps(dict(wanted.encoder.known_by))),
        augmentation=json.loads(json.dumps({**wanted.augmentation, "seed": wanted.seed})),
        weak=0 if wanted.weak is None else wanted.views,
        strong=0 if wanted.strong is None else wanted.views,
        width=width,
        block=wanted.block,
        sizes=sizes,
    )


def in_words(facts: Encoded) -> str:
    """Return the number of examples and views and their size, in words."""
    train = facts.sizes["train"]
    test = f" and {facts.sizes['test']:,} test examples" if "test" in facts.sizes else ""
    return (
        f"{train:,} training examples (as they are, {facts.weak} weak and {facts.strong} strong "
        f"views of each){test}: {total(facts):,} encodings of {facts.width:,} numbers, "
        f"{bytes_in_words(facts.nbytes)}"
    )


def total(facts: Encoded) -> int:
    """Return the number of encodings of all examples and views."""
    return sum(count * facts.views_of(split) for split, count in facts.sizes.items())


def write(wanted: Wanted, facts: Encoded, folder: Path) -> Iterator[int]:
    """Encode what is missing in a folder.

    Args:
        wanted: dataset, encoder and views.
        facts: from `describe`.
        folder: an empty or new folder, or one that the same call began.

    Yields:
        Number of finished encodings, after every block.

    Raises:
        UserError: the folder holds features of other data, another encoder or other views.
        StorageError: the disk is full; finished blocks are kept.
    """
    before = read_facts(folder)
    if before is None and folder.exists() and any(folder.iterdir()):
        raise UserError(f"--output {folder} is not empty, and holds no features; give another")
    if before is not None and (others := before.differences(facts)):
        raise UserError(
            f"{folder} holds features of other data or of another encoder: {'; '.join(others)}. "
            "Give another --output"
        )
    safe = "What is encoded stays; the same command goes on."
    with storing(folder, lambda: safe, facts.nbytes):
        if before is None:
            _check_room(folder, facts.nbytes)
            begin(folder, wanted.dataset, facts)
        files = {split: Rows(folder, facts, split) for split in facts.sizes}
    _check_same(wanted, facts, files["train"], folder)
    done = sum(rows.done * facts.views_of(split) for split, rows in files.items())
    yield done
    for split, rows in files.items():
        inputs = wanted.dataset.splits()[split].x
        for start in range(rows.done, len(inputs), facts.block):
            block = inputs[start : start + facts.block]
            features = _views(wanted, facts, block, start, split)
            with storing(folder, lambda: safe, facts.nbytes):
                rows.add(features)
            done += len(block) * facts.views_of(split)
            yield done


def _check_room(folder: Path, size: int) -> None:
    """Refuse to begin if the disk has too little room."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise StorageError(
            f"features take {bytes_in_words(size)}, and the disk of {folder} has "
            f"{bytes_in_words(free)} left; give another --output, or fewer --views"
        )


def _check_same(wanted: Wanted, facts: Encoded, rows: Rows, folder: Path) -> None:
    """Refuse to go on with an encoder whose features differ from the stored ones."""
    count = min(rows.done, facts.block)
    if not count:
        return
    now = checked(_first(wanted, count), count, facts.width, wanted.name)
    there = rows.first(count).astype(np.float32)
    if np.abs(now - there).max() > _CLOSE * max(np.abs(there).max(), 1e-3):
        raise UserError(
            f"encoder {wanted.name} gives other features of the first examples than those in "
            f"{folder}; give another --output"
        )


def _first(wanted: Wanted, count: int) -> np.ndarray:
    """Encode the first training examples."""
    filled = _filled(wanted, wanted.dataset.train.x[:count])
    return np.asarray(_encode(wanted, filled, "train", 0, count))[:count]


def _encode(wanted: Wanted, filled: np.ndarray, split: str, start: int, count: int) -> Any:
    """Encode `count` examples of a split from a row on, as a full block."""
    if wanted.encoder.clients is None:
        return wanted.encoder.encode(filled)
    names = list(wanted.encoder.clients[split][start : start + count])
    return wanted.encoder.encode(filled, names + names[:1] * (len(filled) - count))


def _filled(wanted: Wanted, block: np.ndarray) -> np.ndarray:
    """Fill up a block with copies of its first example, so that one program serves all blocks."""
    return np.concatenate([block, np.repeat(block[:1], wanted.block - len(block), axis=0)])


def _views(
    wanted: Wanted, facts: Encoded, block: np.ndarray, start: int, split: str
) -> Float[np.ndarray, "b views d"]:
    """Encode examples and their views, which the number of the first row decides."""
    filled = _filled(wanted, block)
    seen = [filled]
    kinds = {"weak": (wanted.weak, facts.weak), "strong": (wanted.strong, facts.strong)}
    for name, (augment, count) in kinds.items():
        if augment is None or split != "train":
            continue
        key = jax.random.fold_in(named_key(jax.random.key(wanted.seed), name), start)
        for number in range(count):
            seen.append(np.asarray(augment(jax.random.fold_in(key, number), jnp.asarray(filled))))
    found = [
        checked(
            _encode(wanted, one, split, start, len(block)), len(filled), facts.width, wanted.name
        )
        for one in seen
    ]
    return np.stack(found, axis=1)[: len(block)]
