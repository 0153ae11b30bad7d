"""`fedjax-ssl data split`: write the splits that runs of a config draw."""

import shlex
from pathlib import Path

from fedjax_ssl import config as configs
from fedjax_ssl import data
from fedjax_ssl.cli import load
from fedjax_ssl.cli.run import parse
from fedjax_ssl.config import ConfigError, naming
from fedjax_ssl.errors import counted
from fedjax_ssl.runs.shared import Shared

USAGE = "usage: fedjax-ssl data split CONFIG [--seeds N] [--output FOLDER] [--FIELD=VALUE ...]"
HELP = f"""{USAGE}

Writes which example each client has, which labels are seen, and which examples are for testing: a
file for each seed, which data.split=FILE runs on and NumPy alone reads (docs/partitions.md).

  CONFIG            of a shipped config, or a file of your own, as `run` takes it
  --seeds N         seeds 0 to N - 1, or those listed (0,7,11); the config's own by default
  --output FOLDER   splits by default
  --FIELD=VALUE     a setting, as of `run`"""


def main(arguments: list[str]) -> int:
    """Write a split file for each seed, and print how to use them.

    Raises:
        ConfigError: a setting cannot be used, or a file cannot store the split.
    """
    asked = parse(arguments)
    if asked.help is not None:
        print(HELP)
        return 0
    if asked.name is None:
        raise ConfigError(f"the config's name is missing\n{USAGE}")
    own = {"seeds": None, "output": "splits"} | {
        name: value for name, value in asked.settings if name in ("seeds", "output")
    }
    settings = [pair for pair in asked.settings if pair[0] not in own]
    config = configs.load(asked.name, settings)
    parse_seeds = load("fedjax_ssl.sweep.axes:parse_seeds")
    seeds = parse_seeds(own["seeds"]) or (config.seed,)
    folder = Path(str(own["output"]))
    folder.mkdir(parents=True, exist_ok=True)
    name = configs.find(asked.name).run_name
    shared = Shared()
    for seed in seeds:
        config.seed = seed
        built = shared.build(configs.resolve(config))
        path = folder / f"{name}-{seed}.npz"
        with naming():
            split = data.write_split(path, built.experiment.dataset, built.federation)
        counts = built.federation.summary()
        print(
            f"{path}: split {split}, {counted(counts['clients'], 'client')}, "
            f"{counted(counts['train_examples'], 'training example')} of which "
            f"{counts['labelled_examples']:,} are labelled, "
            f"{counted(counts['test_examples'], 'test example')}"
        )
    told = [f"--{field}={value}" for field, value in settings]
    file = f"{folder / name}-{{seed}}.npz"
    command = ["fedjax-ssl", "sweep", asked.name, "--seeds", str(own["seeds"]), *told]
    if own["seeds"] is None:
        command = ["fedjax-ssl", "run", asked.name, *told]
    print("run on them:", shlex.join([*command, f"--data.split={file}"]))
    return 0
