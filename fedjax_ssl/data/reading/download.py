"""Download files with pooch: mirrors, time limits, a few tries, interrupted files that go on,
checked digests.
"""

import contextlib
import hashlib
import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TRIES = 3
CHUNK_BYTES = 1 << 20
SAY_EVERY = 5.0  # seconds between two lines about progress
DIGEST_SUFFIX = ".sha256"

logger = logging.getLogger(__name__)


class FetchFailed(RuntimeError):
    """No address gave the file.

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


def recorded_sha256(path: Path) -> str | None:
    """Look up the digest that `fetch` noted beside a file of unknown digest."""
    try:
        return path.with_name(path.name + DIGEST_SUFFIX).read_text().split()[0]
    except (FileNotFoundError, IndexError):
        return None


def fetch(
    urls: Sequence[str],
    dest: Path,
    *,
    sha256: str | None = None,
    timeout: float = 20.0,
    wait: float = 0.5,
) -> Path:
    """Download one file from the first mirror that has it; a file that is there and right is kept.

    The file appears only when it is complete and its digest is right. Where the digest is known, an
    interrupted download goes on from its `.part` file, at the next try or in the next process.
    Processes that fetch into one folder wait for each other. An address that does not resolve,
    answers 4xx or gives wrong bytes is left at once; 5xx, broken and silent connections are tried
    three times. Without a known digest, that of the file is noted in `<dest>.sha256`.

    Args:
        urls: mirrors of the same file.
        dest: where the file goes; missing folders are made.
        sha256: expected digest, 64 hexadecimal digits.
        timeout: seconds that connecting, and every single read, may take.
        wait: seconds before the second try; doubled before the third.

    Returns:
        `dest`.

    Raises:
        FetchFailed: no address gave the file; has the reason for each.
        OSError: the file cannot be written here (no space, no permission).
    """
    import pooch  # with requests, which takes long to import
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    dest.parent.mkdir(parents=True, exist_ok=True)
    tried: list[tuple[str, str]] = []
    part = dest.with_name(f"{dest.name}.part")
    with _one_process(dest.parent):
        for url in urls:
            for attempt in range(TRIES):
                downloader = _Resuming(part, sha256, timeout)
                known = None if sha256 is None else f"sha256:{sha256}"
                try:
                    pooch.retrieve(
                        url, known, fname=dest.name, path=dest.parent, downloader=downloader
                    )
                except (requests.RequestException, ValueError) as error:
                    reason, again = _reason(error, timeout, downloader.resumed)
                except OSError:  # the disk's fault: what is there takes the space that others need
                    part.unlink(missing_ok=True)
                    raise
                else:
                    if sha256 is None and recorded_sha256(dest) is None:
                        dest.with_name(dest.name + DIGEST_SUFFIX).write_text(
                            f"{file_sha256(dest)}  {dest.name}\n"
                        )
                    return dest
                if not again:
                    break
                if attempt < TRIES - 1:
                    logger.warning("%s: %s; trying again", url, reason)
                    time.sleep(wait * 2**attempt)
                else:
                    reason += f" ({TRIES} tries)"
            tried.append((url, reason))
        if sha256 is None:
            part.unlink(missing_ok=True)
    raise FetchFailed(tried)


@contextlib.contextmanager
def _one_process(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches into this folder."""
    import filelock

    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        logger.warning("another process downloads into %s; waiting for it", folder)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _Resuming:
    """Download for pooch, from where an interrupted download of the same file ended."""

    def __init__(self, part: Path, sha256: str | None, timeout: float):
        self.part = part
        self.sha256 = sha256
        self.timeout = timeout
        self.resumed = False

    def __call__(self, url: str, output_file: str, _: object) -> None:
        import pooch

        if self.sha256 is None:  # nobody could tell whether the rest belongs to this beginning
            self.part.unlink(missing_ok=True)
        with open(self.part, "ab") as file:
            start = file.tell()
            self.resumed = start > 0
            headers = {"Accept-Encoding": "identity", "User-Agent": "fedjax_ssl"}
            if start:
                headers["Range"] = f"bytes={start}-"

            def on_response(response: Any, **_: Any) -> None:
                # all of it again, or the part is too long
                if start and response.status_code in (200, 416):
                    file.truncate(0)

            if not start or file_sha256(self.part) != self.sha256:
                logger.info("downloading %s%s", url, f", from byte {start:,} on" if start else "")
                pooch.HTTPDownloader(
                    progressbar=_Progress(url.rpartition("/")[2]),
                    chunk_size=CHUNK_BYTES,
                    headers=headers,
                    timeout=self.timeout,
                    hooks={"response": on_response},
                )(url, file, None)
        os.replace(self.part, output_file)


class _Progress:
    """Say every few seconds how far a download is, as pooch's progress bars do."""

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


def _reason(error: Exception, timeout: float, resumed: bool) -> tuple[str, bool]:
    """Say why an address gave nothing, and whether another try may help."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        code = error.response.status_code
        return f"HTTP {code} {error.response.reason}", code >= 500 or code == 416
    if isinstance(error, requests.Timeout):
        return f"no answer within {timeout:g} s", True
    if not isinstance(error, requests.ConnectionError | requests.exceptions.ChunkedEncodingError):
        return str(error), resumed  # another digest, or an address of no known kind
    root: BaseException = error
    while (cause := root.__cause__ or root.__context__) is not None:
        root = cause
    return getattr(root, "strerror", None) or str(root), not isinstance(root, socket.gaierror)
