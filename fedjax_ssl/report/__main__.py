"""`python -m fedjax_ssl.report` is `fedjax-ssl report`."""

import sys

from fedjax_ssl.report.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
