"""Ends a process in which nothing happens any more."""

import faulthandler
import os
import sys
import threading
import time


class Watchdog:
    """A thread that ends the process when it was not fed for too long.

    A process in a collective operation waits for the others. If one of them is gone, it waits for ever, and no
    exception can reach it there. So the end is `os._exit`, which runs no clean-up. The run folder survives that as it
    survives a kill.
    """

    def __init__(self, seconds: float, message: str, exit_code: int, *, stacks: bool = True):
        """Starts to watch.

        Args:
            seconds: longest time between two calls of `feed`.
            message: printed to standard error at the end.
            exit_code: of the process.
            stacks: whether to print the stacks of all threads, which show what the process waited for.
        """
        self._seconds, self._message, self._exit_code, self._stacks = seconds, message, exit_code, stacks
        self._fed = time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def feed(self) -> None:
        """Says that something was finished."""
        self._fed = time.monotonic()

    def stop(self) -> None:
        """Ends the watch."""
        self._stopped.set()

    def _watch(self) -> None:
        while (left := self._fed + self._seconds - time.monotonic()) > 0:
            if self._stopped.wait(left):
                return
        sys.stdout.flush()
        print(self._message, file=sys.stderr, flush=True)
        if self._stacks:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        os._exit(self._exit_code)
