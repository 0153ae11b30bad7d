"""`python -m fedjax_ssl.cli` is `fedjax-ssl`."""

from fedjax_ssl.cli import entry

if __name__ == "__main__":
    entry()
