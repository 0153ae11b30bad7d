"""One process of several that train a run of every method, one after the other: see
`test_distributed_methods.py`.
"""

import sys
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from fedjax_ssl import config as configs
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.processes import start
from tests.methods import cases

CONFIGS = Path(__file__).parents[2] / "configs"
# Two methods look at the whole cohort's examples outside training: with a cohort whose examples
# stay on the host, too.
ON_HOST = {"xclp, examples on the host": "xclp", "protofssl, examples on the host": "protofssl"}


def config_of(name: str, **changes: Any) -> ConfigDict:
    """Three rounds of a method on the digits, of both stages where it has two."""
    method = ON_HOST.get(name, name)
    path, _, argument = cases.of(method).config.partition(":")
    config = configs.load(f"{CONFIGS / path}:{argument}" if argument else str(CONFIGS / path))
    assert config.method.name == method
    fields = {"rounds": 3, "eval_every": 1, "federated.devices": 4, **changes}
    fields |= {
        f"method.{field}": 1 for field in {"warmup_rounds", "coarse_rounds"} & set(config.method)
    }
    if name in ON_HOST:
        fields["federated.cohort_size"] = 3
    config.update_from_flattened_dict(fields)
    return config


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    given = [
        config_of(name, **{"data.residence": "host"} if name in ON_HOST else {}) for name in names
    ]
    team = start(given[0].distributed)
    for name, config in zip(names, given, strict=True):
        print(f"run {name}", flush=True)
        run(config, Path(folder) / name, team)
