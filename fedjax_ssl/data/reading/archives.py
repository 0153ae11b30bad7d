"""From a published dataset's entry to arrays: converted cache, original files, a prepared
folder, a download.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from fedjax_ssl.checks import In
from fedjax_ssl.data.dataset import Dataset, Names
from fedjax_ssl.data.reading.cache import ROOT_VARIABLE, data_root, kept, load_converted, raw_folder
from fedjax_ssl.data.reading.catalogues import Choice
from fedjax_ssl.data.reading.download import (
    DIGEST_SUFFIX,
    FetchFailed,
    fetch,
    file_sha256,
    recorded_sha256,
)
from fedjax_ssl.data.reading.problems import EMBEDDED, DatasetUnavailable, Place, not_here
from fedjax_ssl.data.reading.tfds import load_tfds, prepared_folders
from fedjax_ssl.errors import counted
from fedjax_ssl.registry import Changes

# Origins of a published dataset: any, its original files, or a folder that TensorFlow Datasets
# prepared.
Source = Literal["auto", "original", "tfds"]
Files = Mapping[str, Path]  # file name -> where it is

logger = logging.getLogger(__name__)


class RemoteFile(NamedTuple):
    """One file of a dataset."""

    url: str  # address, which ends in the name of the file
    size: int | None = None  # length in bytes, None where nobody states it
    sha256: str | None = None
    # ^ digest; None where nobody states it: that of the first download is then kept
    mirrors: Names = ()  # other addresses, in the order in which they are tried

    @property
    def name(self) -> str:
        """Give the file's name, as published."""
        return self.url.rpartition("/")[2]


class Prepared(NamedTuple):
    """The same dataset in TensorFlow Datasets."""

    name: str  # NAME or NAME/CONFIG there
    facts: Mapping[str, Any]
    # ^ fields of `Dataset` as the original has them: names of classes, mean, deviation
    options: Mapping[str, Any] = {}  # fields of `Choice`
    first_label: int = 0  # number of the first class there


@dataclasses.dataclass(frozen=True)
class Archive:
    """A published dataset with certain options."""

    name: str  # it is loaded by
    files: tuple[RemoteFile, ...]  # files that must be at hand
    read: Callable[[Files], Dataset]
    # ^ {file name: path} -> dataset; `FormatError` for damage
    terms: str  # licence and whom to cite
    substitute: str = f"run on data that needs no download: {EMBEDDED}"
    # ^ where the dataset cannot be had
    version: int = 1
    # ^ goes into the converted cache's name; raise it when `read` changes what it returns
    variant: str = ""  # goes there too: options that decide what `read` returns
    prepared: Prepared | None = None  # None: TensorFlow Datasets does not have it, or has less
    # File names that do in place of those of `files`, such as the content of an archive; nobody
    # knows their digests.
    alternatives: tuple[Names, ...] = ()
    examples: tuple[int, int] | None = None
    # ^ training and test examples as published; others are warned about


class Verified(NamedTuple):
    """One original file compared with its entry."""

    path: Path
    right: bool | None  # None: it is here, but nobody knows its digest
    said: str


