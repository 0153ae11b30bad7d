"""Image files as arrays of one shape, by Pillow: 8 bits in grey or RGB, and 16 bits in grey. Files
of other kinds are refused; damaged files are left out and counted.
"""

import dataclasses
import io
import math
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from fedjax_ssl.checks import Whole
from fedjax_ssl.data.dataset import Reading
from fedjax_ssl.data.reading.own import SHOWN, Findings
from fedjax_ssl.errors import counted

Fit = Literal["crop", "stretch", "pad"]
Kind = Literal["grey", "colour", "deep"]  # "deep": grey with 16 bits
Side = Annotated[int | None, Whole(1)]  # side of square images in pixels
Channels = Literal[1, 3] | None  # grey or colour
Levels = tuple[float, float] | None  # values that become 0 and 255
SIZE = 64  # side of the images if their sizes differ
# Pillow's name for the kind of pixels -> ours
KINDS: dict[str, Kind] = {
    "1": "grey",
    "L": "grey",
    "RGB": "colour",
    "I;16": "deep",
    "I;16B": "deep",
    "I;16L": "deep",
    "I;16N": "deep",
}
TURNED = range(5, 9)  # values of EXIF's orientation that swap height and width
# Pillow would start Ghostscript, or ask Windows, for these.
EXTERNAL = ("EPS", "WMF")
# Python that turns a file of each refused kind into one that can be read.
_SIXTEEN = "Image.fromarray(numpy.clip({}, 0, 65535).astype('uint16')).save('new.png')"
MENDED = {
    "with a palette, transparency or another space of colours": (
        "Image.open(file).convert('RGB').save('new.png')"
    ),
    "with signed, negative or floating-point values": _SIXTEEN.format(
        "numpy.asarray(Image.open(file)) + 1024"
    ),
    "of several pages": (
        "[page.save(f'page{i}.png') for i, page in "
        "enumerate(ImageSequence.Iterator(Image.open(file)))]"
    ),
    "of DICOM": _SIXTEEN.format("pydicom.dcmread(file).pixel_array"),
}
_COLOURS, _SIGNED, _PAGES, _DICOM = MENDED


class Listing(NamedTuple):
    """The files of a folder and the folders in it."""

    images: tuple[str, ...]  # paths below the folder with "/", sorted; chosen by ending
    others: Counter[str]  # endings of the other files


@dataclasses.dataclass(frozen=True)
class ImageReading(Reading):
    """Conversion of image files to inputs uint8 [H, W, C]."""

    height: int
    width: int
    channels: int  # 1 or 3
    fit: str = "crop"  # a name of `FITS`, the rule for images of another shape
    levels: Levels = None
    # ^ values of "deep" images that become 0 and 255; None: no such images
    kinds: tuple[Kind, ...] = ("grey", "colour")  # kinds of images that were seen


class Facts(NamedTuple):
    """Facts in the head of an image file."""

    size: tuple[int, int]  # displayed width and height, in pixels
    kind: Kind
    highest: float  # value of "deep" images


class Pictures(NamedTuple):
    """Decoded images."""

    x: np.ndarray  # uint8 [n, H, W, C]
    rows: np.ndarray  # int [n], row numbers of their files
    reading: ImageReading
    facts: tuple[Facts, ...] = ()  # heads of these files


def image_endings() -> frozenset[str]:
    """List the endings of image files that are read, or refused, in small letters."""
    Image.init()
    known = (ending for ending, kind in Image.EXTENSION.items() if kind in _formats())
    return frozenset((*known, ".dcm"))


def is_image(file: Path) -> bool:
    """Tell by its ending whether a file is read as an image."""
    return file.suffix.lower() in image_endings()


def _formats() -> list[str]:
    return [kind for kind in Image.OPEN if kind not in EXTERNAL]


