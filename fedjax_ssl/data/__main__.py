"""`python -m fedjax_ssl.data check PATH`: the same as `fedjax-ssl data`."""

import sys

from fedjax_ssl import cli

if __name__ == "__main__":
    sys.exit(cli.main(["data", *sys.argv[1:]]))
