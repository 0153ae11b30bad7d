"""Measurements on a page of the documentation: a section per device, between two markers."""

import os
from pathlib import Path

from fedjax_ssl.errors import UserError

BEGIN, END = "<!-- smoke: begin -->", "<!-- smoke: end -->"
_HEAD = "#### "


class PageError(UserError):
    """Nothing can be written to the page."""


def check_page(page: Path) -> None:
    """Checks that measurements can be written to a page.

    Raises:
        PageError: there is no such file, it cannot be written, or it has no place for them.
    """
    _split(page)
    if not os.access(page, os.W_OK):
        raise PageError(f"--docs {page} cannot be written: Permission denied")


def write_section(page: Path, device: str, text: str) -> None:
    """Writes the measurements of a device to a page, in the place of earlier ones of the same device.

    Args:
        page: Markdown with a line `BEGIN` and a later line `END`.
        device: in words.
        text: Markdown.

    Raises:
        PageError: see `check_page`, or the file cannot be written.
    """
    before, between, after = _split(page)
    sections = {part.split("\n", 1)[0]: part.strip() for part in f"\n{between}".split(f"\n{_HEAD}")[1:]}
    sections[device] = f"{device}\n\n{text.strip()}"
    body = "".join(f"{_HEAD}{sections[name]}\n\n" for name in sorted(sections))
    try:
        page.write_text(f"{before}{BEGIN}\n\n{body}{END}{after}", encoding="utf-8")
    except OSError as error:
        raise PageError(f"--docs {page} cannot be written: {error.strerror}") from error


def _split(page: Path) -> tuple[str, str, str]:
    """What stands before, between and after the markers."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PageError(f"--docs {page} cannot be read: {getattr(error, 'strerror', 'it is no text')}") from error
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise PageError(
            f"--docs {page} has no place for measurements: it needs a line {BEGIN} and below it a line {END}, each "
            "once; docs/benchmarks.md of a checkout has them"
        )
    before, rest = text.split(BEGIN)
    between, after = rest.split(END)
    return before, between, after
