"""From a catalogue entry to arrays: converted cache, original files, what TensorFlow Datasets prepared, a download."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.sources.cache import ROOT_VARIABLE, data_root, load_converted, save_converted
from fedjax_ssl.data.sources.entries import Archive, RemoteFile, Source
from fedjax_ssl.data.sources.fetch import (
    DIGEST_SUFFIX,
    DatasetUnavailable,
    FetchFailed,
    fetch,
    file_sha256,
    recorded_sha256,
)
from fedjax_ssl.data.sources.formats import FormatError
from fedjax_ssl.data.sources.prepared import if_prepared, load_prepared
from fedjax_ssl.data.sources.tfds import prepared_folders
from fedjax_ssl.errors import counted

logger = logging.getLogger(__name__)


def load_archive(
    archive: Archive,
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    download: bool = True,
    source: Source = "auto",
    timeout: float = 20.0,
) -> Dataset:
    """Loads a published dataset.

    Looked for, in this order: the converted form in `<root>/<name>/`, the original files in `<root>/<name>/raw/`, a
    folder that TensorFlow Datasets has prepared in $TFDS_DATA_DIR or ~/tensorflow_datasets, the addresses in the
    catalogue. With `path` the original files are read from that folder and nothing else is tried.

    Args:
        archive: the catalogue entry.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: folder that holds this dataset's original files.
        download: whether the network may be used.
        source: "auto" as above; "original" without the third place; "tfds": the third place alone, where `path` is
            another folder of prepared datasets, and what is not prepared is prepared if TensorFlow is here.
        timeout: seconds that connecting, and every single read, may take.

    Returns:
        The dataset.

    Raises:
        DatasetUnavailable: it is neither here nor to be had, or a file is damaged; says what to do.
        ValueError: source "tfds" of a dataset that TensorFlow Datasets does not have.
    """
    if source == "tfds":
        return _counted(archive, load_prepared(archive, root=root, path=path, download=download))
    if path is not None:
        given = Path(path).expanduser()
        _require(archive, given, looked=(given,))
        return _read(archive, given)
    folder = data_root(root) / archive.name
    converted = folder / "-".join(["converted", f"v{archive.version}", *[archive.variant] * bool(archive.variant)])
    cached = load_converted(converted)
    if cached is not None:
        return cached
    raw = folder / "raw"
    looked = [converted, raw]
    if source == "auto" and archive.prepared is not None:
        looked.append(prepared_folders() / archive.prepared.name)
        if _missing(archive, raw) and (found := if_prepared(archive, root)) is not None:
            return _counted(archive, found)
    if download:
        try:
            for file in _missing(archive, raw):
                fetch(file.urls, raw / file.name, sha256=file.sha256, size=file.size, timeout=timeout)
        except FetchFailed as failure:
            raise DatasetUnavailable(_not_here(archive, raw, looked, failure.tried)) from failure
        except OSError as error:
            reason = ((str(raw), f"cannot store a download here: {error}"),)
            raise DatasetUnavailable(_not_here(archive, raw, looked, reason)) from error
    _require(archive, raw, looked=looked)
    dataset = _read(archive, raw)
    save_converted(dataset, converted)
    return dataset


class Verified(NamedTuple):
    """What became of comparing one original file with its entry in the catalogue."""

    path: Path
    right: bool | None  # None: it is here, but nobody knows its digest
    said: str


def verify_files(archive: Archive, root: str | Path | None = None) -> list[Verified]:
    """Compares the original files of a dataset in `<root>/<name>/raw/` with what is published."""
    raw = data_root(root) / archive.name / "raw"
    return [_verified(archive, file, raw / file.name) for file in archive.files]


def _verified(archive: Archive, file: RemoteFile, path: Path) -> Verified:
    if not path.is_file():
        return Verified(path, False, f"not here; published at {file.urls[0]}")
    try:
        _verify(archive, file, path)
    except DatasetUnavailable as error:
        return Verified(path, False, str(error).partition(": ")[2].partition("\n")[0])
    size = counted(path.stat().st_size, "byte")
    if file.sha256 is not None:
        return Verified(path, True, f"{size}, as published")
    if recorded_sha256(path) is not None:
        return Verified(path, True, f"{size}, as first downloaded; no digest is published")
    return Verified(path, None, f"{size}; no digest is published")


def _alternative(archive: Archive, raw: Path) -> tuple[str, ...]:
    """The names of files that are here in place of the published ones; none where nothing is."""
    whole = (names for names in archive.alternatives if all((raw / name).is_file() for name in names))
    return next(whole, ())


def _missing(archive: Archive, raw: Path) -> list[RemoteFile]:
    if _alternative(archive, raw):
        return []
    return [file for file in archive.files if not (raw / file.name).is_file()]


def _require(archive: Archive, raw: Path, looked: Sequence[Path]) -> None:
    if _missing(archive, raw):
        raise DatasetUnavailable(_not_here(archive, raw, looked))


def _read(archive: Archive, raw: Path) -> Dataset:
    names = [file.name for file in archive.files]
    if (others := _alternative(archive, raw)) and not all((raw / name).is_file() for name in names):
        names = list(others)
    else:
        for file in archive.files:
            _verify(archive, file, raw / file.name)
    try:
        dataset = archive.read({name: raw / name for name in names})
    except (FormatError, OSError) as error:
        raise DatasetUnavailable(
            f"{archive.name}: {error}\nTo go on, delete that file and start again, or {archive.substitute}"
        ) from error
    return dataclasses.replace(_counted(archive, dataset), extra={**dataset.extra, "terms": archive.terms})


def _counted(archive: Archive, dataset: Dataset) -> Dataset:
    """The same; a difference from the published counts is said."""
    found = len(dataset.train), 0 if dataset.test is None else len(dataset.test)
    if archive.examples not in (None, found):
        logger.warning(
            "%s has %d + %d examples; the published set has %d + %d", archive.name, *found, *archive.examples
        )
    return dataset


def _verify(archive: Archive, file: RemoteFile, path: Path) -> None:
    known = file.sha256
    expected = known or recorded_sha256(path)
    if expected is None:
        return
    found = file_sha256(path)
    if found != expected:
        noted = "" if known else f" as noted in {path.name}{DIGEST_SUFFIX} when it was downloaded"
        raise DatasetUnavailable(
            f"{archive.name}: {path} is not the original file, or is damaged: {path.stat().st_size:,} bytes"
            f"{'' if file.size is None else f' (expected {file.size:,})'}, sha256 {found}, expected "
            f"{expected}{noted}.\n"
            f"To go on, delete it{'' if known else ' and its note'} and start again, or {archive.substitute}"
        )


def _not_here(archive: Archive, raw: Path, looked: Sequence[Path], tried: Sequence[tuple[str, str]] = ()) -> str:
    """The whole message: what was tried, where it looked, and what to put where."""
    lines = [f"{archive.name} is not here{' and could not be downloaded' if tried else ''}."]
    lines += [f"  tried   {place}: {reason}" for place, reason in tried]
    lines.append(f"  looked  {', '.join(str(place) for place in looked)}")
    lines.append("To go on, do one of these:")
    for file in _missing(archive, raw):
        lines.append(f"  - put {file.name}{_facts(file)} in {raw}/\n    (published at {file.urls[0]})")
    lines.append(f"  - point {ROOT_VARIABLE} or root= at a folder that has {archive.name}/raw/ with these files")
    lines.append(f"  - {archive.substitute}")
    return "\n".join(lines)


def _facts(file: RemoteFile) -> str:
    facts = [] if file.size is None else [f"{file.size:,} bytes"]
    facts += [] if file.sha256 is None else [f"sha256 {file.sha256}"]
    return f" ({', '.join(facts)})" if facts else ""