def list_images(folder: Path) -> Listing:
    """Find all image files below a folder, also through links, except names that start with "."."""

    def refuse(error: OSError) -> None:
        raise error

    found = []
    seen = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:  # reachable twice, read once
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        for name in files:
            file = os.path.join(here, name)
            if name.startswith(".") or name == "Thumbs.db" or not os.path.isfile(file):
                continue
            found.append(os.path.relpath(file, folder).replace(os.sep, "/"))
    images = []
    others = Counter[str]()
    endings = image_endings()
    for path in sorted(found):
        ending = os.path.splitext(path)[1].lower()
        if ending in endings:
            images.append(path)
        else:
            others[ending if ending and is_text(ending) else "without an ending"] += 1
    return Listing(tuple(images), others)


def is_text(name: str) -> bool:
    """Return whether a file name is valid text; a name in another encoding than the system's is
    not.
    """
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def spelling(path: str) -> str:
    """Write the accents of a path in one way, independent of its system."""
    return unicodedata.normalize("NFC", path)


def read_images(
    files: Sequence[Path] | Sequence[bytes],
    names: Sequence[str],
    findings: Findings,
    *,
    size: int | None = None,
    channels: int | None = None,
    fit: str = "crop",
    levels: tuple[float | None, float | None] = (None, None),
    fitted: Sequence[bool] | np.ndarray | None = None,
) -> Pictures:
    """Decode image files, in threads, because Pillow decodes and resizes without Python's lock.

    Args:
        files: [m] paths, or contents.
        names: [m], names in messages.
        findings: skipped files are a note; unreadable kinds of files, no remaining image, or too
            little memory are a problem.
        size: side of the square images; by default the images' own if all are equal, otherwise 64.
        channels: 1 (grey) or 3 (colour); by default 3 if an image is in colour.
        fit: "crop": the largest part in the middle. "stretch": all of it, whatever the shape.
            "pad": all of it, with black borders. "square": as "crop", cut at whole pixels.
        levels: values of "deep" images that are shown as black and white; by default 0 and the
            smallest 2^b - 1 that none exceeds.
        fitted: [m], images whose values choose black and white; by default all.

    Returns:
        The usable images, rotated by their EXIF data, and the conversion.

    Raises:
        ValueError: black is not below white.
    """
    facts = _heads(files, names, findings)
    known = [one for one in facts if isinstance(one, Facts)]
    height, width, depth = _shape(known, size, channels, findings)
    chosen = known
    if fitted is not None:
        chosen = [one for row, one in enumerate(facts) if isinstance(one, Facts) and fitted[row]]
    kinds = tuple(sorted({one.kind for one in chosen or known}))
    scale = _levels(known, chosen, levels, findings)
    reading = ImageReading(height, width, depth, fit, scale, kinds)
    return _decoded(files, names, facts, reading, findings)


def read_alike(
    files: Sequence[Path], names: Sequence[str], findings: Findings, reading: ImageReading
) -> Pictures:
    """Decode image files with an earlier conversion; note differences from the earlier images.

    Args:
        files: [m] paths.
        names: [m], names in messages.
        findings: as for `read_images`.
        reading: conversion of the earlier images.
    """
    found = _decoded(files, names, _heads(files, names, findings), reading, findings)
    if other := sum(facts.size != (reading.width, reading.height) for facts in found.facts):
        ways = {"pad": "padded", "stretch": "stretched"}
        findings.notes.append(
            f"images of other sizes than {reading.width}x{reading.height}: {other:,}; they are "
            f"{ways.get(reading.fit, 'cropped')} as in training"
        )
    words: dict[Kind, str] = {
        "grey": "in grey",
        "colour": "in colour",
        "deep": "with 16 bits",
    }
    for kind, count in Counter(facts.kind for facts in found.facts).items():
        if kind not in reading.kinds:
            seen = " and ".join(words[one] for one in reading.kinds)
            findings.notes.append(
                f"images {words[kind]}: {count:,}; the model was trained on images {seen} alone"
            )
    return found


