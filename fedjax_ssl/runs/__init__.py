"""One run from its config to its results, in reading order: build, compile, loop.

Names are imported when they are first used.
"""

# For users who run mypy --strict.
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from fedjax_ssl.lazy import attach

if TYPE_CHECKING:
    from fedjax_ssl.runs.build import Built, Experiment, build, federate, load_experiment
    from fedjax_ssl.runs.callbacks import Block, Callback
    from fedjax_ssl.runs.loop import Point, run, run_batch
    from fedjax_ssl.runs.privacy import Earlier
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
    from fedjax_ssl.runs.program import Program
    from fedjax_ssl.runs.shared import Shared

__getattr__, __dir__ = attach(__name__)
