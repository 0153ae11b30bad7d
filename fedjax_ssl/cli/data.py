"""`fedjax-ssl data`: list datasets, describe one, and check a user's own."""

import argparse
import logging
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_ssl import data
from fedjax_ssl.cli import one_of, parser, split
from fedjax_ssl.cli.listing import print_list
from fedjax_ssl.cli.proposal import FEW_TESTED, SMALL, labels_tested, propose
from fedjax_ssl.config import ConfigError, default, naming, options, with_settings
from fedjax_ssl.errors import counted
from fedjax_ssl.registry import check_known

COMMANDS = ("list", "info", "check", "split", "download")
HELP = """Lists datasets, describes one, and checks your own data.

  data list                          list the names of all datasets
  data info NAME                     describe a dataset: counts, how to get it, terms of use
  data check PATH [--data.X=VALUE]   check your own folder of images, table or .npz: contents,
                                     problems, and a command that trains on it
  data split CONFIG [--seeds 5]      write files that say which client has which example and label
  data download NAME                 download a published dataset, check and convert it"""
MANY = 20  # most classes and clients that are listed one by one


def main(arguments: list[str]) -> int:
    """Print the list, facts about one dataset, or the faults of a user's own data.

    Returns:
        0; 2 if a user's own data cannot be trained on.

    Raises:
        ConfigError: an unknown dataset or option, or a file whose content does not fit.
    """
    if arguments[:1] == ["split"]:
        return split.main(arguments[1:])
    asked, settings = _parse(arguments)
    if asked.what == "list":
        print_list("datasets")
        return 0
    with naming():
        if asked.what == "check":
            return _check(asked, settings)
        if ":" not in asked.name:
            check_known("dataset", asked.name, list(data.SOURCES))
        if asked.what == "info":
            print(describe(asked.name, asked.root))
            return 0
        return _download(asked, _options(asked.name, settings))


def _check(asked: argparse.Namespace, settings: list[tuple[str, str]]) -> int:
    """Print the content of a user's own data, and every fault in it."""
    path = Path(asked.name)
    named = dict(settings)
    source = named.pop("data.name", None) or data.source_of(
        path.expanduser(), named.get("data.file_column", "file")
    )
    check_known("source of your own", source, data.OWN)
    found = data.check(path, source, root=asked.root, **_options(source, list(named.items())))
    print(f"{path}: read as {source!r}, {data.available()[source]}")
    if found.dataset is not None:
        print(f"\n{_table(_contents(found.dataset))}")
    for title, lines in (("worth a look", found.notes), ("problems", found.problems)):
        if lines:
            listed = (
                textwrap.fill(line, 116, initial_indent="  - ", subsequent_indent="    ")
                for line in lines
            )
            print(f"\n{title}:", *listed, sep="\n")
    if found.dataset is None:
        given = [f"--{field}={value}" for field, value in settings]
        again = shlex.join(["fedjax-ssl", "data", "check", asked.name, *given])
        print(f"\nnot ready: mend the problems, or name what they ask for; then: {again}")
        return 2
    read_by = {"data.path": asked.name, **named}
    if asked.root:
        read_by["data.root"] = asked.root
    command, composed = propose(found.dataset, source, read_by, found.standardize)
    if isinstance(command, str):
        print(f"\nnot ready: {command}")
        return 2
    place = path.expanduser().resolve()
    runs = f"runs/{place.name if place.is_dir() else place.stem}"
    method = command.proposal.method
    print(f"\n{method}: {command.proposal.why}\nready: {command.line(f'{runs}-{method}')}")
    if source == "folder" and max(found.dataset.input_shape) > SMALL:
        print(f"quick first look: {command.quick(f'{runs}-quick')}")
    if composed is not None:
        line = composed.line(f"{runs}-compose")
        print(f"\nalternative, {composed.proposal.why}\nready: {line}")
    tested = labels_tested(found.dataset)
    if command.baseline or tested < FEW_TESTED:
        beside = f" beside {command.baseline}" * bool(command.baseline)
        few = f", since {counted(tested, 'labelled test example')} a run say little"
        few *= tested < FEW_TESTED
        print(f"\nwith error bars{beside}{few}: {command.sweep(runs)}")
    return 0


def _options(source: str, settings: list[tuple[str, str]]) -> dict[str, Any]:
    """Read the options of a source from text, as `run` does."""
    section = with_settings(default("fedavg"), [("data.name", source), *settings]).data
    given = {name: section.get(name) for name in data.SOURCES.options(source)}
    known = [f"data.{name}" for name in given]
    if other := sorted({field for field, _ in settings}.difference(known)):
        raise ConfigError(
            f"{other[0]} is no option of {source!r}; its options: {', '.join(known) or 'none'}; "
            "settings that hold examples out belong to `run`"
        )
    return options(given)


def _download(asked: argparse.Namespace, given: dict[str, Any]) -> int:
    """Download missing files, convert them to the form that opens at once, and describe them."""
    log = logging.getLogger("fedjax_ssl.data")
    shown = logging.StreamHandler(sys.stderr)
    level = log.level
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    try:
        dataset = data.load(asked.name, root=asked.root, **given)
    finally:
        log.removeHandler(shown)
        log.setLevel(level)
    print(_table(_contents(dataset) | {"terms": _terms(asked.name)}))
    return 0


