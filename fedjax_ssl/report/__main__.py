"""`python -m fedjax_ssl.report` is `fedjax-ssl report`."""

import sys

from fedjax_ssl.cli import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
