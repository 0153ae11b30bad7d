"""Datasets register themselves, each in its own file of `fedjax_ssl.data.sources`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.archives import Archive, Prepared, RemoteFile, load_archive

PLACES = ("root", "path", "download", "source")  # given by `load`, not options of a dataset

Kind = Literal["embedded", "own", "downloaded", "prepared", "placed", "random"]
F = TypeVar("F", bound=Callable[..., Any])


class Entry(NamedTuple):
    """One registered dataset."""

    load: Callable[..., Dataset]
    # ^ its parameters are the dataset's options, and places such as path
    description: str  # one line for lists
    terms: str  # licence and whom to cite
    kind: Kind
    archive: Callable[..., Archive] | None = None  # options -> what is downloaded; None: nothing is


ENTRIES: dict[str, Entry] = {}


def dataset(name: str, description: str, *, terms: str, kind: Kind) -> Callable[[F], F]:
    """Register the decorated function as the loader of a dataset that is not downloaded.

    Its keyword parameters are the dataset's options; those named root, path, download and source
    are given by `load`.

    Args:
        name: the dataset is loaded by.
        description: one line for lists.
        terms: licence and whom to cite.
        kind: "embedded" in the package; "own": the user's, at path=; "placed": fetched and placed
            by the user; "prepared" by another library; "random": invented.
    """

    def register(load: F) -> F:
        ENTRIES[name] = Entry(load, description, terms, kind)
        return load

    return register


def published(
    name: str,
    description: str,
    *,
    terms: str,
    files: Sequence[RemoteFile] | Callable[..., Sequence[RemoteFile]],
    examples: tuple[int, int] | Callable[..., tuple[int, int]] | None = None,
    prepared: Prepared | Callable[..., Prepared | None] | None = None,
    folders: Mapping[str, Callable[..., Dataset]] | None = None,
    **fields: Any,
) -> Callable[[F], F]:
    """Register the decorated function as the reader of a published dataset, which is downloaded.

    The function gets the paths of the files by name, and gives the dataset; its keyword parameters
    are options. What depends on the options may be given as a function of them.

    Args:
        name: the dataset is loaded by.
        description: one line for lists.
        terms: licence and whom to cite.
        files: that must be at hand.
        examples: number of training and test examples as published; others are warned about.
        prepared: the same dataset in TensorFlow Datasets; None: it is not there.
        folders: values of the option `form` for which the user makes a folder of files, and its
            loader.
        **fields: further fields of `Archive`.
    """
    own_folders = folders or {}

    def register(read: F) -> F:
        parameters = list(inspect.signature(read).parameters.values())[1:]
        options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in parameters]

        def archive(**given: Any) -> Archive:
            chosen = {option.name: given.get(option.name, option.default) for option in options}
            if chosen.get("form") in own_folders:
                raise ValueError(
                    f"{name} with form={chosen['form']!r} is a folder of your own making, without "
                    "files to compare with"
                )
            by_options = {"files": files, "examples": examples, "prepared": prepared, **fields}
            told = {
                field: value(**chosen) if callable(value) else value
                for field, value in by_options.items()
            }
            others = [o.name for o in options if chosen[o.name] != o.default]
            variant = "".join(f"-{option}={chosen[option]}" for option in others)
            read_chosen = partial(read, **chosen)
            return Archive(name=name, read=read_chosen, terms=terms, variant=variant, **told)

        def load(**given: Any) -> Dataset:
            places = {place: given.pop(place) for place in (*PLACES, "timeout") if place in given}
            if (folder := own_folders.get(str(given.get("form")))) is not None:
                return folder(root=places.get("root"), path=places.get("path"), **given)
            return load_archive(archive(**given), **places)

        places = [place for place in PLACES if place != "source" or prepared is not None]
        shared = [
            inspect.signature(load_archive).parameters[place] for place in (*places, "timeout")
        ]
        load.__signature__ = inspect.Signature([*shared, *options])  # type: ignore[attr-defined]
        doc = inspect.getdoc(read) or ""
        before, _, after = doc.partition("Args:\n") if "Args:\n" in doc else (f"{doc}\n\n", "", "")
        load.__doc__ = (
            f"{before}Args:\n    timeout: seconds that the network may be silent.\n{after}"
        )
        ENTRIES[name] = Entry(load, description, terms, "downloaded", archive)
        return read

    return register