def _decoded(
    files: Sequence[Path] | Sequence[bytes],
    names: Sequence[str],
    facts: Sequence[Facts | str],
    reading: ImageReading,
    findings: Findings,
) -> Pictures:
    """Decode the files with readable heads."""
    shape = reading.height, reading.width, reading.channels
    needed = len(files) * math.prod(shape)
    if needed > _memory():
        findings.problems.append(
            f"{counted(len(files), 'image')} of {reading.width}x{reading.height}x"
            f"{reading.channels} take {needed / 1e9:,.0f} GB, more than this machine has; give a "
            f"smaller size than {max(shape[:2])}"
        )
    if findings.problems:
        return Pictures(np.empty((0, *shape), np.uint8), np.empty(0, int), reading)

    def decode(row: int) -> np.ndarray | str:
        if isinstance(head := facts[row], str):
            return head
        if head.kind == "deep" and reading.levels is None:
            return "with 16 bits, and not of 8 as in training"
        try:
            with _opened(files[row]) as image:
                return shown(image, shape, reading.fit, reading.levels)
        except Exception as error:
            return f"cut short or damaged ({short(error)})"

    x, rows = read_each(decode, names, shape, findings)
    used = tuple(one for row in rows if isinstance(one := facts[row], Facts))
    white = reading.levels[1] if reading.levels else 0
    beyond = [one.highest for one in used if one.kind == "deep" and one.highest > white]
    if beyond:
        findings.notes.append(
            f"images with values above {white:,g}, which are shown as white: {len(beyond):,}, up "
            f"to {max(beyond):,g}"
        )
    return Pictures(x, rows, reading, used)


def in_threads(function: Callable, items: Sequence) -> list:
    """Call a function for each item in threads; return the results in the items' order."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(function, items))


def read_each(
    read: Callable[[int], np.ndarray | str],
    names: Sequence[str],
    shape: tuple[int, int, int],
    findings: Findings,
) -> tuple[np.ndarray, np.ndarray]:
    """Read images in threads, and count those that cannot be used.

    Args:
        read: row -> image, uint8, or the reason why it cannot be used; reasons that differ only in
            "(...)" count as one.
        names: [m] of the images, for messages.
        shape: height, width, channels.
        findings: skipped images are a note, or a problem if none remains.

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
    times = Counter(kind for kind in kinds if kind is not None)
    if times:
        first = dict(zip(kinds[::-1], names[::-1], strict=True))
        listed = "; ".join(
            f"{count:,} {kind}, first {first[kind]}" for kind, count in times.most_common()
        )
        text = f"{times.total():,} of {counted(len(names), 'image')} cannot be used: {listed}"
        (findings.notes if len(rows) else findings.problems).append(text)
    return x if len(rows) == len(x) else x[rows], rows


def _opened(file: Path | bytes) -> Image.Image:
    return Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=_formats())


def _heads(
    files: Sequence[Path] | Sequence[bytes], names: Sequence[str], findings: Findings
) -> list[Facts | str]:
    """Read the heads of all files, and refuse unreadable kinds."""
    Image.init()  # before threads start
    facts = in_threads(lambda row: _facts(files[row]), range(len(files)))
    for kind, how in MENDED.items():
        rows = [row for row, one in enumerate(facts) if one == kind]
        if rows:
            named = ", ".join(names[row] for row in rows[:SHOWN])
            findings.problems.append(
                f"{counted(len(rows), 'image')} {kind}: {named}{', ...' * (len(rows) > SHOWN)}; "
                f"images have 8 bits in grey or RGB, or 16 bits in grey. In Python: {how}"
            )
    return facts


def _facts(file: Path | bytes) -> Facts | str:
    """Return the facts from the head of a file, with the value range for "deep" images, or the
    reason why it cannot be used.
    """
    if isinstance(file, Path) and file.suffix.lower() == ".dcm":
        return _DICOM
    try:
        if not (len(file) if isinstance(file, bytes) else file.stat().st_size):
            return "0 bytes"
        with _opened(file) as image:
            if getattr(image, "n_frames", 1) > 1:
                return _PAGES
            if image.mode in ("I", "F"):
                return _SIGNED
            # Several channels with 16 bits: Pillow would only return the upper 8.
            if (kind := KINDS.get(image.mode)) is None or (
                kind != "deep" and ";16" in str(getattr(image, "tile", ""))
            ):
                return _COLOURS
            size = image.size
            if size[0] != size[1] and image.getexif().get(ExifTags.Base.Orientation) in TURNED:
                size = ImageOps.exif_transpose(image).size
            return Facts(size, kind, float(np.asarray(image).max()) if kind == "deep" else 255)
    except UnidentifiedImageError:
        return "no image, whatever its name says"
    except Exception as error:
        return f"cut short or damaged ({short(error)})"


