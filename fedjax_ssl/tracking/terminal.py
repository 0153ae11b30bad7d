"""The console that everything here prints with."""

from typing import NoReturn

import rich.console


class Console(rich.console.Console):
    """Rich's console, but a reader that is gone is an error like any other: rich ends the process without a word."""

    def on_broken_pipe(self) -> NoReturn:
        """Called while a BrokenPipeError is handled: whoever prints hears of it, `fedjax_ssl.cli.main` in the end."""
        raise
