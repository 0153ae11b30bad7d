"""Formulas as MathML, made when the site is built: no script, no font and no request in the
reader's browser.
"""

import html
import re
import unicodedata
from typing import Any

from latex2mathml.converter import convert

# As pymdownx.arithmatex leaves them.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)

# Browsers know no other variant than "normal": letters in another style are letters of their own.
_VARIANT = re.compile(r'<(m[in]) mathvariant="(double-struck|script|bold)">(\w)</\1>')


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with every page as HTML."""
    return _FORMULA.sub(lambda found: formula(html.unescape(found[2]).strip()), content)


def formula(text: str) -> str:
    r"""MathML of a formula between \( and \), or \[ and \]."""
    display = text.startswith(r"\[")
    inner = text.replace(r"\arg", r"\operatorname{arg}\,")  # unknown to the converter
    inner = (
        inner.removeprefix(r"\[")
        .removeprefix(r"\(")
        .removesuffix(r"\]")
        .removesuffix(r"\)")
        .strip()
    )
    mathml = convert(inner, display="block" if display else "inline")
    mathml = _VARIANT.sub(
        lambda found: f"<{found[1]}>{styled(found[3], found[2])}</{found[1]}>", mathml
    )
    if "\\" in mathml:
        raise ValueError(f"the formula {text!r} has a command that latex2mathml does not know")
    return f'<div class="formula">{mathml}</div>' if display else mathml


def styled(letter: str, style: str) -> str:
    """A capital letter or a digit in another style, for example the double-struck R."""
    kind = (
        f"DIGIT {unicodedata.name(letter).split()[-1]}"
        if letter.isdecimal()
        else f"CAPITAL {letter}"
    )
    for name in (f"MATHEMATICAL {style.upper()} {kind}", f"{style.upper()} {kind}"):
        try:
            return unicodedata.lookup(name)
        except KeyError:  # a few letters were there before the others, under shorter names
            continue
    raise ValueError(f"there is no {style} {letter!r}")
