"""Every number of a config has a range that its default is in; what is outside gets one message."""

import math
import re
import runpy
from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import fields, sections
from fedjax_ssl.registry import CHANGES

# By type; every one is refused for every number of that type, whatever its range.
NEVER = {
    int: (-(2**31), 2**32, 2**63, 10**30),
    float: (math.nan, math.inf, -math.inf, -1e300, 1e300),
}
# Tuples of names, not of numbers.
NAMES = {
    ("data", option)
    for option in ("classes", "features", "ignore", "codes", "dates", "missing_marks")
}
NAMES |= {("method", "parts")}


@pytest.mark.parametrize("section", ["", *fields.REGISTRIES])
def test_every_number_has_a_range_with_its_default_inside(section: str) -> None:
    if section:
        registry = fields.REGISTRIES[section]
        options = [pair for choice in registry for pair in registry.options(choice).items()]
    else:
        options = [*fields.FIELDS.items()]
    for name, option in options:
        if option.type not in (int, float, tuple) or (section, name) in NAMES:
            continue
        assert option.allowed is not None, (section, name)
        if isinstance(option.default, option.type):
            option.allowed.check(name, option.default)
        for value in NEVER.get(option.type, [("a",), (None,), (math.nan,), (True,)]):
            with pytest.raises(ValueError, match=rf"^{name}.* (is|names) "):
                option.allowed.check(name, value)


@pytest.mark.parametrize("section", fields.REGISTRIES)
def test_every_setting_says_what_it_changes(section: str) -> None:
    for choice in fields.REGISTRIES[section]:
        config = configs.default(choice if section == "method" else "fedavg")
        with config.unlocked():
            config[section].name = choice
        for name, option in fields.options_of(config).items():
            assert option.changes in CHANGES, name


def test_a_new_setting_cannot_be_declared_without_what_it_changes() -> None:
    with pytest.raises(TypeError, match="changes"):
        sections._field(1, "a setting")  # type: ignore[call-arg]


def test_consequences_of_settings_are_listed() -> None:
    alike = fields.fields_that(lambda one: one.alike)
    assert {"tracking", "data.root"} < {*alike}
    assert {*fields.fields_that(lambda one: one.goes_on == "moved")} == {
        "data.path",
        "data.split",
        "data.proportions",
    }
    arrays = {*fields.FIELDS} - {*fields.fields_that(lambda one: one.program)}
    assert {"seed", "start_from", "select_from"} < arrays and "metrics" not in arrays


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"eval_every": 0}, "config.eval_every is 0; it must be a whole number of at least 1"),
        (
            {"federated.weighting": "labeled"},
            "config.federated.weighting is 'labeled'. Did you mean 'labelled'",
        ),
        # jax.random.key(2**32) has the bits of key(0)
        (
            {"seed": 2**32},
            "config.seed is 4294967296; it must be a whole number from 0 to 4294967295",
        ),
        (
            {"method.name": "uda", "method.temperature": 1e-300},
            "config.method.temperature is 1e-300; single precision",
        ),
        (
            {"method.name": "xclp", "method.alpha": None},
            "config.method.alpha is None; give a number",
        ),
        (
            {"model.hidden": (64, 0)},
            "config.model.hidden[1] is 0; it must be a whole number of at least 1",
        ),
    ],
)
def test_the_message_names_field_value_and_range(given: dict, message: str) -> None:
    config = fields.default(given.get("method.name", "fedavg"))
    with config.unlocked(), config.ignore_type():
        config.update_from_flattened_dict(given)
    with pytest.raises(configs.ConfigError, match=f"^{re.escape(message)}"):
        configs.resolve(config)


@pytest.mark.parametrize("method", sorted(methods.available()))
def test_every_setting_of_a_method_can_be_given(method: str) -> None:
    """Also those that are None until they are: a value of their type is taken, one of another
    type is not.
    """
    config = fields.default(method)
    for setting, option in methods.METHODS.options(method).items():
        if option.default is None:
            config.method[setting] = {int: 3, float: 0.5, str: "a", bool: True}[option.type]
            assert config.method[setting] is not None
            with pytest.raises(TypeError):
                config.method[setting] = {"another": "type"}


@pytest.mark.thorough
def test_nasty_values_in_every_field_get_one_message_or_are_harmless() -> None:
    script = Path(__file__).parents[2] / "experiments" / "benchmarks" / "settings_faults.py"
    found = runpy.run_path(str(script))["try_all"](every=5)
    assert found.tried > 3_000
    assert not found.fell_through, "\n".join(found.fell_through[:20])
