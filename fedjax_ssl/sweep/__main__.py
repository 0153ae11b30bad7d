"""`python -m fedjax_ssl.sweep`, the same as `fedjax-ssl sweep`."""

import sys

from fedjax_ssl.cli import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
