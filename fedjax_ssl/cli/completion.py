"""`fedjax-ssl completion bash`: what a shell needs to complete the command; argcomplete does the
work.
"""

import argparse
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import argcomplete

from fedjax_ssl.cli import COMMANDS, PROGRAM, load, one_of, parser
from fedjax_ssl.shipped import shipped_configs

HOW = {
    "bash": f'eval "$({PROGRAM} completion bash)"    # in ~/.bashrc',
    "zsh": f'eval "$({PROGRAM} completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": f"{PROGRAM} completion fish > ~/.config/fish/completions/{PROGRAM}.fish",
}


def main(arguments: list[str]) -> int:
    """Print the script of a shell.

    Returns:
        0.
    """
    lines = "\n".join(f"  {name:6}{line}" for name, line in HOW.items())
    own = parser("completion", f"Prints what lets a shell complete {PROGRAM}.\n\n{lines}")
    own.add_argument("shell", type=one_of("shell", HOW), metavar="SHELL", help=", ".join(HOW))
    print(argcomplete.shellcode([PROGRAM], shell=own.parse_args(arguments).shell))
    return 0


def complete() -> None:
    """Answers a shell that asks what can come next, and ends the process. Files are completed where
    nothing else is.

    Behind the name of a config, `run` takes its fields as options, and both `run` and `sweep` take
    them behind `--set`. For these jax is imported, which takes a second or two; not for anything
    else.
    """
    own = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
    own.add_argument("--version", action="store_true")
    own.add_argument("--help", action="store_true")
    commands = own.add_subparsers()
    before, _, asked = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].rpartition(" ")
    typed = before.split()[1:]
    places = {
        "run": shipped_configs(),
        "sweep": shipped_configs(),
        "data": ("list", "info", "check", "download", "verify"),
        "completion": HOW,
    }
    files = argcomplete.FilesCompleter()
    for name, command in COMMANDS.items():
        own_options = commands.add_parser(
            name, help=command.line, add_help=False, allow_abbrev=False
        )
        words = load(command.names)() if command.names and name in typed else places.get(name, ())

        def complete_place(prefix: str, words: Iterable[str] = words, **others: Any) -> list[str]:
            named = [word for word in words if word.startswith(prefix)]
            return [*named, *files(prefix, **others)]

        _complete(own_options.add_argument("place", nargs="*"), complete_place)
    if typed[:1] in (["run"], ["sweep"]):
        own_options = commands.choices[typed[0]]
        behind_set = own_options.add_argument("--set", action="append")
        _complete(behind_set, lambda prefix, **others: _settings(typed, prefix))
        for option in ("--workdir", *(_options(typed) if asked.startswith("--") else ())):
            values = own_options.add_argument(option)
            if asked.startswith(f"{option}="):
                named = [one.partition("=")[2] for one in _settings(typed, asked[2:])]
                _complete(values, argcomplete.ChoicesCompleter(dict.fromkeys(named, "")))
    argcomplete.autocomplete(own, always_complete_options=False)


def _complete(argument: argparse.Action, completer: Callable[..., Any]) -> None:
    """Tell argcomplete what completes an argument."""
    argument.completer = completer  # type: ignore[attr-defined]


def _options(words: list[str]) -> list[str]:
    """Options of `run` or `sweep` beside `--set` and `--workdir`."""
    if words[0] == "run":
        return [f"--{field.rstrip('=')}" for field in _settings(words, "")]
    module = COMMANDS[words[0]].function.partition(":")[0]
    known = load(f"{module}:parser")().options()
    return [option for option in known if option not in ("--set", "--workdir")]


def _settings(words: list[str], typed: str) -> list[str]:
    """Fields of the config that a command line names, with "=" behind them; behind the "=", names
    that one can have.

    None where the command line names no config, or it cannot be read yet.
    """
    from fedjax_ssl import config as configs

    name = next(
        (
            word
            for word in words[1:]
            if word.partition(":")[0] in shipped_configs() or ".py" in word
        ),
        None,
    )
    # What is named brings fields of its own; of several methods of a sweep, the first.
    named = re.findall(r"(?:^| |-|=|config\.)([a-z_]+\.name)[= ]([^ ,]+)", " ".join(words))
    try:
        described = [] if name is None else configs.describe(configs.load(name, named))
    except configs.ConfigError:
        return []
    if "=" not in typed:
        return [f"{one.field}=" for one in described]
    field = typed.partition("=")[0]
    allowed = [one.allowed.removesuffix(" or None") for one in described if one.field == field]
    names = [name for words in allowed for name in re.split(", | or ", words)]
    return [f"{field}={name}" for name in names if name.isidentifier() and names[1:]]
