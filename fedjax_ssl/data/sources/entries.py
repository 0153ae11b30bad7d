"""What a catalogue entry is: the files of a published dataset, how they become arrays, and its terms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedjax_ssl.data.dataset import Dataset

# Where a published dataset comes from: whatever is there, its original files, or what TensorFlow Datasets prepared.
Source = Literal["auto", "original", "tfds"]
EMBEDDED = 'load("digits") or load("glyphs")'


@dataclass(frozen=True)
class RemoteFile:
    """One file of a dataset."""

    name: str  # its file name, as published
    urls: tuple[str, ...]  # addresses, the first that answers is taken
    size: int | None = None  # length in bytes, None where nobody states it
    sha256: str | None = None  # digest, None where nobody states it (that of the first download is then kept)


@dataclass(frozen=True)
class Prepared:
    """The same dataset in TensorFlow Datasets."""

    name: str  # NAME or NAME/CONFIG there
    facts: Mapping[str, Any]  # fields of `Dataset` as the original has them: names of classes, mean, deviation
    options: Mapping[str, Any] = field(default_factory=dict)  # of `tfds.load_tfds`
    first_label: int = 0  # number of the first class there


@dataclass(frozen=True)
class Archive:
    """One published dataset."""

    name: str  # it is loaded by
    description: str  # one line for `available`
    files: tuple[RemoteFile, ...]  # what must be at hand
    read: Callable[[Mapping[str, Path]], Dataset]  # {file name: path} -> dataset; `formats.FormatError` for damage
    terms: str  # licence and whom to cite
    substitute: str = f"run on data that needs no download: {EMBEDDED}"  # where the dataset cannot be had
    version: int = 1  # goes into the converted cache's name; raise it when `read` changes what it returns
    variant: str = ""  # goes there too, where options decide what `read` returns
    prepared: Prepared | None = None  # None: TensorFlow Datasets does not have it, or has less
    # File names that do in place of those of `files`, such as what is in an archive; nobody knows their digests.
    alternatives: tuple[tuple[str, ...], ...] = ()
    examples: tuple[int, int] | None = None  # training and test examples as published; others are warned about
