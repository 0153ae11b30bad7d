"""The command line: `python -m fedjax_ssl.main --config configs/digits_xclp.py [--workdir runs/x] [--config.field=value]`."""

import os
import sys
from pathlib import Path

import jax
from absl import flags, logging
from ml_collections import config_flags

from fedjax_ssl import data, tracking
from fedjax_ssl.config import ConfigError
from fedjax_ssl.train import run

USER_ERRORS = (
    ConfigError,
    data.DatasetUnavailable,
    tracking.CheckpointError,
    tracking.FolderLocked,
    tracking.RunFolderError,
)
_CONFIG = config_flags.DEFINE_config_file("config", None, "Experiment, for example configs/digits_xclp.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Run folder; runs/NAME_OF_THE_CONFIG by default.")


def main(arguments: list[str]) -> int:
    """Runs one experiment.

    Returns:
        0; 2 for a mistake of the user, after one message on standard error.
    """
    try:
        config_file = _parse(arguments)
        compilation_cache()
        run(_CONFIG.value, _WORKDIR.value or Path("runs") / config_file.stem)
    except USER_ERRORS as error:
        if os.environ.get("FEDJAX_SSL_DEBUG"):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def compilation_cache() -> None:
    """Keeps compiled programs between runs, in $JAX_COMPILATION_CACHE_DIR or ~/.cache/fedjax_ssl/compiled."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "fedjax_ssl" / "compiled"))


def _parse(arguments: list[str]) -> Path:
    """Reads the flags; returns the config file's path."""
    usage = "Usage: python -m fedjax_ssl.main --config configs/digits_xclp.py [--workdir FOLDER] [--config.FIELD=VALUE]"
    try:
        rest = flags.FLAGS(arguments)
        config = _CONFIG.value
    except (AttributeError, KeyError, flags.Error, OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"{text}\n{usage}") from error
    if rest[1:]:
        raise ConfigError(f"unexpected argument {rest[1]!r}\n{usage}")
    if config is None:
        raise ConfigError(f"--config is missing\n{usage}")
    logging.set_verbosity(logging.WARNING)
    return Path(config_flags.get_config_filename(flags.FLAGS["config"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
