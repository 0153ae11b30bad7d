"""Settings that an earlier version had: what a user of one is told, and old run folders."""

import re
from pathlib import Path

import pytest

import fedjax_ssl as fs
from fedjax_ssl import cli
from fedjax_ssl.config import ConfigError
from fedjax_ssl.folder.folder_lock import config_differences
from fedjax_ssl.gone import COMMANDS, GONE, without_gone
from fedjax_ssl.runs.model_file import resolved_of

ROOT = Path(__file__).parents[1]


def test_the_changelog_has_the_same_words() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    rows = [re.sub("`", "", line) for line in text.splitlines() if line.startswith("| `")]
    for name, entry in GONE.items():
        method, _, setting = name.partition(".")
        found = [row for row in rows if entry.now in row]
        assert any(method in row and setting in row for row in found), name


def test_a_setting_that_went_is_told_what_holds_now(tmp_path) -> None:
    words = "neighbours are always searched exactly"
    with pytest.raises(ConfigError, match=f"neighbor_search=approximate is gone: {words}"):
        fs.load_config("digits_predict", {"prediction.neighbor_search": "approximate"})
    file = tmp_path / "mine.py"
    file.write_text(
        "import fedjax_ssl as fs\n\n\ndef get_config():\n    config = fs.config.default()\n"
        "    config.prediction.neighbor_search = 'approximate'\n    return config\n"
    )
    with pytest.raises(
        ConfigError,
        match=rf"'neighbor_search'.* The setting prediction\.neighbor_search is gone: {words}\. "
        r".*mine\.py, line 6",
    ):
        fs.load_config(str(file))
    config = fs.config.default()
    with config.unlocked():
        config.prediction.neighbor_search = "approximate"
    with pytest.raises(ConfigError, match=words):
        fs.config.resolve(config)


def test_a_stored_config_may_have_it_at_the_value_that_holds_now() -> None:
    now = fs.config.resolve(fs.config.default()).to_dict()
    stored = {**now, "prediction": {**now["prediction"], "neighbor_search": "exact"}}
    assert without_gone(stored) == now
    assert not config_differences(stored, now)
    assert resolved_of(without_gone(stored)).to_dict() == now
    stored["data"] = {**now["data"], "of_a_source_that_went": None}
    assert not config_differences(stored, now)
    assert resolved_of(without_gone(stored)).to_dict() == now
    stored["prediction"]["neighbor_search"] = "approximate"
    assert config_differences(stored, now) == [
        'prediction.neighbor_search: "approximate" -> neighbours are always searched exactly'
    ]
    with pytest.raises(ConfigError, match="is gone: neighbours are always searched exactly"):
        resolved_of(without_gone(stored))


def test_what_a_value_means_now_may_depend_on_the_name_beside_it() -> None:
    for number, kept in ((2, {}), (3, {"operations": 3})):
        stored = {"strong_augment": {"name": "fixmatch", "operations": number}}
        assert without_gone(stored)["strong_augment"] == {"name": "fixmatch", **kept}


def test_a_setting_of_a_part_and_a_value_of_a_setting_may_be_gone() -> None:
    parts = {"method.name": "compose", "method.parts": ("supervised", "fixmatch")}
    with pytest.raises(ConfigError, match="threshold_scope=round is gone: what a threshold rule"):
        fs.load_config("digits", {**parts, "method.fixmatch.threshold_scope": "round"})
    with pytest.raises(ConfigError, match="preset=streaming_alt is gone: write paper with"):
        fs.load_config("digits_fedmatch", {"method.preset": "streaming_alt"})


def test_a_value_of_several_and_a_command_may_be_gone(capsys) -> None:
    with pytest.raises(ConfigError, match="writers=mlflow is gone: MLflow is no viewer"):
        fs.load_config("digits", {"tracking.writers": "mlflow"})
    with pytest.raises(ConfigError, match=r"optimizer=lion is gone: write optax:NAME"):
        fs.load_config("digits", {"federated.optimizer": "lion"})
    for none in ("none", ("none",)):
        with pytest.raises(ConfigError, match="is gone: no wrapper is the empty tuple"):
            fs.load_config("digits", {"around": none})
    assert without_gone({"around": ("none",)}) == {"around": ()}
    now = fs.config.resolve(fs.config.default()).to_dict()
    old = {**now, "around": ["none"], "uploads": ["drop_non_finite"]}
    assert not config_differences(old, now)
    assert fs.load_config("digits", {"around": "()"}).around == ()
    with pytest.raises(ConfigError, match="give names with commas between, of slow_clients,"):
        fs.load_config("digits", {"around": None})
    assert cli.main(["completion"]) == 2
    assert "the command 'completion' is gone: `fedjax-ssl run NAME" in capsys.readouterr().err
    assert all(words in (ROOT / "CHANGELOG.md").read_text("utf-8") for words in COMMANDS.values())
