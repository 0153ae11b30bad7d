"""Pages are short, and their links lead somewhere."""

import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Written by a command from what is stored or stands in the code.
GENERATED = {"results.md", "data_messages.md"}


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Names of a page's headings, as the site makes them."""
    seen = Counter[str]()
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE):
        words = unicodedata.normalize("NFKD", re.sub(r"\]\([^)]*\)", "", heading))
        words = re.sub(r"[^\w\s-]", "", words.encode("ascii", "ignore").decode()).strip().lower()
        name = re.sub(r"[-\s]+", "-", words)
        found.add(f"{name}_{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_at_most_1500_words(path: Path) -> None:
    if path.name not in GENERATED:
        assert len(path.read_text(encoding="utf-8").split()) <= 1500


def test_readme_has_at_most_110_lines_and_900_words() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 110
    assert len(text.split()) <= 900


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        page, _, name = target.partition("#")
        if re.match(r"https?:|mailto:", target) or "reference/" in page:
            continue  # the reference is made with the site
        there = (path.parent / page).resolve() if page else path
        assert there.exists(), target
        assert not name or name in anchors(there), target
