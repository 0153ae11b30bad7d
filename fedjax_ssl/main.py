"""The command line: `python -m fedjax_ssl.main --config configs/digits_xclp.py [--workdir runs/x]`."""

import os
import sys
from pathlib import Path

from absl import flags, logging
from ml_collections import config_flags

from fedjax_ssl import command_line, distributed
from fedjax_ssl.config import ConfigError
from fedjax_ssl.experiment.run import run

USAGE = "Usage: python -m fedjax_ssl.main --config FILE.py[:VARIANT] [--workdir FOLDER] [--config.FIELD=VALUE ...]"
_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment, for example configs/digits_xclp.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; runs/NAME_OF_THE_CONFIG by default.")


def main(arguments: list[str]) -> int:
    """Runs one experiment.

    Returns:
        0; 2 for a mistake of the user, after one message on standard error; 130 after Ctrl-C. A process of several has
        other ends too, see docs/distributed.md.
    """
    if {"-h", "--help"} & set(arguments):
        print(f"{USAGE}\n\n{command_line.describe_choices()}")
        return 0
    try:
        config_file = _parse(arguments)
        command_line.use_compilation_cache()
        command_line.map_large_buffers()
        with command_line.notes_instead_of_warnings():
            # Both before anything is computed.
            alone = distributed.settings(_CONFIG.value.distributed) is None
            command_line.use_processor(_CONFIG.value.get("threads"), _CONFIG.value.federated.devices if alone else None)
            team = distributed.start(_CONFIG.value.distributed)
            run(_CONFIG.value, _WORKDIR.value or Path("runs") / config_file.stem, team)
    except KeyboardInterrupt:
        return distributed.leave(130, "\nstopped; the same command goes on from the last checkpoint")
    except command_line.USER_ERRORS as error:
        if os.environ.get("FEDJAX_SSL_DEBUG"):
            raise
        return distributed.leave(2, f"error: {error}")
    return 0


def _parse(arguments: list[str]) -> Path:
    """Reads the flags; returns the config file's path."""
    try:
        rest = flags.FLAGS(arguments)
        if _CONFIG.value is None:
            raise ConfigError("--config is missing")
        _CONFIG.value.keys()  # a file that could not be loaded says so only when it is used
    except (AttributeError, KeyError, flags.Error, OSError, ValueError) as error:
        raise ConfigError(f"{command_line.explain(error)}\n{USAGE}") from error
    if rest[1:]:
        raise ConfigError(f"unexpected argument {rest[1]!r}\n{USAGE}")
    logging.set_verbosity(logging.WARNING)
    return Path(config_flags.get_config_filename(flags.FLAGS["config"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
