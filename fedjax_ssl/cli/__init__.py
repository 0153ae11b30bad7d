"""The console command `fedjax-ssl`: a table of subcommands, each imported when it is called, so
that help is fast.
"""

import argparse
import contextlib
import importlib
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fedjax_ssl import __version__, gone
from fedjax_ssl.errors import INTERRUPTED, check_known, did_you_mean
from fedjax_ssl.own_code import make_importable

PROGRAM = "fedjax-ssl"


class Command(NamedTuple):
    """A subcommand."""

    function: str
    # ^ "module:function", which takes the arguments after the subcommand and returns an exit code
    line: str  # purpose, one line of the help
    example: str


COMMANDS = {
    "run": Command(
        "fedjax_ssl.cli.run:main", "train one experiment", "run digits_xclp --rounds=50"
    ),
    "sweep": Command(
        "fedjax_ssl.sweep.command:main",
        "train many, over settings and seeds",
        "sweep digits --seeds 5 --set method.name=fedavg,xclp",
    ),
    "reproduce": Command(
        "fedjax_ssl.cli.clone:reproduce",
        "run tables of papers and compare the numbers (in a clone)",
        "reproduce fedul-table1 --run",
    ),
    "report": Command("fedjax_ssl.report.command:main", "compare runs on one page", "report runs"),
    "predict": Command(
        "fedjax_ssl.trained.command:main",
        "label new examples with a trained run",
        "predict runs/digits_xclp new.npz",
    ),
    "plan-labels": Command(
        "fedjax_ssl.trained.plan_labels:main",
        "say which examples to label next",
        "plan-labels runs/digits_xclp --budget 40",
    ),
    "features": Command(
        "fedjax_ssl.encoding.command:main",
        "encode a dataset once, so that methods train heads in seconds",
        "features cifar10 --encoder timm:resnet18 --output features",
    ),
    "data": Command(
        "fedjax_ssl.cli.data:main",
        "list and describe datasets, check your own data",
        "data info digits",
    ),
    "choose": Command(
        "fedjax_ssl.cli.choose:main",
        "list methods that fit your labels",
        "choose digits_mixed",
    ),
    "bench": Command(
        "fedjax_ssl.cli.clone:bench",
        "measure the speed of federated rounds (in a clone)",
        "bench --workloads W2",
    ),
    "list": Command(
        "fedjax_ssl.cli.listing:main",
        "list the names that a config can use",
        "list methods",
    ),
    "cite": Command(
        "fedjax_ssl.cli.cite:main",
        "print BibTeX of the tool, methods and data",
        "cite xclp",
    ),
    "new": Command(
        "fedjax_ssl.cli.new:main", "write a folder to start a study from", "new my_study"
    ),
}
UNFINISHED = ("run", "sweep", "reproduce", "features", "bench")  # commands that do more than print
_LONG_USAGE = 3  # lines; a longer usage would hide the message before it


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        arguments: arguments without the program's name; by default the process's.

    Returns:
        Its exit code. 2 for a mistake of the user, after one message on standard error; 130 after
        Ctrl-C. One of several processes has further exit codes, see docs/clusters.md.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(versions())
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        if name in gone.COMMANDS:
            print(f"error: the command {name!r} is gone: {gone.COMMANDS[name]}", file=sys.stderr)
            return 2
        kind = "option" if name.startswith("-") else "command"
        print(
            f"error: there is no {kind} {name!r}.{did_you_mean(name, COMMANDS)} Commands: "
            f"{', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    make_importable(Path.cwd())
    try:
        code: int = load(COMMANDS[name].function)(rest)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if name not in UNFINISHED or "--help" in rest or "-h" in rest:
            return 0
        print(
            "error: nobody reads the output any more; the same command goes on with what is "
            "missing",
            file=sys.stderr,
        )
        return 1
    except (Exception, KeyboardInterrupt) as error:
        from fedjax_ssl.command_line import leave

        return leave(error)


def end(code: int) -> NoReturn:
    """End the process; after Ctrl-C at once, because a thread that still compiles would crash at
    Python's own end.
    """
    if code == INTERRUPTED:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def entry() -> NoReturn:
    """Run the console script."""
    end(main())


class Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors, the usage if it is short, and exit code 2."""

    hint: Callable[[str], str]  # unknown word -> advice

    def parse_args(self, args=None, namespace=None):  # type: ignore[override]
        return self._known(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(self, args=None, namespace=None):  # type: ignore[override]
        return self._known(*self.parse_known_intermixed_args(args, namespace))

    def _known(self, given: argparse.Namespace, unknown: list[str]) -> argparse.Namespace:
        if unknown:
            self.error(self._about(unknown[0]))
        return given

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage()
        if len(usage.splitlines()) > _LONG_USAGE:
            usage = f"`{self.prog} --help` explains what it takes\n"
        self.exit(2, f"error: {message}\n{usage}")

    def _about(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected argument {word!r}.{self.hint(word)}"
        option = word.partition("=")[0]
        near = self.hint(word) or did_you_mean(option, self._option_string_actions)
        return f"there is no option {option!r}.{near}"


def parser(command: str, description: str, hint: Callable[[str], str] | None = None) -> Parser:
    """Return a parser in the style of all subcommands: no abbreviations, and line breaks of the
    description are kept.

    Args:
        command: the subcommand.
        description: description for its help.
        hint: unknown word -> a sentence of advice with a space before it, or "".
    """
    made = Parser(
        prog=f"{PROGRAM} {command}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.hint = hint or (lambda word: "")
    return made


def one_of(kind: str, known: Collection[str]) -> Callable[[str], str]:
    """Return an argument type for `add_argument`: one of these names, or an error with the nearest
    name.
    """

    def check(text: str) -> str:
        try:
            check_known(kind, text, known)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def usage() -> str:
    """Return the text of `--help`."""
    width = max(map(len, COMMANDS))
    options = {
        "-h, --help": "this text; after a command: its options",
        "--version": "versions of fedjax_ssl, jax and Python",
    }
    blocks = {
        "commands": [f"{name:{width}}  {command.line}" for name, command in COMMANDS.items()],
        "options": [f"{name:{width}}  {line}" for name, line in options.items()],
        "examples": [f"{PROGRAM} {command.example}" for command in COMMANDS.values()],
    }
    above = f"usage: {PROGRAM} COMMAND ...\n\nFederated learning with few, coarse or no labels."
    return "\n\n".join(
        [above, *("\n  ".join([f"{title}:", *lines]) for title, lines in blocks.items())]
    )


def versions() -> str:
    """Return the text of `--version`, without importing jax."""
    import importlib.metadata
    import platform

    return (
        f"fedjax_ssl {__version__} (jax {importlib.metadata.version('jax')}, Python "
        f"{platform.python_version()})"
    )


def load(place: str) -> Callable[..., Any]:
    """Import a function, named by "module:function"."""
    module, _, name = place.partition(":")
    with _ending_at_ctrl_c():
        return operator.attrgetter(name)(importlib.import_module(module))


@contextlib.contextmanager
def _ending_at_ctrl_c() -> Iterator[None]:
    """End the process at Ctrl-C with one line, while modules are imported and there is nothing to
    save.

    An exception inside the import of an extension module could come out as any other error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # other threads get no signals
        return

    def stop(*_: Any) -> None:
        os.write(2, b"\nstopped before anything was done\n")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
