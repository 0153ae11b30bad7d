"""Published datasets: their files, downloaded by pooch, checked, unpacked and read once."""

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_ssl.data.dataset import Dataset, Names
from fedjax_ssl.data.reading.cache import ROOT_VARIABLE, data_root, kept, load_converted, raw_folder
from fedjax_ssl.data.reading.own import EMBEDDED, DatasetUnavailable, Place, not_here
from fedjax_ssl.errors import counted

RETRIES = 2  # further tries of one address
SAY_EVERY = 5.0  # seconds between two lines of progress

logger = logging.getLogger(__name__)


class FetchFailed(RuntimeError):
    """No address delivered the file.

    Attributes:
        tried: (address, reason) of every address tried, in order.
    """

    def __init__(self, tried: Sequence[tuple[str, str]]):
        self.tried = tuple(tried)
        super().__init__("; ".join(f"{url}: {reason}" for url, reason in self.tried))


def file_sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    urls: Sequence[str], dest: Path, *, sha256: str | None = None, timeout: float = 20.0
) -> Path:
    """Download one file from the first mirror that has it; a correct file that already exists is
    kept.

    The file appears only when it is complete and its digest is right.

    Args:
        urls: mirrors of the same file.
        dest: path of the file; missing folders are made.
        sha256: expected digest, 64 hexadecimal digits.
        timeout: seconds that connecting, and every single read, may take.

    Returns:
        `dest`.

    Raises:
        FetchFailed: no address gave the file; has the reason for each.
        OSError: the folder cannot be made.
    """
    import pooch  # takes long to import

    pooch.get_logger().setLevel(logging.WARNING)
    dest.parent.mkdir(parents=True, exist_ok=True)
    tried: list[tuple[str, str]] = []
    known = None if sha256 is None else f"sha256:{sha256}"
    # The file as it is stored: one that the server unpacks would have another digest.
    headers = {"Accept-Encoding": "identity", "User-Agent": "fedjax_ssl"}
    for url in urls:
        logger.info("downloading %s", url)
        files = pooch.create(
            dest.parent,
            base_url="",
            registry={dest.name: known},
            urls={dest.name: url},
            retry_if_failed=RETRIES,
        )
        try:
            files.fetch(
                dest.name,
                downloader=pooch.HTTPDownloader(
                    progressbar=_Progress(dest.name), headers=headers, timeout=timeout
                ),
            )
        except (OSError, ValueError) as error:  # exceptions of requests are subclasses of these
            tried.append((url, " ".join(str(error).split())))
        else:
            return dest
    raise FetchFailed(tried)


class _Progress:
    """Print every few seconds how far a download is, in place of pooch's progress bar."""

    def __init__(self, name: str):
        self.name = name
        self.total = 0
        self.done = 0
        self.said = time.monotonic()

    def update(self, count: int) -> None:
        self.done += count
        if time.monotonic() - self.said > SAY_EVERY:
            self.said = time.monotonic()
            of = f" of {self.total / 1e6:,.0f}" if self.total else ""
            logger.info("%s: %s%s MB", self.name, f"{self.done / 1e6:,.0f}", of)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


Files = Mapping[str, Path]  # file name -> path


class RemoteFile(NamedTuple):
    """One file of a dataset."""

    url: str  # address, which ends in the name of the file
    size: int | None = None  # length in bytes; None if not published
    sha256: str | None = None  # digest; None if not published
    mirrors: Names = ()  # other addresses, in the order in which they are tried

    @property
    def name(self) -> str:
        """Name of the file, as published."""
        return self.url.rpartition("/")[2]


class Facts(NamedTuple):
    """Facts about a dataset that are known before it is read."""

    train: int  # training examples
    test: int  # test examples; 0: it has no test split of its own
    shape: tuple[int, ...]  # shape of one example
    classes: int
    clients: int = 0  # natural clients
    unlabelled: int = 0  # training examples without a label
    fields: Mapping[str, Any] = {}
    # ^ further fields of `Dataset`, such as class names, mean and standard deviation


@dataclasses.dataclass(frozen=True)
class Archive:
    """A published dataset with certain options."""

    name: str  # name by which it is loaded
    files: tuple[RemoteFile, ...]  # files that must exist
    read: Callable[[Files], Dataset]
    # ^ {file name: path} -> dataset; `FormatError` for damage
    terms: str  # licence and whom to cite
    substitute: str = f"run on data that needs no download: {EMBEDDED}"
    # ^ advice if the dataset is not available
    version: int = 1
    # ^ goes into the converted cache's name; raise it when `read` changes what it returns
    variant: str = ""  # options that change the result of `read`; part of the same name
    facts: Facts | None = None  # a warning is logged if numbers of examples differ


def load_archive(
    archive: Archive,
    *,
    root: Place = None,
    path: Place = None,
    download: bool = True,
) -> Dataset:
    """Load a published dataset.

    Looked for, in this order: the converted form in `<root>/<name>/`, the original files in
    `<root>/<name>/raw/`, the published addresses. With `path` the original files are read from that
    folder and nothing else is tried.

    Args:
        archive: the dataset's entry.
        root: folder of all datasets; default $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl.
        path: folder that holds this dataset's original files.
        download: whether the network may be used.

    Returns:
        The dataset.

    Raises:
        DatasetUnavailable: it is neither here nor available, or a file is damaged; the message says
            what to do.
    """
    if path is not None:
        given = Path(path).expanduser()
        return _read(archive, given, looked=(given,))
    folder = data_root(root) / archive.name
    converted = folder / f"converted-v{archive.version}{archive.variant}"
    raw = folder / "raw"
    if (cached := load_converted(converted)) is not None:
        return cached
    looked = [converted, raw]
    if download:
        try:
            for file in _missing(archive, raw):
                fetch((file.url, *file.mirrors), raw / file.name, sha256=file.sha256)
        except FetchFailed as failure:
            raise _not_here(archive, raw, looked, failure.tried) from failure
        except OSError as error:
            reason = (str(raw), f"cannot store a download here: {error}")
            raise _not_here(archive, raw, looked, [reason]) from error
    return kept(converted, lambda: _read(archive, raw, looked))


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


def _check_digest(archive: Archive, file: RemoteFile, path: Path) -> None:
    """Refuse a file that is not the published one; some have no published digest."""
    if file.sha256 is None or (found := file_sha256(path)) == file.sha256:
        return
    published = "" if file.size is None else f" (expected {file.size:,})"
    raise DatasetUnavailable(
        f"{archive.name}: {path} is not the original file, or damaged: "
        f"{counted(path.stat().st_size, 'byte')}{published}, sha256 {found}, expected "
        f"{file.sha256}.\nTo go on, delete it and start again, or {archive.substitute}"
    )


def _missing(archive: Archive, folder: Path) -> list[RemoteFile]:
    return [file for file in archive.files if not (folder / file.name).is_file()]


def _read(archive: Archive, folder: Path, looked: Sequence[Path]) -> Dataset:
    if _missing(archive, folder):
        raise _not_here(archive, folder, looked)
    paths = {file.name: folder / file.name for file in archive.files}
    for file in archive.files:
        _check_digest(archive, file, paths[file.name])
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
    if archive.facts is not None and found != archive.facts[:2]:
        logger.warning(
            "%s has %d + %d examples; the published set has %d + %d",
            archive.name,
            *found,
            *archive.facts[:2],
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
