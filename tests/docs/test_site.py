"""The site is built without a warning, asks for nothing from elsewhere, and shows formulas and
numbers as written.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module, reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_asks_for_anything_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="(https?:[^"]+)"', text)
        assert not loaded, (page, loaded)


def test_every_formula_is_mathml(site):
    formulas = 0
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        formulas += text.count("<math")
        without_code = re.sub(r"<code.*?</code>", "", text, flags=re.DOTALL)
        assert "arithmatex" not in text and not re.search(r"\\(frac|sum|mathrm)\b", without_code)
    assert formulas > 300


def test_the_reference_describes_fields_and_shows_examples_as_code(site):
    page = (site / "reference/federated/optimizers/index.html").read_text(encoding="utf-8")
    assert "what a client keeps before its first round" in page  # a comment below its field
    assert "At a client." not in page  # a heading of fields
    for file in site.glob("reference/**/*.html"):
        assert "<blockquote>" not in file.read_text(encoding="utf-8"), file  # prompts of an example
