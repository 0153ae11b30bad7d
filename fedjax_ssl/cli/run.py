"""`fedjax-ssl run`: one experiment."""

import itertools
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fedjax_ssl import command_line, runs
from fedjax_ssl import config as configs
from fedjax_ssl.cli import listing
from fedjax_ssl.cli.listing import docstring, paragraph
from fedjax_ssl.config import ConfigError, Described
from fedjax_ssl.errors import did_you_mean
from fedjax_ssl.folder.checkpoint import Checkpoints
from fedjax_ssl.runs.divergence import EXIT_CODE as DIVERGED
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.shared import Shared
from fedjax_ssl.shipped import docs

_COLUMN = 38  # column at which the text about a field begins
ALL = "all"
# Name of the sections without a choice in the overview; "" has it too.
_RUN = "run"
_ABOUT = {
    _RUN: "seed, rounds, evaluations, checkpoints, metrics, precision",
    "participation": "clients that are absent or drop out",
    "early_stopping": "which model is the best, and when a run ends early",
    "tracking": "tensorboard and wandb",
    "prediction": "other predictors for the test examples, at the end of a run",
    "distributed": "several processes for one run",
}
TOPICS = {ALL, _RUN, "method", *(field.rpartition(".")[0] for field in configs.FIELDS)}
USAGE = "usage: fedjax-ssl run NAME[:ARGUMENT] [--workdir FOLDER] [--FIELD=VALUE ...]"
HELP = f"""{USAGE}

Trains one experiment. Repeat the command to continue a run that was stopped.

  NAME                a shipped config (`fedjax-ssl list configs`), or a file of your own:
                      my_study/config.py
  ARGUMENT            argument of the config; NAME --help explains it
  --workdir FOLDER    folder for the results; default: runs/NAME
  --FIELD=VALUE       a setting, for example --optimizer.learning_rate=0.1; None restores the
                      default of an optional setting
  --profile           report at the end where the time went
  --quiet             print notes and errors only
  --help              this text
  NAME --help         sections of the config, and the settings that it changes
  NAME --help method  all settings of a section: value, allowed values, meaning
  NAME --help all     all settings of the config

`python -m fedjax_ssl.main --config NAME ...` is the same command."""


class Asked(NamedTuple):
    """Arguments of a command line."""

    name: str | None
    workdir: Path | None
    settings: list[tuple[str, str]]
    help: str | None  # a section, `ALL`, or "" for the overview; None: run
    quiet: bool


def main(arguments: list[str]) -> int:
    """Run the experiment of the arguments, or print help.

    Returns:
        0, or `DIVERGED`.

    Raises:
        ConfigError: and other errors of `fedjax_ssl.runs.loop.run`; `fedjax_ssl.cli.main` turns
            them into messages.
    """
    asked = parse(arguments)
    if asked.name is None:
        if asked.help is None:
            raise ConfigError(f"the config's name is missing\n{USAGE}")
        print(f"{HELP}\n")
        if asked.help:
            return listing.main([])
        print(listing.names())
        return 0
    with command_line.notes_instead_of_warnings():
        if asked.help is not None:
            print(describe_config(asked.name, asked.settings, asked.help))
            return 0
        config = configs.load(asked.name, asked.settings)
        command_line.use_compilation_cache()
        command_line.map_large_buffers()
        # Both before any JAX computation.
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
    """Describe the effect of the same command after a stop."""
    rounds = Checkpoints(workdir).rounds()
    if not rounds:
        return "there is no checkpoint yet: the same command starts from the beginning"
    return f"the same command goes on after round {rounds[-1]}, of the last checkpoint"


def parse(arguments: list[str]) -> Asked:
    """Parse a command line, without checking whether fields exist.

    Raises:
        ConfigError: an argument without meaning.
    """
    names: list[str] = []
    settings: list[tuple[str, str]] = []
    workdir = None
    topic = None
    quiet = "--quiet" in arguments
    rest = list(arguments)
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if option == "--quiet":
            continue
        if option in ("-h", "--help"):
            if not equals and rest and rest[0] in TOPICS:
                value = rest.pop(0)
            topic = value
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
    return Asked(names[0] if names else None, workdir, settings, topic, quiet)


def describe_config(name: str, settings: Iterable[tuple[str, str]] = (), section: str = "") -> str:
    """Write the help of a config.

    Args:
        name: see `fedjax_ssl.config.load`.
        settings: likewise; options of another method or model that they name are shown instead.
        section: section to explain, or `ALL`; "": a line per section and a line per setting that
            the config changes.

    Raises:
        ConfigError: as `load`, or there is no such section.
    """
    config = configs.load(name, settings)
    path = configs.find(name).path
    width = max(min(shutil.get_terminal_size().columns, 120), 60)
    sections = {
        section or _RUN: list(fields)
        for section, fields in itertools.groupby(
            configs.describe(config), lambda one: one.field.rpartition(".")[0]
        )
    }
    end = f"docs/ is {docs()}"
    if not section:
        title = docstring(path) or str(path)
        return "\n".join([title, "", *_overview(name, sections, width), "", end])
    if section != ALL and section not in sections:
        raise ConfigError(
            f"--help: there is no section {section!r}.{did_you_mean(section, sections)} Sections: "
            f"{', '.join(sections)}, or {ALL}"
        )
    lines = [f"Settings of {name}. Change any of them: --FIELD=VALUE"]
    for fields in sections.values() if section == ALL else [sections[section]]:
        lines.append("")
        for one in fields:
            text = f"{one.meaning} [{one.allowed}]".strip()
            lines.append(paragraph(_assigned(one), text, _COLUMN, width))
    return "\n".join([*lines, "", end])


def _overview(name: str, sections: Mapping[str, list[Described]], width: int) -> list[str]:
    """Write a line per section of a config, and a line per setting that the config changes."""
    lines = [f"Sections of {name}, with the number of settings; explained by --help SECTION"]
    for section, fields in sections.items():
        choice = {one.field: one for one in fields}.get(f"{section}.name")
        about = _ABOUT.get(section, "")
        if choice:
            what, _, line = choice.meaning.partition(": ")
            about = f"{choice.value}: {line or what}"
        lines.append(_one_line(f"{section:<14} {len(fields):>3}", about, 22, width))
    lines += ["", "Settings that this config changes; change any setting by --FIELD=VALUE"]
    changed = [one for one in itertools.chain(*sections.values()) if one.changed]
    column = min(max(len(_assigned(one)) for one in changed) + 4, _COLUMN)
    return lines + [_one_line(_assigned(one), one.meaning, column, width) for one in changed]


def _assigned(one: Described) -> str:
    return f"--{one.field}={configs.as_text(one.value)}"


def _one_line(head: str, text: str, column: int, width: int) -> str:
    """Write a word and its text on one line, cut at the width."""
    line = f"  {head}".ljust(column - 1) + " " + text
    return line if len(line) <= width else f"{line[: width - 3].rstrip()}..."
