"""The site is built without a warning, asks for nothing from elsewhere, and shows formulas and numbers as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
ROOT = Path(__file__).resolve().parent.parent


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


def test_no_list_ends_before_its_last_item(site):
    for page in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(encoding="utf-8"), re.DOTALL):
            assert not re.search(r"\n(\d+\.|[-*]) ", paragraph), (page, paragraph)


def test_the_steps_of_xclp_are_numbered_as_written(site):
    text = (site / "methods/xclp/index.html").read_text(encoding="utf-8")
    call = text[text.index('id="one-call"') : text.index('id="fedavgxclp"')]
    assert call.count("<ol") == 1 and len(re.findall(r"<li>", call)) == 7


def test_the_reference_has_what_the_rooms_offer(site):
    text = (site / "reference/training/index.html").read_text(encoding="utf-8")
    assert "make_train" in text and "over_seeds" in text and "hyperparameters" in text
    outputs = (site / "reference/models/index.html").read_text(encoding="utf-8")
    assert "class scores before the softmax" in outputs  # the comment of a field
    assert "read_run" in (site / "reference/runs/index.html").read_text(encoding="utf-8")
