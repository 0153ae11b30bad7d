"""BibTeX of the tool and of what a run uses, from `fedjax_ssl/citations.bib`."""

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_ssl import __version__
from fedjax_ssl.folder.folder_lock import flat_config

TOOL = "tool"
CITATIONS_FILE = "citations.bib"


@functools.cache
def citations() -> dict[str, list[str]]:
    """Read the shipped BibTeX.

    Returns:
        By name of a method, term, rule of thresholds, federated optimizer, personalization, sum or
            dataset: its entries, in the file's order.
    """
    text = (Path(__file__).parents[1] / CITATIONS_FILE).read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n\n(?=@)", text.strip()):
        # The last field has the names that use the entry; it is ours and not for a bibliography.
        body, _, users = entry.rpartition(",\n  keywords = {")
        for user in users.rstrip("}\n").split(", "):
            found.setdefault(user, []).append(f"{body}\n}}")
    version = f",\n  version = {{{__version__}}}\n}}"
    found[TOOL] = [entry.removesuffix("\n}") + version for entry in found[TOOL]]
    return found


def entries(names: Iterable[str]) -> list[str]:
    """Return the entries of these names, each once; a name without a paper has none."""
    known = citations()
    return list(dict.fromkeys(entry for name in names for entry in known.get(name, ())))


def used_in(config: Mapping[str, Any]) -> list[str]:
    """Return the names that a run uses: the method, its parts and threshold rules, the federated
    optimizer, the dataset, the wrappers, the sum of uploads and the predictors.

    Args:
        config: of the run, as stored.
    """
    data = config["data"].get("like") or config["data"]["name"]
    method = config["method"]
    used = [method["name"], *method.get("parts", ()), config["federated"]["name"], data]
    used += [
        value
        for field, value in flat_config(method).items()
        if field.rpartition(".")[2] == "threshold_rule"
    ]
    used += config.get("prediction", {}).get("predictors", "").split(",")
    used += config.get("around", ())
    return [*used, *(config.get(one, {}).get("name", "") for one in ("personalize", "sum"))]
