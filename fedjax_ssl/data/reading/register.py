"""Registration of datasets; each has its own file in `fedjax_ssl.data.sources`."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

from fedjax_ssl.data.dataset import Dataset
from fedjax_ssl.data.reading.fetch import Archive, Facts, RemoteFile, load_archive

PLACES = ("root", "path", "download")  # arguments of `load`, not options of a dataset

Kind = Literal["embedded", "own", "downloaded", "library", "placed"]
F = TypeVar("F", bound=Callable[..., Any])


class Entry(NamedTuple):
    """One registered dataset."""

    load: Callable[..., Dataset]
    # ^ its parameters are the dataset's options, and paths
    description: str  # one line for lists
    terms: str  # licence and whom to cite
    kind: Kind
    facts: Facts | None = None  # facts for the options' defaults; None: unknown before reading
    archive: Callable[..., Archive] | None = None  # options -> files to download; None: no download


ENTRIES: dict[str, Entry] = {}


def dataset(
    name: str, description: str, *, terms: str, kind: Kind, facts: Facts | None = None
) -> Callable[[F], F]:
    """Register the decorated function as the loader of a dataset that is not downloaded.

    Its keyword parameters are the dataset's options; root, path and download come from `load`.

    Args:
        name: name by which the dataset is loaded.
        description: one line for lists.
        terms: licence and whom to cite.
        kind: "embedded" in the package; "own": the user's, at path=; "placed": fetched and placed
            by the user; "library": read by another library.
        facts: what is known of it before it is read.
    """

    def register(load: F) -> F:
        ENTRIES[name] = Entry(load, description, terms, kind, facts)
        return load

    return register


def published(
    name: str,
    description: str,
    *,
    terms: str,
    files: Sequence[RemoteFile],
    facts: Facts,
    **fields: Any,
) -> Callable[[F], F]:
    """Register the decorated function as the reader of a published dataset, which is downloaded.

    The function gets the paths of the files by name, and gives the dataset; its keyword parameters
    are options.

    Args:
        name: name by which the dataset is loaded.
        description: one line for lists.
        terms: licence and whom to cite.
        files: files that must exist.
        facts: facts that are known before reading; different numbers of examples give a warning.
        **fields: further fields of `Archive`.
    """

    def register(read: F) -> F:
        parameters = list(inspect.signature(read).parameters.values())[1:]
        options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in parameters]

        def archive(**given: Any) -> Archive:
            chosen = {option.name: given.get(option.name, option.default) for option in options}
            others = [o.name for o in options if chosen[o.name] != o.default]
            variant = "".join(f"-{option}={chosen[option]}" for option in others)
            read_chosen = partial(read, **chosen)
            return Archive(
                name, tuple(files), read_chosen, terms, variant=variant, facts=facts, **fields
            )

        def load(**given: Any) -> Dataset:
            places = {place: given.pop(place) for place in PLACES if place in given}
            return load_archive(archive(**given), **places)

        shared = [inspect.signature(load_archive).parameters[place] for place in PLACES]
        load.__signature__ = inspect.Signature([*shared, *options])  # type: ignore[attr-defined]
        load.__doc__ = read.__doc__
        ENTRIES[name] = Entry(load, description, terms, "downloaded", facts, archive)
        return read

    return register
