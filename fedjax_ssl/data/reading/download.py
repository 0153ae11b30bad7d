"""Download files with pooch: mirrors, a time limit, a few tries, checked digests."""

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

RETRIES = 2  # of one address
SAY_EVERY = 5.0  # seconds between two lines about progress

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


def fetch(
    urls: Sequence[str], dest: Path, *, sha256: str | None = None, timeout: float = 20.0
) -> Path:
    """Download one file from the first mirror that has it; a file that is there and right is kept.

    The file appears only when it is complete and its digest is right.

    Args:
        urls: mirrors of the same file.
        dest: where the file goes; missing folders are made.
        sha256: expected digest, 64 hexadecimal digits.
        timeout: seconds that connecting, and every single read, may take.

    Returns:
        `dest`.

    Raises:
        FetchFailed: no address gave the file; has the reason for each.
        OSError: there can be no such folder.
    """
    import pooch  # takes long to import

    pooch.get_logger().setLevel(logging.WARNING)
    dest.parent.mkdir(parents=True, exist_ok=True)
    tried: list[tuple[str, str]] = []
    known = None if sha256 is None else f"sha256:{sha256}"
    # as it is stored: a file that the server unpacks has another digest
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
        except (OSError, ValueError) as error:  # those of requests are among the first
            tried.append((url, " ".join(str(error).split())))
        else:
            return dest
    raise FetchFailed(tried)


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
