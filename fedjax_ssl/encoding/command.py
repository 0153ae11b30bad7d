"""The command `fedjax-ssl features CONFIG --encoder NAME --output FOLDER`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import jax
import rich.progress

from fedjax_ssl import cli, command_line, processor
from fedjax_ssl import config as configs
from fedjax_ssl.cli.run import parse
from fedjax_ssl.config import ConfigError
from fedjax_ssl.data import Dataset
from fedjax_ssl.data.images.weak import Augmentation
from fedjax_ssl.encoding import write
from fedjax_ssl.encoding.encoders import Moments, encoder
from fedjax_ssl.errors import naming
from fedjax_ssl.folder.progress import Console
from fedjax_ssl.runs.build import augmentation_of, load_experiment

HELP = """Encodes every example of a config's dataset once, with weak and strong views of it. Then
`fedjax-ssl run features:METHOD --data.path=FOLDER` trains heads on the features. Repeat the command
to continue after a stop.

  --encoder NAME    timm:NAME, a network of timm with its weights, or those of --weights FILE;
                    my:net, a function (inputs as stored, [n, ...]) -> [n, d], or a torch module;
                    a run folder: its network without the last layer
  --FIELD=VALUE     a setting of the config, for example --data.path=scans or
                    --strong_augment.name=fixmatch"""
_TENTHS = 10  # lines of progress without a terminal


def main(arguments: list[str]) -> int:
    """Encode a dataset as the arguments say.

    Returns:
        0.

    Raises:
        ConfigError: a setting cannot be used.
        UserError: the encoder, or the folder, does not fit.
    """
    given, rest = _parser().parse_known_args(arguments)
    asked = parse([given.config, *rest])
    processor.check_platform()
    command_line.use_compilation_cache()
    with command_line.notes_instead_of_warnings(), naming():
        config = load_experiment(configs.load(given.config, asked.settings))
        # Values from the config file are for the config's own network, so only typed ones count.
        typed = {field.removeprefix("config.") for field, _ in asked.settings}
        data = config.config.data
        own = {one: data[one] for one in Moments._fields if f"data.{one}" in typed}
        moments = Moments(**own)
        wanted = _wanted(given, config.config, config.dataset, moments)
        _write(wanted, given.output, given.config)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = cli.parser("features", HELP)
    add = parser.add_argument
    add("config", help="config that names the dataset and the augmentation, or its file")
    add("--encoder", required=True, metavar="NAME", help="see above")
    add("--output", required=True, type=Path, metavar="FOLDER", help="folder for the features")
    add("--weights", type=Path, metavar="FILE", help=".safetensors or .pth with the weights")
    add(
        "--views",
        type=int,
        default=4,
        metavar="N",
        help="number of weak and of strong views (default: 4)",
    )
    side = "side of the resized images (default: that of the network's training)"
    add("--side", type=int, metavar="PIXELS", help=side)
    add("--block", type=int, default=64, metavar="N", help="examples per batch (default: 64)")
    return parser


def _wanted(
    given: argparse.Namespace, config: Any, dataset: Dataset, moments: Moments
) -> write.Wanted:
    for name, least in (("views", 0), ("block", 1), ("side", 1)):
        value = getattr(given, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} is {value}; it must be at least {least}")
    kinds = ("augment", "strong_augment")
    augmentation = {kind: config[kind].to_dict() for kind in kinds}
    return write.Wanted(
        dataset,
        encoder(given.encoder, dataset, given.weights, given.side, moments),
        given.encoder,
        _augmentation(kinds[0], config, dataset, given.views),
        _augmentation(kinds[1], config, dataset, given.views),
        given.views,
        augmentation,
        config.seed,
        given.block,
    )


def _augmentation(kind: str, config: Any, dataset: Dataset, views: int) -> Augmentation | None:
    """Compile an augmentation of the config; None if it has none."""
    if config[kind].name == "none" or not views:
        return None
    return jax.jit(augmentation_of(kind, config, dataset))


def _write(wanted: write.Wanted, folder: Path, config: str) -> None:
    """Encode with a progress bar, or with lines without a terminal."""
    facts = write.describe(wanted)
    print(f"{write.in_words(facts)}, in {folder}", flush=True)
    if wanted.encoder.takes:
        print(wanted.encoder.takes, flush=True)
    for kind, count in (("augment", facts.weak), ("strong_augment", facts.strong)):
        if not count and wanted.views:
            print(f"no views of config.{kind}, whose name is 'none' in {config}", flush=True)
    number = write.total(facts)
    begin = time.perf_counter()
    told = 0
    console = Console(stderr=True, highlight=False)
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(), console=console, transient=True
    ) as bar:
        task = bar.add_task("encoding", total=number)
        for done in write.write(wanted, facts, folder):
            bar.update(task, completed=done)
            tenth = done * _TENTHS // number
            if tenth > told and not console.is_terminal:
                told = tenth
                seconds = time.perf_counter() - begin
                print(f"  {done:,} of {number:,}, {seconds:.0f} s", file=sys.stderr, flush=True)
    held_out = " --data.client_test_fraction=0.2" if wanted.dataset.test is None else ""
    print(f"ready: fedjax-ssl run features --data.path={folder}{held_out}")
    if held_out:
        print("  (the data have no test examples: it tests on 20 % of each client's examples)")
    method = "fixmatch" if facts.weak and facts.strong else "xclp"
    print(f"with few labels: features:{method} in place of features, and --model.start=zero")
