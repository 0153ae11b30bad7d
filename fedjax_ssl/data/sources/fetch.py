"""Downloads that end: time limits, a few tries, a digest, and a file that is either complete or not there.

Not by pooch, which unpacks what a server sends as gzip-encoded, so that the digest of an archive no longer fits, and
which sees a wrong length only after the whole download.
"""

import contextlib
import errno
import hashlib
import http.client
import logging
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

TRIES = 3
CHUNK_BYTES = 1 << 20
SAY_EVERY = 5.0  # seconds between two lines about progress
DIGEST_SUFFIX = ".sha256"
# The disk's fault: no other try and no other mirror can help.
DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

logger = logging.getLogger(__name__)


class DatasetUnavailable(RuntimeError):
    """A dataset is neither here nor to be had, or what is here is damaged; the message says what to do."""


class FetchFailed(RuntimeError):
    """No address gave the file.

    Attributes:
        tried: (address, reason) of every address tried, in order.
    """

    def __init__(self, tried: Sequence[tuple[str, str]]):
        self.tried = tuple(tried)
        super().__init__("; ".join(f"{url}: {reason}" for url, reason in self.tried))


class _Refused(Exception):
    """This address will not give the file, however often it is asked."""


class _Interrupted(Exception):
    """This address may give the file at another try."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recorded_sha256(path: Path) -> str | None:
    """The digest that `fetch` noted beside a file of unknown digest, or None."""
    try:
        return path.with_name(path.name + DIGEST_SUFFIX).read_text().split()[0]
    except (FileNotFoundError, IndexError):
        return None


def fetch(
    urls: str | Sequence[str],
    dest: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    timeout: float = 20.0,
    wait: float = 0.5,
) -> Path:
    """Downloads one file from the first mirror that has it.

    The bytes go to a `.part` file beside `dest`, which is renamed only when length and digest are right. Where the
    digest is known, a download that was interrupted goes on from there, at the next try or in the next process. Of
    processes that fetch into one folder the others wait for the first, and take what it has fetched. An address that
    does not resolve, answers 4xx or gives wrong bytes is left at once; 5xx, broken and silent connections are tried
    three times. Without a known digest, the digest of what came is written to `<dest>.sha256`.

    Args:
        urls: one address or several mirrors of the same file.
        dest: where the file goes; missing folders are made.
        sha256: expected digest, 64 hexadecimal digits.
        size: expected length in bytes.
        timeout: seconds that connecting, and every single read, may take.
        wait: seconds before the second try; doubled before the third.

    Returns:
        `dest`.

    Raises:
        FetchFailed: no address gave the file; has the reason for each.
        OSError: the file cannot be written here (no space, no permission).
    """
    mirrors = (urls,) if isinstance(urls, str) else tuple(urls)
    dest.parent.mkdir(parents=True, exist_ok=True)
    before = _identity(dest)
    with _one_process(dest.parent) as is_alone:
        if _identity(dest) != before:
            return dest  # another process has fetched it meanwhile
        # Where processes cannot wait for each other, each has a part file of its own, and none goes on with another's.
        part = dest.with_name(f"{dest.name}.part" if is_alone else f"{dest.name}.{os.getpid()}.part")
        resumes = is_alone and sha256 is not None
        keep = False
        tried: list[tuple[str, str]] = []
        try:
            for url in mirrors:
                try:
                    digest = _fetch_with_retries(url, part, sha256 if resumes else None, sha256, size, timeout, wait)
                except (_Refused, _Interrupted) as failure:
                    tried.append((url, str(failure)))
                    continue
                if sha256 is None:
                    dest.with_name(dest.name + DIGEST_SUFFIX).write_text(f"{digest}  {dest.name}\n")
                os.replace(part, dest)
                return dest
            keep = resumes
        except KeyboardInterrupt:
            keep = resumes
            raise
        finally:
            if not keep:
                part.unlink(missing_ok=True)
    raise FetchFailed(tried)


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there, None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def _one_process(folder: Path) -> Iterator[bool]:
    """Waits until no other process fetches into this folder; False where the system cannot say so."""
    if fcntl is None:
        yield False
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("another process downloads into %s; waiting for it", folder)
            fcntl.flock(place, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            yield False
            return
        yield True
    finally:
        os.close(place)


def _fetch_with_retries(
    url: str, part: Path, resumed: str | None, sha256: str | None, size: int | None, timeout: float, wait: float
) -> str:
    for attempt in range(TRIES):
        try:
            return _fetch_once(url, part, resumed, sha256, size, timeout)
        except _Interrupted as failure:
            if attempt == TRIES - 1:
                raise _Interrupted(f"{failure} ({TRIES} tries)") from failure
            logger.warning("%s: %s; trying again", url, failure)
            time.sleep(wait * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _fetch_once(url: str, part: Path, resumed: str | None, sha256: str | None, size: int | None, timeout: float) -> str:
    """Fetches a file, or what of it is missing; `resumed` is the digest that lets it go on with a part, if it may."""
    start, digest = (0, hashlib.sha256()) if resumed is None else _so_far(part)
    if resumed is not None and digest.hexdigest() == resumed:
        return resumed
    request = urllib.request.Request(url, headers={"User-Agent": "fedjax_ssl"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    logger.info("downloading %s%s", url, f", from byte {start:,} on" if start else "")
    with open(part, "ab" if start else "wb") as file:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                if start and not (response.headers.get("Content-Range") or "").startswith(f"bytes {start}-"):
                    file.truncate(0)  # this server sends the whole file
                    start, digest = 0, hashlib.sha256()
                expected = size if response.length is None else start + response.length
                if size is not None and expected != size:
                    raise _Refused(f"has {expected:,} bytes, expected {size:,}")
                received = _receive(response, file, digest, url, start, expected)
        except (OSError, http.client.HTTPException) as error:
            failure = _classified(error, timeout)
            if start and isinstance(error, urllib.error.HTTPError) and error.code == 416:
                file.truncate(0)  # the part is longer than the file
                failure = _Interrupted("does not go on with what was downloaded before")
            raise failure from error
    if expected is not None and received != expected:
        raise _Interrupted(f"ended after {received:,} of {expected:,} bytes")
    if sha256 is not None and digest.hexdigest() != sha256:
        part.unlink()
        reason = f"wrong content: sha256 {digest.hexdigest()}, expected {sha256}"
        raise _Interrupted(f"{reason}, in parts") if start else _Refused(reason)
    logger.info("downloaded %s (%d bytes)", url, received)
    return digest.hexdigest()


def _so_far(part: Path) -> tuple[int, Any]:
    """Length and digest of what an earlier download left."""
    try:
        with open(part, "rb") as file:
            digest = hashlib.file_digest(file, "sha256")
            return file.tell(), digest
    except FileNotFoundError:
        return 0, hashlib.sha256()


def _receive(response: IO[bytes], file: IO[bytes], digest: Any, url: str, start: int, expected: int | None) -> int:
    """Writes what comes, and says every few seconds how far it is; gives the length of the file then."""
    received, said = start, time.monotonic()
    while chunk := response.read(CHUNK_BYTES):
        file.write(chunk)
        digest.update(chunk)
        received += len(chunk)
        if time.monotonic() - said > SAY_EVERY:
            said = time.monotonic()
            of = "" if expected is None else f" of {expected / 1e6:,.0f}"
            logger.info("%s: %s%s MB", url.rpartition("/")[2], f"{received / 1e6:,.0f}", of)
    return received


def _classified(error: OSError | http.client.HTTPException, timeout: float) -> Exception:
    if isinstance(error, urllib.error.HTTPError):
        kind = _Interrupted if error.code >= 500 else _Refused
        error.close()
        return kind(f"HTTP {error.code} {error.reason}")
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return _Interrupted(f"no answer within {timeout:g} s")
    if isinstance(reason, socket.gaierror):
        return _Refused(reason.strerror or "the name does not resolve")
    if isinstance(reason, OSError) and reason.errno in DISK_ERRORS:
        return reason
    if isinstance(reason, str):  # urllib's own words, such as an unknown kind of address
        return _Refused(reason)
    return _Interrupted(str(reason) or type(reason).__name__)
