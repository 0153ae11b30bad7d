"""The commands `reproduce` and `bench`, whose code is in a clone of the project beside the
package.
"""

import importlib
import sys
from pathlib import Path

from fedjax_ssl.errors import ConfigError

_CLONE = Path(__file__).resolve().parents[2]


def reproduce(arguments: list[str]) -> int:
    """Run the tables of papers: `experiments/papers`."""
    return _main("papers", arguments)


def bench(arguments: list[str]) -> int:
    """Measure workloads: `experiments/benchmarks`."""
    return _main("benchmarks", arguments)


def _main(folder: str, arguments: list[str]) -> int:
    place = _CLONE / "experiments" / folder
    if not place.is_dir():
        raise ConfigError(
            f"this command runs experiments/{folder}, which is in a clone of the project and not "
            "in the installed package; clone it and run the command there"
        )
    if str(_CLONE) not in sys.path:
        sys.path.append(str(_CLONE))
    code: int = importlib.import_module(f"experiments.{folder}.command").main(arguments)
    return code
