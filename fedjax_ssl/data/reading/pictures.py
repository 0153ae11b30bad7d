"""Image files of any kind that Pillow reads, as arrays of one shape; what cannot be used is left out and counted."""

import hashlib
import io
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.reading.formats import DAMAGED
from fedjax_ssl.data.reading.problems import Findings
from fedjax_ssl.errors import counted

Fit = Literal["crop", "stretch", "pad"]
Side = Annotated[int | None, Whole(1)]  # side of square images in pixels
Channels = Literal[1, 3] | None  # grey or colour
SIZE = 64  # side of the images where they differ in size
GREY = ("1", "L", "LA", "La")
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I")  # grey, with more than 8 bits
TURNED = range(5, 9)  # values of EXIF's orientation that swap height and width
# Pillow would start Ghostscript, or ask Windows, for these.
EXTERNAL = ("EPS", "WMF")


class Listing(NamedTuple):
    """The files of a folder and the folders in it."""

    images: tuple[str, ...]  # paths below the folder with "/", sorted; judged by the ending
    others: Counter[str]  # endings of the other files
    digest: str  # SHA-256 of paths, lengths and times of change of all files


class Facts(NamedTuple):
    """The head of an image file."""

    size: tuple[int, int]  # width and height in pixels, as it is shown
    mode: str  # mode of its pixels, as Pillow names them
    kind: Literal["grey", "colour", "deep"]  # "deep": grey with more than 8 bits
    pages: int


class Pictures(NamedTuple):
    """Decoded images."""

    x: np.ndarray  # uint8 [n, H, W, C]
    rows: np.ndarray  # int [n], which of the files they are
    facts: tuple[Facts, ...] = ()  # heads of these files


def image_endings() -> frozenset[str]:
    """List the endings of image files that are read, in small letters."""
    Image.init()
    return frozenset(ending for ending, kind in Image.EXTENSION.items() if kind in _formats())


def _formats() -> list[str]:
    return [kind for kind in Image.OPEN if kind not in EXTERNAL]


def list_images(folder: Path) -> Listing:
    """Find all image files below a folder, also behind links; files and folders that start with "." are left out."""

    def refuse(error: OSError) -> None:
        raise error

    found, seen = [], set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # reached twice, read once
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        for name in files:
            if not name.startswith(".") and name != "Thumbs.db" and os.path.isfile(file := os.path.join(here, name)):
                facts = os.stat(file)
                found.append((os.path.relpath(file, folder).replace(os.sep, "/"), facts.st_size, facts.st_mtime_ns))
    images, others, digest, endings = [], Counter[str](), hashlib.sha256(), image_endings()
    for path, size, changed in sorted(found):
        digest.update(f"{path}\0{size}\0{changed}\n".encode("utf-8", "surrogateescape"))
        ending = os.path.splitext(path)[1].lower()
        if ending in endings:
            images.append(path)
        else:
            others[ending if ending and is_text(ending) else "without an ending"] += 1
    return Listing(tuple(images), others, digest.hexdigest())


