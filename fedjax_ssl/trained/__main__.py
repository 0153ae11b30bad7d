"""`python -m fedjax_ssl.trained RUN images.npz`: the same as `fedjax-ssl predict`."""

import sys

from fedjax_ssl import cli

if __name__ == "__main__":
    sys.exit(cli.main(["predict", *sys.argv[1:]]))
