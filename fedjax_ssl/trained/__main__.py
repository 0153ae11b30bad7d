"""`python -m fedjax_ssl.trained RUN images.npz`."""

import sys

from fedjax_ssl.trained.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
