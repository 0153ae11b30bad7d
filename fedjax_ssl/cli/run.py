"""`fedjax-ssl run`: one experiment."""

import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedjax_ssl import command_line, runs
from fedjax_ssl import config as configs
from fedjax_ssl.cli import listing
from fedjax_ssl.cli.listing import docstring, paragraph
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.runs.divergence import EXIT_CODE as DIVERGED
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.shipped import docs

_COLUMN = 38  # where the text about a field begins
USAGE = "usage: fedjax-ssl run NAME[:ARGUMENT] [--workdir FOLDER] [--FIELD=VALUE ...]"
HELP = f"""{USAGE}

Trains one experiment. The same command again goes on where the last one stopped.

  NAME                of a shipped config (`fedjax-ssl list configs`), or a file of your own:
                      my_study/config.py
  ARGUMENT            of the config: its help says what it takes
  --workdir FOLDER    where everything is written; runs/NAME by default
  --FIELD=VALUE       a setting, for example --optimizer.learning_rate=0.1; also
                      --config.FIELD=VALUE and --set FIELD=VALUE. None gives a field back to its
                      default where it has one of its own
  --profile           say in the end where the time went, and what would help
  --quiet             print nothing but notes and errors
  --help              behind NAME: every field of the config, its value, what is allowed and what
                      it means

`python -m fedjax_ssl.main --config NAME ...` is the same."""


class Asked(NamedTuple):
    """Arguments of a command line."""

    name: str | None
    workdir: Path | None
    settings: list[tuple[str, str]]
    help: bool
    quiet: bool


def main(arguments: list[str]) -> int:
    """Run what the arguments say, or prints help.

    Returns:
        0, or `DIVERGED`.

    Raises:
        ConfigError: and what else `fedjax_ssl.runs.loop.run` raises; `fedjax_ssl.cli.main` makes
            messages of it.
    """
    asked = parse(arguments)
    if asked.name is None:
        if not asked.help:
            raise ConfigError(f"the config's name is missing\n{USAGE}")
        print(f"{HELP}\n")
        return listing.main([])
    with command_line.notes_instead_of_warnings():
        if asked.help:
            print(describe_config(asked.name, asked.settings))
            return 0
        config = configs.load(asked.name, asked.settings)
        command_line.use_compilation_cache()
        command_line.map_large_buffers()
        # Both before anything is computed.
        alone = runs.settings(config.distributed) is None
        command_line.use_processor(
            config.get("threads"), config.federated.devices if alone else None
        )
        team = runs.start(config.distributed)
        workdir = asked.workdir or Path("runs") / configs.find(asked.name).run_name
        try:
            summary = run(config, workdir, team, Shared(own_process=alone), quiet=asked.quiet)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(_what_follows(workdir)) from stop
    return runs.leave(DIVERGED, f"error: {summary['diverged']}") if "diverged" in summary else 0


def _what_follows(workdir: Path) -> str:
    """Return what the same command does after a stop."""
    rounds = Checkpoints(workdir).rounds()
    if not rounds:
        return "there is no checkpoint yet: the same command starts from the beginning"
    return f"the same command goes on after round {rounds[-1]}, of the last checkpoint"


def parse(arguments: list[str]) -> Asked:
    """Read a command line; whether the fields exist is not looked at.

    Raises:
        ConfigError: an argument that means nothing.
    """
    names: list[str] = []
    settings: list[tuple[str, str]] = []
    workdir = None
    asked_for_help = False
    quiet = "--quiet" in arguments
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option in ("-h", "--help", "--quiet"):
            asked_for_help |= option != "--quiet"
            continue
        if (
            option == "--profile"
            and not equals
            and not (rest and rest[0].lower() in ("true", "false"))
        ):
            settings.append(("profile", "true"))
            continue
        if not option.startswith("--"):
            names.append(f"{option}{equals}{value}")
            continue
        if not equals and (not rest or rest[0].startswith("--")):
            raise ConfigError(f"{option} needs a value: {option}=VALUE\n{USAGE}")
        value = value if equals else rest.pop(0)
        if option == "--workdir":
            workdir = Path(value)
        elif option == "--config":
            names.insert(0, value)
        elif option != "--set":
            settings.append((option.removeprefix("--"), value))
        elif "=" in value:
            field, _, value = value.partition("=")
            settings.append((field, value))
        else:
            raise ConfigError(f"--set {value} has no value; give --set FIELD=VALUE\n{USAGE}")
    if names[1:]:
        raise ConfigError(f"unexpected argument {names[1]!r}\n{USAGE}")
    return Asked(names[0] if names else None, workdir, settings, asked_for_help, quiet)


def describe_config(name: str, settings: Iterable[tuple[str, str]] = ()) -> str:
    """Write the docstring of a config's file, and a paragraph for each of its fields.

    Args:
        name: as of `fedjax_ssl.config.load`.
        settings: likewise; what another method or model brings is shown instead.

    Raises:
        ConfigError: as `load`.
    """
    config = configs.load(name, settings)
    path = configs.find(name).path
    width = max(min(shutil.get_terminal_size().columns, 120), 60)
    lines = [
        docstring(path) or str(path),
        "",
        f"Fields of {name}, with their values. Any of them: --FIELD=VALUE",
    ]
    for _, fields in itertools.groupby(
        configs.describe(config), lambda one: one.field.rpartition(".")[0]
    ):
        lines.append("")
        for one in fields:
            text = f"{one.meaning} [{one.allowed}]".strip()
            lines.append(
                paragraph(f"--{one.field}={configs.as_text(one.value)}", text, _COLUMN, width)
            )
    return "\n".join([*lines, "", f"docs/ is {docs()}"])