def describe(name: str, root: str | None = None) -> str:
    """Describe a dataset: counts if it is here, how to get it if it is not, and its terms.

    Args:
        name: name of `data.SOURCES`, or "module:function".
        root: folder of all datasets.

    Raises:
        ValueError: as `data.load`.
    """
    lines = {name: data.available().get(name, "of your own")}
    if name in data.OWN:
        return _table(
            lines
            | {"content": "your file's: fedjax-ssl data check PATH", "terms": data.TERMS[name]}
        )
    try:
        lines |= _contents(data.load(name, root=root, download=False))
    except data.DatasetUnavailable as error:
        return _table(lines | {"terms": _terms(name)}) + f"\n\n{error}"
    return _table(lines | {"terms": _terms(name)})


def _contents(dataset: data.Dataset) -> dict[str, str]:
    """Describe a dataset's content, a line each."""
    train = dataset.train
    test = dataset.test
    names = [str(name) for name in dataset.extra.get("features", ())]
    vector = f"features: {_few(names)}" if names else "features"
    kind = vector if train.x.ndim == 2 else "height x width x channels"
    if dataset.views is not None:
        weak, strong = dataset.views
        kind = f"the example, {weak} weak and {strong} strong views of it x features"
    none = (
        "none of its own; `run` holds some out: --data.test_clients, test_fraction or "
        "client_test_fraction"
    )
    counts = np.bincount(train.y[train.y >= 0], minlength=dataset.num_classes)
    lines = {
        "training": _split_in_words(train),
        "test": none if test is None else _split_in_words(test),
        "inputs": f"{' x '.join(map(str, train.x.shape[1:]))} ({kind}), {train.x.dtype}",
        "classes": _shares(dataset.class_names, counts, "examples"),
    }
    if dataset.coarse_names:
        lines["coarse labels"] = f"{len(dataset.coarse_names)}: {_few(dataset.coarse_names)}"
    if train.client is None:
        lines["clients"] = (
            "1, as nothing names them; say which column, folder or array does, or choose a "
            "partition, such as --partition.name=iid --partition.num_clients=10"
        )
    else:
        ids, counts = np.unique(train.client, return_counts=True)
        names = [str(i) if dataset.client_names is None else dataset.client_names[i] for i in ids]
        lines["clients"] = _shares(names, counts, "training examples")
        labelled = np.array([(train.y[train.client == number] >= 0).sum() for number in ids])
        if 0 < labelled.sum() < len(train):
            at = int((labelled > 0).sum())
            lines["labels"] = (
                f"{labelled.sum():,} of {len(train):,} training examples have one, at {at:,} of "
                f"{_shares(names, labelled, 'labelled training examples', 'clients')}"
            )
    return lines


def _terms(name: str) -> str:
    return data.TERMS.get(name.partition(":")[0], "not stated")


def _split_in_words(split: data.Split) -> str:
    parts = [counted(len(split), "example")]
    if without := int((split.y < 0).sum()):
        parts.append(f"{without:,} of them without a class label")
    weak = {"a coarse label": split.coarse, "a set": split.set}
    parts += [
        f"{int((have >= 0).sum()):,} with {what}" for what, have in weak.items() if have is not None
    ]
    return ", ".join(parts)


def _shares(names: Sequence[str], counts: np.ndarray, what: str, whose: str = "") -> str:
    """Count examples of each class or client, or return the range of the counts."""
    number = f"{len(names):,} {whose}".rstrip()
    if len(names) > MANY:
        return f"{number}: {_few(names)}; {counts.min():,} to {counts.max():,} {what} each"
    return f"{number}: " + ", ".join(
        f"{name} ({count:,})" for name, count in zip(names, counts, strict=True)
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= MANY else f"{names[0]}, {names[1]}, ..., {names[-1]}"


def _table(lines: dict[str, str]) -> str:
    width = max(map(len, lines)) + 2
    return "\n".join(f"{name:{width}}{line}" for name, line in lines.items())


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[tuple[str, str]]]:
    """Parse the command, and settings of `config.data` as text."""
    own = parser("data", HELP)
    own.add_argument(
        "what", type=one_of("command", COMMANDS), metavar=" | ".join(COMMANDS), help="see above"
    )
    own.add_argument(
        "name",
        nargs="?",
        metavar="NAME | PATH",
        help="name of a dataset, or your own module:function",
    )
    own.add_argument(
        "--root", help="folder of all datasets (default: $FEDJAX_SSL_DATA or ~/.cache/fedjax_ssl)"
    )
    asked, rest = own.parse_known_args(arguments)
    if asked.what in ("info", "download") and asked.name is None:
        own.error(f"data {asked.what} needs a NAME: " + ", ".join(data.SOURCES))
    if asked.what == "check" and asked.name is None:
        own.error(
            "data check needs a PATH: a folder of images, a CSV or Parquet file, or an .npz file"
        )
    settings = []
    for word in rest:
        field, equals, value = word.removeprefix("--").removeprefix("config.").partition("=")
        if asked.what in ("list", "info") or not equals or not field.startswith("data."):
            own.error(
                f"unknown argument {word!r}; check and download take reading options, "
                "--data.OPTION=VALUE; other settings belong to `run`"
            )
        settings.append((field, value))
    return asked, settings
