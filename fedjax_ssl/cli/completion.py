"""`fedjax-ssl completion bash`: what a shell needs to complete the command; argcomplete does the work."""

import argparse

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
    """Answers a shell that asks what can come next, and ends the process. Files are completed where nothing else is."""
    own = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
    own.add_argument("--version", action="store_true")
    own.add_argument("--help", action="store_true")
    commands = own.add_subparsers()
    words = {
        "run": [*shipped_configs()],
        "sweep": [*shipped_configs()],
        "data": ["list", "info", "check", "download", "verify"],
        "list": _kinds(),
        "completion": [*HOW],
    }
    for name, command in COMMANDS.items():
        one = commands.add_parser(name, help=command.line)
        place = one.add_argument("place", nargs="*")
        if name in words:
            place.completer = _one_of(words[name])  # type: ignore[attr-defined]
    argcomplete.autocomplete(own, always_complete_options=False)


def _kinds() -> list[str]:
    from fedjax_ssl.cli.listing import KINDS

    return [*KINDS]


def _one_of(words: list[str]):
    """These words, and files: a config may be one."""
    files = argcomplete.FilesCompleter()
    return lambda prefix, **others: [*(word for word in words if word.startswith(prefix)), *files(prefix, **others)]
