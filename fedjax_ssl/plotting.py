"""Pictures by matplotlib, which are drawn in memory whatever MPLBACKEND says."""

import importlib
import os
import sys


def use_matplotlib() -> None:
    """Import matplotlib. It refuses to be where MPLBACKEND names a backend that it does not know,
    such as one of an older version.
    """
    try:
        importlib.import_module("matplotlib")
    except ValueError:
        asked = os.environ.pop("MPLBACKEND", None)
        if asked is None:
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            del sys.modules[name]  # half imported
        importlib.import_module("matplotlib")
        os.environ["MPLBACKEND"] = asked