def load_archive(
    archive: Archive,
    *,
    root: Place = None,
    path: Place = None,
    download: bool = True,
    source: Source = "auto",
    timeout: Annotated[float, In("(0, inf)"), Changes("watching")] = 20.0,
) -> Dataset:
    """Load a published dataset.

    Looked for, in this order: the converted form in `<root>/<name>/`, the original files in
    `<root>/<name>/raw/`, a folder that TensorFlow Datasets has prepared in $TFDS_DATA_DIR or
    ~/tensorflow_datasets, the published addresses. With `path` the original files are read from
    that folder and nothing else is tried.

    Args:
        archive: the dataset's entry.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: folder that holds this dataset's original files.
        download: whether the network may be used.
        source: "auto" as above; "original" without the third place; "tfds": the third place alone,
            where `path` is another folder of prepared datasets, and a dataset that is not prepared
            is prepared if that is possible.
        timeout: seconds that connecting, and every single read, may take.

    Returns:
        The dataset.

    Raises:
        DatasetUnavailable: it is neither here nor to be had, or a file is damaged; says what to do.
        ValueError: source "tfds" of a dataset that TensorFlow Datasets does not have.
    """
    if source == "tfds":
        return _counted(archive, _load_prepared(archive, root, path, download))
    if path is not None:
        given = Path(path).expanduser()
        return _read(archive, given, looked=(given,))
    folder = data_root(root) / archive.name
    converted = folder / f"converted-v{archive.version}{archive.variant}"
    raw = folder / "raw"
    if (cached := load_converted(converted)) is not None:
        return cached
    looked = [converted, raw]
    if source == "auto" and archive.prepared is not None:
        place = prepared_folders() / archive.prepared.name
        looked.append(place)
        if any(place.glob("*/dataset_info.json")) and _missing(archive, raw):
            try:
                found = _counted(archive, _load_prepared(archive, root, None, download=False))
            except DatasetUnavailable as error:  # passed over
                logger.warning("%s", str(error).partition("\n")[0])
            else:
                logger.warning(
                    "%s is read from %s, as its original files are not here; TensorFlow Datasets "
                    "has its examples in another order, so that runs on the two differ. "
                    "source='original' (config.data.source) takes the original alone",
                    archive.name,
                    place,
                )
                return found
    if download:
        try:
            for file in _missing(archive, raw):
                fetch(
                    (file.url, *file.mirrors), raw / file.name, sha256=file.sha256, timeout=timeout
                )
        except FetchFailed as failure:
            raise _not_here(archive, raw, looked, failure.tried) from failure
        except OSError as error:
            reason = (str(raw), f"cannot store a download here: {error}")
            raise _not_here(archive, raw, looked, [reason]) from error
    return kept(converted, lambda: _read(archive, raw, looked))


def verify_files(archive: Archive, root: Place = None) -> list[Verified]:
    """Compare the original files of a dataset in `<root>/<name>/raw/` with those that are
    published.
    """
    raw = raw_folder(archive.name, root, None)
    return [_verified(file, raw / file.name) for file in archive.files]


def placed_folder(name: str, root: Place, path: Place, parts: tuple[str, str], steps: str) -> Path:
    """Choose the folder of a dataset which the user has to fetch.

    Args:
        name: name of the dataset.
        root: folder of all datasets.
        path: the folder; default `<root>/NAME/raw`.
        parts: the folder of images and the table within.
        steps: how to get both, numbered, with line breaks.

    Raises:
        DatasetUnavailable: one of them is not there; says what to do.
    """
    folder = raw_folder(name, root, path)
    images, table = (folder / part for part in parts)
    if not (images.is_dir() and table.is_file()):
        put = (
            "put both there, or give path= (config.data.path) the folder that has them, or point "
            f"{ROOT_VARIABLE} or root= at a folder that has {name}/raw/ with "
            f"them:\n{steps.rstrip()}"
        )
        raise not_here(name, (f"{images}/", table), [put])
    return folder


def _load_prepared(archive: Archive, root: Place, path: Place, download: bool) -> Dataset:
    """Load the dataset as TensorFlow Datasets has it: the same examples in another order."""
    prepared = archive.prepared
    if prepared is None:
        raise ValueError(
            f"{archive.name} is not in TensorFlow Datasets with these options and the same "
            "content; leave source='tfds' out. Its datasets as they are: tfds:NAME"
        )

    try:
        choice = Choice(**{"input_key": "image", "label_key": "label", **prepared.options})
        found = load_tfds(prepared.name, root=root, path=path, download=download, choice=choice)
        changes: dict[str, Any] = {
            "name": archive.name,
            "extra": {**found.extra, "terms": archive.terms},
            **prepared.facts,
        }
        for name, split in (("train", found.train), ("test", found.test)):
            if split is not None:  # labels from 0 on; those of examples without one stay -1
                y = np.where(split.y < 0, -1, split.y - prepared.first_label)
                changes[name] = dataclasses.replace(split, y=y)
        return dataclasses.replace(found, **changes)
    except ValueError as error:
        raise DatasetUnavailable(
            f"{archive.name}: tfds:{prepared.name} is not what is expected: {error}\nTo go on, "
            "prepare it again, or take the original with source='original' (config.data.source)"
        ) from error


