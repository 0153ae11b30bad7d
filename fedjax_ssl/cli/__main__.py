"""`python -m fedjax_ssl.cli` is `fedjax-ssl`."""

import sys

from fedjax_ssl.cli import main

if __name__ == "__main__":
    sys.exit(main())