def is_text(name: str) -> bool:
    """Tell whether a name from the disk is text; one in another encoding than the system's is not."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def spelling(path: str) -> str:
    """Spell a path in one way: accents as one letter, "/" between folders, no "./" in front."""
    return unicodedata.normalize("NFC", path.replace("\\", "/")).removeprefix("./")


def read_images(
    files: Sequence[Path] | Sequence[bytes],
    names: Sequence[str],
    findings: Findings,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    fit: Fit | Callable[[Image.Image, tuple[int, int]], Image.Image] = "crop",
    white: int | None = None,
) -> Pictures:
    """Decode image files, in threads, because Pillow decodes and resizes without Python's lock.

    Args:
        files: [m] where they lie, or their content.
        names: [m], what messages call them.
        findings: what was skipped is a note; that nothing is left, or that it does not fit into memory, a problem.
        size: side of the square images, or height and width; by default the images' own where all have the same, else
            64.
        channels: 1 (grey) or 3 (colour); by default 3 if an image is in colour.
        fit: "crop": the largest part in the middle. "stretch": all of it, whatever the shape. "pad": all of it, with
            black borders. Or a function of an image of 8 bits a channel and its new width and height.
        white: the stored value of an image with more than 8 bits that is shown as white; by default the smallest
            2^b - 1 that no such image exceeds.

    Returns:
        The images that can be used. Turned as their EXIF data say, the first page of several, without transparency.
    """
    Image.init()  # here, not by the threads
    facts: list[Facts | str] = in_threads(lambda row: _facts(files[row]), range(len(files)))
    known = [one for one in facts if isinstance(one, Facts)]
    height, width, depth = _shape(known, size, channels, findings)
    needed = len(known) * height * width * depth
    if needed > _memory():
        findings.problems.append(
            f"{counted(len(known), 'image')} of {width}x{height}x{depth} take {needed / 1e9:,.0f} GB, more "
            f"than this machine has; give a smaller size than {max(height, width)}"
        )
        return Pictures(np.empty((0, height, width, depth), np.uint8), np.empty(0, int))
    if white is None:
        deep = [row for row, one in enumerate(facts) if isinstance(one, Facts) and one.kind == "deep"]
        white = _white(files, deep, findings)

    def decode(row: int) -> np.ndarray | str:
        if isinstance(reason := facts[row], str):
            return reason
        try:
            with _opened(files[row]) as image:
                return shown(image, (height, width, depth), fit, white)
        except DAMAGED as error:
            return f"cut short or damaged ({short(error)})"

    x, rows = read_each(decode, names, (height, width, depth), findings)
    return Pictures(x, rows, tuple(one for row in rows if isinstance(one := facts[row], Facts)))


def in_threads(function: Callable, items: Sequence) -> list:
    """Call a function for each item in threads; gives the results in the items' order."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, items))


def read_each(
    read: Callable[[int], np.ndarray | str], names: Sequence[str], shape: tuple[int, int, int], findings: Findings
) -> tuple[np.ndarray, np.ndarray]:
    """Read images in threads, and count those that cannot be used.

    Args:
        read: gives the image of a row, uint8, or says why it cannot be used; reasons that differ in "(...)" alone
            count as one.
        names: [m] of the images, for messages.
        shape: height, width, channels.
        findings: those left out are a note, or a problem where nothing is left.

    Returns:
        The images [n, H, W, C], and their rows.
    """
    x = np.empty((len(names), *shape), np.uint8)

    def fill(row: int) -> str | None:
        found = read(row)
        if isinstance(found, str):
            return found
        x[row] = found
        return None

    reasons = in_threads(fill, range(len(names)))
    rows = np.array([row for row, reason in enumerate(reasons) if reason is None], int)
    kinds = [None if reason is None else reason.partition(" (")[0] for reason in reasons]
    first = {kind: name for kind, name in zip(kinds[::-1], names[::-1], strict=True) if kind is not None}
    if first:
        times = Counter(kind for kind in kinds if kind is not None)
        listed = "; ".join(f"{count:,} {kind}, first {first[kind]}" for kind, count in times.most_common())
        text = f"{times.total():,} of {counted(len(names), 'image')} cannot be used: {listed}"
        (findings.notes if len(rows) else findings.problems).append(text)
    return x if len(rows) == len(x) else x[rows], rows


def _opened(file: Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=_formats())