def _verified(file: RemoteFile, path: Path) -> Verified:
    if not path.is_file():
        return Verified(path, False, f"not here; published at {file.url}")
    size = counted(path.stat().st_size, "byte")
    noted = file.sha256 is None
    expected = recorded_sha256(path) if noted else file.sha256
    if expected is None:
        return Verified(path, None, f"{size}; no digest is published")
    if (found := file_sha256(path)) == expected:
        return Verified(
            path, True, f"{size}, as {'first downloaded; no digest is ' if noted else ''}published"
        )
    where = f" as noted in {path.name}{DIGEST_SUFFIX} when it was downloaded" if noted else ""
    published = "" if file.size is None else f" (expected {file.size:,})"
    said = (
        f"not the original file, or damaged: {size}{published}, sha256 {found}, expected "
        f"{expected}{where}"
    )
    return Verified(path, False, said)


def _files(archive: Archive, folder: Path) -> Sequence[RemoteFile]:
    """Choose the published files, or those that are here in their place."""
    for files in (archive.files, *(tuple(map(RemoteFile, one)) for one in archive.alternatives)):
        if all((folder / file.name).is_file() for file in files):
            return files
    return archive.files


def _missing(archive: Archive, folder: Path) -> list[RemoteFile]:
    return [file for file in _files(archive, folder) if not (folder / file.name).is_file()]


def _read(archive: Archive, folder: Path, looked: Sequence[Path]) -> Dataset:
    if _missing(archive, folder):
        raise _not_here(archive, folder, looked)
    paths = {file.name: folder / file.name for file in _files(archive, folder)}
    for file in _files(archive, folder):
        if (checked := _verified(file, paths[file.name])).right is False:
            note = "" if file.sha256 else " and its note"
            raise DatasetUnavailable(
                f"{archive.name}: {checked.path} is {checked.said}.\nTo go on, delete it{note} "
                f"and start again, or {archive.substitute}"
            )
    try:
        dataset = archive.read(paths)
    except (ValueError, OSError) as error:
        raise DatasetUnavailable(
            f"{archive.name}: {error}\nTo go on, delete that file and start again, or "
            f"{archive.substitute}"
        ) from error
    return dataclasses.replace(
        _counted(archive, dataset), extra={**dataset.extra, "terms": archive.terms}
    )


def _counted(archive: Archive, dataset: Dataset) -> Dataset:
    """Warn about numbers of examples that differ from the published ones."""
    found = len(dataset.train), 0 if dataset.test is None else len(dataset.test)
    if archive.examples not in (None, found):
        logger.warning(
            "%s has %d + %d examples; the published set has %d + %d",
            archive.name,
            *found,
            *archive.examples,
        )
    return dataset


def _not_here(
    archive: Archive, folder: Path, looked: Sequence[Path], tried: Sequence[tuple[str, str]] = ()
) -> DatasetUnavailable:
    remedies = []
    for file in _missing(archive, folder):
        facts = [] if file.size is None else [f"{file.size:,} bytes"]
        facts += [] if file.sha256 is None else [f"sha256 {file.sha256}"]
        told = f" ({', '.join(facts)})" if facts else ""
        remedies.append(f"put {file.name}{told} in {folder}/\n    (published at {file.url})")
    remedies.append(
        f"point {ROOT_VARIABLE} or root= at a folder that has {archive.name}/raw/ with these files"
    )
    reasons = [f"{place}: {reason}" for place, reason in tried]
    return not_here(archive.name, looked, remedies, reasons, archive.substitute)
