# mypy: implicit-reexport
"""One run from its config to its results, in the order of reading: build, compile, loop.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.runs.build import Experiment, build_method, federate, load_experiment
    from fedjax_ssl.runs.compile import Shared
    from fedjax_ssl.runs.loop import Point, run, run_batch
    from fedjax_ssl.runs.processes import (
        PREEMPTED,
        STALLED,
        Team,
        leave,
        run_devices,
        settings,
        share_out,
        start,
    )

__getattr__, __dir__ = attach(__name__)
