"""`fedjax-ssl cite`: BibTeX of the tool and of the methods and data used, on standard output."""

import os

from fedjax_ssl.cli import parser
from fedjax_ssl.errors import ConfigError, did_you_mean
from fedjax_ssl.folder import read_run
from fedjax_ssl.folder.citations import TOOL, citations, entries, used_in
from fedjax_ssl.folder.stored_run import refuse_sweep

HELP = """Prints BibTeX of this tool and of the methods and data that you used.

  cite                   the tool
  cite xclp fedprox      methods, terms, federated optimizers and published datasets, by name
  cite runs/first        everything that a run used, as in citations.bib of its folder"""


def main(arguments: list[str]) -> int:
    """Print BibTeX.

    Returns:
        0.

    Raises:
        ConfigError: a name is neither known nor a run.
    """
    own = parser("cite", HELP)
    own.add_argument("names", nargs="*", metavar="NAME", help="a name, or a folder of a run")
    given = own.parse_args(arguments).names
    names = [TOOL]
    for name in given:
        names += _used_by(name) if os.path.isdir(name) else [_known(name)]
    print("\n\n".join(entries(names)))
    return 0


def _used_by(folder: str) -> list[str]:
    """Return the names that a stored run used."""
    refuse_sweep(folder)
    config = read_run(folder).config
    if not config:
        raise ConfigError(f"{folder} holds no run whose config can be read")
    return used_in(config)


def _known(name: str) -> str:
    known = citations()
    if name not in known:
        raise ConfigError(
            f"{name} is no run folder, and no method, term, optimizer, personalization, sum or "
            f"dataset with a citation.{did_you_mean(name, known)} Names: {', '.join(sorted(known))}"
        )
    return name
