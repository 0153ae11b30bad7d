"""The main job: `python -m fedjax_ssl.main --config configs/digits_xclp.py [--workdir runs/x]
[--config.FIELD=VALUE]`.

The same as `fedjax-ssl run`.
"""

import sys

from fedjax_ssl import cli


def main(arguments: list[str]) -> int:
    """Run one experiment.

    Args:
        arguments: arguments, with the program's name first.

    Returns:
        As `fedjax_ssl.cli.main`.
    """
    return cli.main(["run", *arguments[1:]])


if __name__ == "__main__":
    cli.end(main(sys.argv))