def short(error: Exception) -> str:
    """Return an error in one line."""
    return " ".join(str(error).split())[:80] or type(error).__name__


def _shape(
    known: Sequence[Facts], size: int | None, channels: int | None, findings: Findings
) -> tuple[int, int, int]:
    """Choose height, width and channels for all images, and note if these differ."""
    sizes = sorted({one.size for one in known}, key=lambda both: (both[0] * both[1], both))
    if len(sizes) > 1 and size is None:
        smallest, largest = (f"{width}x{height}" for width, height in (sizes[0], sizes[-1]))
        findings.notes.append(
            f"images have {len(sizes):,} sizes, from {smallest} to {largest} pixels; all become "
            f"{SIZE}x{SIZE}, or what data.size says"
        )
    colour = sum(one.kind == "colour" for one in known)
    if channels is None and 0 < colour < len(known):
        findings.notes.append(
            f"images in grey: {len(known) - colour:,}, in colour: {colour:,}; all are read as "
            "colour, or with data.channels=1 as grey"
        )
    width, height = sizes[0] if size is None and len(sizes) == 1 else (size or SIZE, size or SIZE)
    return height, width, channels or (3 if colour else 1)


def _memory() -> float:
    """Return the bytes of this machine's memory; infinite if the system does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def _levels(
    known: Sequence[Facts],
    chosen: Sequence[Facts],
    given: tuple[float | None, float | None],
    findings: Findings,
) -> Levels:
    """Choose the values that become 0 and 255 from the chosen "deep" images, the same for all
    images.
    """
    deep = [one.highest for one in known if one.kind == "deep"]
    if not deep:
        if given != (None, None):
            findings.notes.append(
                "data.black and data.white have no effect: all images have 8 bits"
            )
        return None
    highest = max([one.highest for one in chosen if one.kind == "deep"] or deep)
    black = given[0] or 0.0
    white = 2.0 ** max(int(highest).bit_length(), 8) - 1 if given[1] is None else given[1]
    if white <= black:
        raise ValueError(f"white is {white:,g} and black {black:,g}; white must be greater")
    others = len(known) - len(deep)
    kept = f"; the values of {counted(others, 'other')} are taken as they are" if others else ""
    findings.notes.append(
        f"images with 16 bits: {len(deep):,}, up to {highest:,g}; {black:,g} to {white:,g} become "
        f"0 to 255, or data.black to data.white{kept}"
    )
    return black, white


def _cut_square(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Cut out the middle, at whole pixels, and resize it."""
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return image.crop((left, top, left + side, top + side)).resize(size, Image.Resampling.BILINEAR)


FITS: dict[str, Callable[[Image.Image, tuple[int, int]], Image.Image]] = {
    "crop": partial(ImageOps.fit, method=Image.Resampling.BILINEAR),
    "pad": partial(ImageOps.pad, method=Image.Resampling.BILINEAR),
    "stretch": partial(Image.Image.resize, resample=Image.Resampling.BILINEAR),
    "square": _cut_square,
}


def shown(
    image: Image.Image,
    shape: tuple[int, int, int],
    fit: str = "crop",
    levels: Levels = None,
) -> np.ndarray:
    """Return an image as uint8 [H, W, C]; `fit` and `levels` as for `read_images`."""
    height, width, channels = shape
    image = ImageOps.exif_transpose(image)
    if KINDS.get(image.mode) == "deep":
        black, white = levels or (0, 255)
        values = np.asarray(image).astype(np.float32) - np.float32(black)
        image = Image.fromarray(
            np.clip(np.rint(values * (255 / (white - black))), 0, 255).astype(np.uint8)
        )
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = FITS[fit](image, (width, height))
    return np.asarray(image).reshape(height, width, -1)
