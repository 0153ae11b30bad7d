"""Pictures by matplotlib, always drawn in memory, independent of MPLBACKEND."""

import importlib
import os
import sys


def use_matplotlib() -> None:
    """Import matplotlib, even if MPLBACKEND names an unknown backend, such as one of an older
    version.
    """
    try:
        importlib.import_module("matplotlib")
    except ValueError:
        asked = os.environ.pop("MPLBACKEND", None)
        if asked is None:
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            del sys.modules[name]  # only half imported
        importlib.import_module("matplotlib")
        os.environ["MPLBACKEND"] = asked
