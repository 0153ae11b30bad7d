"""Badges of notebooks, which open them in Colab, and links to configs: once the project has an
address on GitHub, `extra.repository` in mkdocs.yml. Before, a config is its name alone on the site.
"""

import re
from typing import Any

# An entry of a list that begins with a notebook's name.
_NOTEBOOK = re.compile(r"^- `(\w+\.ipynb)`", re.MULTILINE)
_CONFIG = re.compile(r"\[([^]]+)\]\(\.\./(configs/\w+\.py)\)")
_COLAB = "https://colab.research.google.com/github"


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Called by MkDocs with the text of every page."""
    given = config.extra["repository"]
    address = re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)(\.git)?/?", given)
    if address is None:
        return _CONFIG.sub(r"\1", markdown)
    source = f"https://github.com/{address[1]}/blob/main"
    markdown = _CONFIG.sub(rf"[\1]({source}/\2)", markdown)
    place = f"{_COLAB}/{address[1]}/blob/main/notebooks"
    badge = rf'\g<0> <a class="badge" href="{place}/\g<1>">Open in Colab</a>'
    return _NOTEBOOK.sub(badge, markdown)