def _facts(file: Path | bytes) -> Facts | str:
    """Read the head of a file, or say why it cannot be used."""
    try:
        if not (len(file) if isinstance(file, bytes) else file.stat().st_size):
            return "0 bytes"
        with _opened(file) as image:
            if image.mode == "F":
                return "has floating-point pixels; save it with 8 or 16 bits"
            width, height = image.size  # a TIFF's is turned already
            if image.format in ("JPEG", "MPO") and image.getexif().get(ExifTags.Base.Orientation) in TURNED:
                width, height = height, width
            is_grey = image.mode in GREY or _is_grey(image)
            kind: Any = "deep" if image.mode in DEEP else "grey" if is_grey else "colour"
            return Facts((width, height), image.mode, kind, getattr(image, "n_frames", 1))
    except UnidentifiedImageError:
        return "no image, whatever its name says"
    except DAMAGED as error:
        return f"cut short or damaged ({short(error)})"


def short(error: Exception) -> str:
    """Say in a line what an error is."""
    return " ".join(str(error).split())[:80] or type(error).__name__


def _is_grey(image: Image.Image) -> bool:
    """Tell whether an image with a palette has only grey in it."""
    if image.mode not in ("P", "PA") or not (palette := image.getpalette("RGB")):
        return False
    colours = np.array(palette).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _shape(
    known: Sequence[Facts], size: int | tuple[int, int] | None, channels: int | None, findings: Findings
) -> tuple[int, int, int]:
    """Choose height, width and channels for all images, and note where these differ."""
    sizes = sorted({one.size for one in known}, key=lambda both: (both[0] * both[1], both))
    if len(sizes) > 1 and size is None:
        smallest, largest = (f"{width}x{height}" for width, height in (sizes[0], sizes[-1]))
        findings.notes.append(
            f"images have {len(sizes):,} sizes, from {smallest} to {largest} pixels; all become {SIZE}x{SIZE}, or what "
            "data.size says"
        )
    colour = sum(one.kind == "colour" for one in known)
    if channels is None and 0 < colour < len(known):
        findings.notes.append(
            f"images in grey: {len(known) - colour:,}, in colour: {colour:,}; all are read as colour, or with "
            "data.channels=1 as grey"
        )
    pages = sum(one.pages > 1 for one in known)
    if pages:
        findings.notes.append(f"images of several pages, of which the first is read: {pages:,}")
    if size is None:
        size = sizes[0][::-1] if len(sizes) == 1 else SIZE
    height, width = (size, size) if isinstance(size, int) else size
    return height, width, channels or (3 if colour else 1)


def _memory() -> float:
    """Look up the bytes of this machine's memory; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _white(files: Sequence[Path] | Sequence[bytes], deep: Sequence[int], findings: Findings) -> int:
    """Find the smallest 2^b - 1 that no image of these rows exceeds: all keep one scale."""
    if not deep:
        return 255

    def largest(row: int) -> int:
        try:
            with _opened(files[row]) as image:
                return int(np.asarray(image).max())
        except DAMAGED:  # said when it is decoded
            return 0

    white = 2 ** max(max(in_threads(largest, deep)).bit_length(), 8) - 1
    findings.notes.append(
        f"images with more than 8 bits: {len(deep):,}; their values up to {white:,} become 0 to 255, or those up to "
        "data.white"
    )
    return white


FITS: dict[str, Callable[[Image.Image, tuple[int, int]], Image.Image]] = {
    "crop": partial(ImageOps.fit, method=Image.Resampling.BILINEAR),
    "pad": partial(ImageOps.pad, method=Image.Resampling.BILINEAR),
    "stretch": partial(Image.Image.resize, resample=Image.Resampling.BILINEAR),
}


def shown(
    image: Image.Image, shape: tuple[int, int, int], fit: str | Callable = "crop", white: int = 255
) -> np.ndarray:
    """Show an image as uint8 [H, W, C]; `fit` and `white` as for `read_images`."""
    height, width, channels = shape
    if image.mode in DEEP:
        values = np.asarray(image).astype(np.float32)
        image = Image.fromarray(np.clip(np.rint(values * (255 / white)), 0, 255).astype(np.uint8))
    else:
        image = ImageOps.exif_transpose(image).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = (FITS[fit] if isinstance(fit, str) else fit)(image, (width, height))
    return np.asarray(image).reshape(height, width, -1)
