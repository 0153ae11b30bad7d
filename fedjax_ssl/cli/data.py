"""`fedjax-ssl data`: which datasets there are, and what is in one."""

import argparse

import numpy as np

from fedjax_ssl import data
from fedjax_ssl.cli import one_of, parser
from fedjax_ssl.cli.listing import print_list
from fedjax_ssl.config import naming
from fedjax_ssl.registry import check_known
from fedjax_ssl.words import counted

MANY = 20  # classes and clients that are named one by one


def main(arguments: list[str]) -> int:
    """Prints the list, or facts about one dataset.

    Returns:
        0.

    Raises:
        ConfigError: an unknown dataset, or a file whose content does not fit.
    """
    asked = _parse(arguments)
    if asked.what == "list":
        print_list("datasets")
        return 0
    with naming():
        if ":" not in asked.name:
            check_known("dataset", asked.name, list(data.SOURCES))
        print(describe(asked.name, asked.path, asked.root, asked.download))
    return 0


def describe(name: str, path: str | None = None, root: str | None = None, download: bool = False) -> str:
    """A dataset in words: counts if it is here, how to get it if it is not, and its terms.

    Args:
        name: of `data.SOURCES`, or "module:function".
        path: as of `data.load`, and so the next two.
        root: folder of all datasets.
        download: whether it may be downloaded.

    Raises:
        ValueError: as `data.load`.
        DatasetUnavailable: it cannot be read from `path`, or downloaded.
    """
    lines = {name: data.available().get(name, "of your own")}
    if name == "npz" and path is None:
        return _table(lines | {"content": "your file's: give it with --path", "terms": data.TERMS["npz"]})
    try:
        dataset = data.load(name, path=path, root=root, download=download)
    except data.DatasetUnavailable as error:
        if path is not None or download:  # it was to be there
            raise
        return _table(lines | {"terms": data.TERMS.get(name, "not stated")}) + f"\n\n{error}"
    for what, split in (("training", dataset.train), ("test", dataset.test)):
        if split is not None:
            lines[what] = _split_in_words(split, dataset)
    if dataset.test is None:
        lines["test"] = "none of its own; hold out with --data.test_clients, test_fraction or client_test_fraction"
    kind = "features" if dataset.train.x.ndim == 2 else "height x width x channels"
    lines["inputs"] = f"{' x '.join(map(str, dataset.train.x.shape[1:]))} ({kind}), {dataset.train.x.dtype}"
    lines["classes"] = _classes(dataset)
    if dataset.coarse_names:
        lines["coarse labels"] = f"{len(dataset.coarse_names)}: {_few(dataset.coarse_names)}"
    lines["clients"] = _clients(dataset)
    lines["terms"] = data.TERMS.get(name, "not stated")
    return _table(lines)


def _split_in_words(split: data.Split, dataset: data.Dataset) -> str:
    without = int((split.y < 0).sum())
    weak = {"a coarse label": split.coarse, "a set": split.set}
    parts = [counted(len(split), "example")]
    parts += [f"{without:,} of them without a class label"] * bool(without)
    parts += [f"{int((have >= 0).sum()):,} with {what}" for what, have in weak.items() if have is not None]
    return ", ".join(parts)


def _classes(dataset: data.Dataset) -> str:
    counts = np.bincount(dataset.train.y[dataset.train.y >= 0], minlength=dataset.num_classes)
    if dataset.num_classes > MANY:
        return f"{dataset.num_classes}: {_few(dataset.class_names)}; {counts.min():,} to {counts.max():,} examples each"
    return f"{dataset.num_classes}: " + ", ".join(
        f"{name} ({count:,})" for name, count in zip(dataset.class_names, counts, strict=True)
    )


def _clients(dataset: data.Dataset) -> str:
    if dataset.train.client is None:
        return "none of its own; choose a partition, such as --partition.name=iid --partition.num_clients=10"
    ids, counts = np.unique(dataset.train.client, return_counts=True)
    names = [str(i) if dataset.client_names is None else dataset.client_names[i] for i in ids]
    if len(ids) > MANY:
        return f"{len(ids):,}: {_few(names)}; {counts.min():,} to {counts.max():,} training examples each"
    return f"{len(ids)}: " + ", ".join(f"{name} ({count:,})" for name, count in zip(names, counts, strict=True))


def _few(names) -> str:
    return ", ".join(names) if len(names) <= MANY else f"{names[0]}, {names[1]}, ..., {names[-1]}"


def _table(lines: dict[str, str]) -> str:
    width = max(map(len, lines)) + 2
    return "\n".join(f"{name:{width}}{line}" for name, line in lines.items())


def _parse(arguments: list[str]) -> argparse.Namespace:
    own = parser("data", "Which datasets there are, and what is in one.")
    own.add_argument("what", type=one_of("command", ("list", "info")), metavar="list | info", help="all, or NAME alone")
    own.add_argument("name", nargs="?", metavar="NAME", help="of the list, or module:function of your own")
    own.add_argument("--path", help="the file of npz, the folder with the original files of a published dataset")
    own.add_argument("--root", help="folder of all datasets; $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl by default")
    own.add_argument("--download", action="store_true", help="download it if it is not here")
    asked = own.parse_args(arguments)
    if asked.what == "info" and asked.name is None:
        own.error("data info needs a NAME: " + ", ".join(data.SOURCES))
    return asked
