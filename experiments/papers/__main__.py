"""`python -m experiments.papers TABLE`, which is `fedjax-ssl reproduce TABLE`."""

import sys

from fedjax_ssl import cli

cli.end(cli.main(["reproduce", *sys.argv[1:]]))
