"""Federated averaging as its page of one file has it."""

import re
from pathlib import Path

import fedjax_ssl
from fedjax_ssl.methods import fedavg


def test_every_line_of_the_algorithm_names_a_file_and_what_is_in_it() -> None:
    places = re.findall(r"`(\S+\.py)` `(\S+)`", fedavg.__doc__ or "")
    assert len(places) >= 15
    for file, name in places:
        text = (Path(fedjax_ssl.__file__).parent / file).read_text(encoding="utf-8")
        *_, last = name.split(".")
        assert re.search(rf"(def|class) {last}\b|^{last}\b.* = ", text, re.MULTILINE), name
