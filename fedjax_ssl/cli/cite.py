"""`fedjax-ssl cite`: BibTeX of the tool and of what a run uses, from `fedjax_ssl/citations.bib`."""

import functools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedjax_ssl import __version__
from fedjax_ssl.cli import parser
from fedjax_ssl.errors import ConfigError, did_you_mean
from fedjax_ssl.folder import read_run

TOOL = "tool"
HELP = """BibTeX of this tool and of what you used.

  cite                   the tool
  cite xclp fedprox      methods, federated optimizers and published datasets, by name
  cite runs/first        what a run used"""


def main(arguments: list[str]) -> int:
    """Print BibTeX.

    Returns:
        0.

    Raises:
        ConfigError: nobody knows a name, and there is no run of this name.
    """
    own = parser("cite", HELP)
    own.add_argument("names", nargs="*", metavar="NAME", help="a name, or a folder of a run")
    given = own.parse_args(arguments).names
    names = [TOOL]
    for name in given:
        names += used_by(name) if os.path.isdir(name) else [_known(name)]
    print("\n\n".join(entries(names)))
    return 0


@functools.cache
def citations() -> dict[str, list[str]]:
    """Read the shipped BibTeX.

    Returns:
        By name of a method, federated optimizer, personalization, sum or dataset: its
            entries, in the file's order.
    """
    text = (Path(__file__).parents[1] / "citations.bib").read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n\n(?=@)", text.strip()):
        # The last field says who uses it; it is ours and not for a bibliography.
        body, _, users = entry.rpartition(",\n  keywords = {")
        for user in users.rstrip("}\n").split(", "):
            found.setdefault(user, []).append(f"{body}\n}}")
    version = f",\n  version = {{{__version__}}}\n}}"
    found[TOOL] = [entry.removesuffix("\n}") + version for entry in found[TOOL]]
    return found


def entries(names: Iterable[str]) -> list[str]:
    """Return the entries of these names, each once; a name that no paper stands behind has none."""
    known = citations()
    return list(dict.fromkeys(entry for name in names for entry in known.get(name, ())))


def used_by(folder: str) -> list[str]:
    """Return the names of the method and its parts, the federated optimizer, the dataset, the
    personalization and the sum of uploads of a stored run.
    """
    config = read_run(folder).config
    if not config:
        raise ConfigError(f"{folder} holds no run whose config can be read")
    data = config["data"].get("like") or config["data"]["name"]
    method = config["method"]
    used = [method["name"], *method.get("parts", ()), config["federated"]["name"], data]
    return [*used, *(config.get(one, {}).get("name", "") for one in ("personalize", "sum"))]


def _known(name: str) -> str:
    known = citations()
    if name not in known:
        raise ConfigError(
            f"{name} is no run folder, and no method, optimizer, personalization, sum or dataset "
            f"with a citation.{did_you_mean(name, known)} Names: {', '.join(sorted(known))}"
        )
    return name
