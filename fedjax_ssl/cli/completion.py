"""`fedjax-ssl completion bash`: what a shell needs to complete the command; argcomplete does the work."""

import argparse
import os
import re

import argcomplete

from fedjax_ssl.cli import COMMANDS, PROGRAM, one_of, parser
from fedjax_ssl.shipped import shipped_configs

HOW = {
    "bash": f'eval "$({PROGRAM} completion bash)"    # in ~/.bashrc',
    "zsh": f'eval "$({PROGRAM} completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": f"{PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish",
}


def main(arguments: list[str]) -> int:
    """Prints the script of a shell.

    Returns:
        0.
    """
    lines = "\n".join(f"  {name:6}{line}" for name, line in HOW.items())
    own = parser("completion", f"Prints what lets a shell complete {PROGRAM}.\n\n{lines}")
    own.add_argument("shell", type=one_of("shell", HOW), metavar="SHELL", help=", ".join(HOW))
    print(argcomplete.shellcode([PROGRAM], shell=own.parse_args(arguments).shell))
    return 0


def complete() -> None:
    """Answers a shell that asks what can come next, and ends the process. Files are completed where nothing else is.

    Behind the name of a config, `run` takes its fields as options, and both `run` and `sweep` take them behind `--set`.
    For these jax is imported, which takes a second or two; not for anything else.
    """
    own = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
    own.add_argument("--version", action="store_true")
    own.add_argument("--help", action="store_true")
    commands = own.add_subparsers()
    places = {
        "run": [*shipped_configs()],
        "sweep": [*shipped_configs()],
        "data": ["list", "info", "check", "download", "verify"],
        "list": _kinds(),
        "completion": [*HOW],
    }
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.line, add_help=False, allow_abbrev=False)
        place = one.add_argument("place", nargs="*")
        if name in places:
            place.completer = _one_of(places[name])  # type: ignore[attr-defined]
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    before, _, asked = line.rpartition(" ")
    words = before.split()[1:]
    if words[:1] in (["run"], ["sweep"]):
        _add_options(commands.choices[words[0]], words, asked.startswith("--"))
    argcomplete.autocomplete(own, always_complete_options=False)


def _add_options(command: argparse.ArgumentParser, words: list[str], of_interest: bool) -> None:
    """The options of `run` or `sweep`, and fields behind `--set`.

    Args:
        command: gets them.
        words: of the command line, before the one that is asked for.
        of_interest: whether that one is an option.
    """
    behind_set = command.add_argument("--set", action="append")
    behind_set.completer = lambda **others: [f"{field}=" for field in _fields(words)]  # type: ignore[attr-defined]
    options = ["--workdir"]
    if of_interest and words[0] == "run":
        options += [f"--{field}" for field in _fields(words)]
    elif of_interest:
        from fedjax_ssl.sweep.command import parser as sweep_parser

        options += [option for option in sweep_parser().options() if option not in ("--set", "--workdir")]
    for option in options:
        command.add_argument(option)


def _fields(words: list[str]) -> list[str]:
    """The fields of the config that a command line names; none where it names none, or cannot be read yet."""
    from fedjax_ssl import config as configs
    from fedjax_ssl.config import ConfigError

    name = next((word for word in words[1:] if word.partition(":")[0] in shipped_configs() or ".py" in word), None)
    # What is named brings fields of its own; of several methods of a sweep, the first.
    named = re.findall(r"(?:^| |-|=|config\.)([a-z_]+\.name)[= ]([^ ,]+)", " ".join(words))
    try:
        return [] if name is None else [one.field for one in configs.describe(configs.load(name, named))]
    except ConfigError:
        return []


def _kinds() -> list[str]:
    from fedjax_ssl.cli.listing import KINDS

    return [*KINDS]


def _one_of(words: list[str]):
    """These words, and files: a config may be one."""
    files = argcomplete.FilesCompleter()
    return lambda prefix, **others: [*(word for word in words if word.startswith(prefix)), *files(prefix, **others)]
