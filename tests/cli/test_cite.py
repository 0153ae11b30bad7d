"""`fedjax-ssl cite`."""

from pathlib import Path

import pytest

import fedjax_ssl as fs
from fedjax_ssl.cli import main
from fedjax_ssl.data import SOURCES
from fedjax_ssl.federated import FEDERATED_OPTIMIZERS
from fedjax_ssl.federated.uploads import SUMS
from fedjax_ssl.folder.citations import TOOL, citations, entries
from fedjax_ssl.methods import METHODS, TERMS
from fedjax_ssl.methods.around import WRAPPERS

OF_USERS = {"folder", "features", "npz", "table", "tfds", "hf"}
# No paper stands behind them: the package's own, or what everybody did before there was federation.
NO_PAPER = {"compose", "supervised", "glyphs", "local", "alone", "pooled"}


def test_every_method_federated_optimizer_and_dataset_has_a_citation_and_no_other_name_has() -> (
    None
):
    names = {*METHODS.available(), *TERMS, *FEDERATED_OPTIMIZERS.available(), *SOURCES.available()}
    names |= WRAPPERS.available().keys() - {"none", "slow_clients"}
    names |= SUMS.available().keys() - {"mean"}
    names |= {*METHODS.options("fixmatch")["threshold_rule"].allowed.names} - {"fixed"}
    assert names - OF_USERS - NO_PAPER == set(citations()) - {TOOL}


def test_entries_are_whole_and_have_a_key_of_their_own() -> None:
    every = entries(citations())
    keys = [entry.partition("{")[2].partition(",")[0] for entry in every]
    assert len(set(keys)) == len(keys)
    for entry in every:
        assert entry.count("{") == entry.count("}")
        assert entry.startswith("@") and "title = " in entry and "year = " in entry
        assert "keywords" not in entry


def test_the_tool_comes_with_its_version_and_each_entry_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["cite", "xclp", "fedsem"]) == 0
    text = capsys.readouterr().out
    assert f"version = {{{fs.__version__}}}" in text
    assert text.count("@article{scott2023xclp,") == 1 and "albaseer2020fedsem" in text


def test_a_run_names_what_it_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also a rule of thresholds."""
    more = {"federated.name": "fedprox", "method.threshold_rule": "freematch"}
    config = fs.load_config("digits_fixmatch", more)
    (tmp_path / "config.json").write_text(config.to_json_best_effort())
    assert main(["cite", str(tmp_path)]) == 0
    cited = capsys.readouterr().out
    used = ("sohn2020fixmatch", "li2020fedprox", "alpaydin1998digits", "wang2023freematch")
    assert all(key in cited for key in used) and "mixmatch" not in cited


@pytest.mark.parametrize("name", ["xlcp", "folder"])
def test_an_unknown_name_gets_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cite", name]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {name} is no run folder") and said.count("\n") == 1
