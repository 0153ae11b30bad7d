"""Where datasets live on disk, and the converted form that opens without decoding anything."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedjax_ssl.data.dataset import Dataset, Split

ROOT_VARIABLE = "FEDJAX_SSL_DATA"

logger = logging.getLogger(__name__)


def data_root(root: str | Path | None = None) -> Path:
    """The folder datasets are kept in: `root`, else $FEDJAX_SSL_DATA, else ~/.cache/fedjax_ssl."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or Path("~") / ".cache" / "fedjax_ssl").expanduser()


def load_converted(folder: Path) -> Dataset | None:
    """Opens a dataset that `save_converted` wrote; inputs are memory-mapped.

    Args:
        folder: the folder given to `save_converted`.

    Returns:
        The dataset, or None if the folder is not there or is damaged (which is logged).
    """
    if not folder.is_dir():
        return None
    try:
        facts = json.loads((folder / "dataset.json").read_text())
        splits = {name: _load_split(folder, name) for name in facts.pop("splits")}
        for name in ("class_names", "client_names", "mean", "std", "coarse_names"):
            facts[name] = None if facts.get(name) is None else tuple(facts[name])
        facts.update({name: _load_optional(folder, name) for name in ("correspondence", "set_shares")})
        return Dataset(train=splits["train"], test=splits.get("test"), **facts)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        logger.warning("the converted data in %s is damaged and will be made again: %s", folder, error)
        return None


def save_converted(dataset: Dataset, folder: Path) -> None:
    """Writes a dataset as `.npy` files, all or nothing: a folder beside `folder` is filled and then renamed.

    A folder that cannot be written is logged and otherwise ignored: the dataset is in memory already, only
    the next start is slower.

    Args:
        dataset: what to write; `extra` must fit into JSON.
        folder: the folder it becomes.
    """
    splits = {name: split for name, split in (("train", dataset.train), ("test", dataset.test)) if split is not None}
    facts = {
        name: getattr(dataset, name)
        for name in ("name", "class_names", "client_names", "input_max", "mean", "std", "coarse_names", "extra")
    }
    temporary = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        for name, split in splits.items():
            for field in ("x", "y", "client", "coarse", "set"):
                if (values := getattr(split, field)) is not None:
                    np.save(temporary / f"{name}_{field}.npy", values)
        for name in ("correspondence", "set_shares"):
            if (values := getattr(dataset, name)) is not None:
                np.save(temporary / f"{name}.npy", values)
        (temporary / "dataset.json").write_text(json.dumps({**facts, "splits": list(splits)}))
        if folder.exists() and load_converted(folder) is None:
            shutil.rmtree(folder)
        if not folder.exists():  # otherwise another process was faster
            temporary.rename(folder)
    except OSError as error:
        logger.warning("%s was not kept in %s: %s", dataset.name, folder, error)
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def kept(folder: Path, digest: str, make: Callable[[], Dataset]) -> Dataset:
    """A dataset that is made once for every content that it is made from.

    Args:
        folder: where the converted form is kept, of this content alone: what an earlier content left is removed.
        digest: names the content.
        make: makes the dataset; `extra` must fit into JSON.

    Returns:
        What was kept, with inputs memory-mapped, or what was made.
    """
    target = folder / f"converted-{digest}"
    if (cached := load_converted(target)) is not None:
        return cached
    dataset = make()
    for older in folder.glob("converted-*"):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)
    save_converted(dataset, target)
    return dataset


def fingerprint(value: object) -> str:
    """A short name for something that fits into JSON: equal values have equal ones."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def _load_split(folder: Path, name: str) -> Split:
    optional = {field: _load_optional(folder, f"{name}_{field}") for field in ("client", "coarse", "set")}
    return Split(np.load(folder / f"{name}_x.npy", mmap_mode="r"), np.load(folder / f"{name}_y.npy"), **optional)


def _load_optional(folder: Path, name: str) -> np.ndarray | None:
    path = folder / f"{name}.npy"
    return np.load(path) if path.exists() else None
