"""Every number of every section and method has a range, checked once; what is outside gets one message."""

import math
import re
import runpy
from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import fields, ranges

REGISTRIES = {"method": methods.METHODS, **fields.CHOICES}
# By type; every one is refused for every number of that type, whatever its range.
NEVER = {int: (-(2**31), 2**31, 2**63, 10**30), float: (math.nan, math.inf, -math.inf, -1e300, 1e300)}
REQUIRED = {
    ("partition", "paired_dirichlet"): {"alpha": 1.0, "labels_per_class": 1},
    ("partition", "dirichlet"): {"alpha": 1.0},
    ("partition", "dirichlet_balanced"): {"alpha": 1.0},
    ("partition", "class_counts"): {"counts": (1,)},
    ("partition", "own_class"): {"skew": 0.5},
    ("supervision", "circulant"): {"label_counts": (1,)},
    ("supervision", "fraction"): {"fraction": 0.5},
    **{("supervision", name): {"labels": 2} for name in ("per_client", "per_class", "total", "xclp_noniid")},
    **{("supervision", name): {"labels": 2} for name in ("class_pairs", "server")},
}


def config_of(section: str, choice: str):
    """A config that resolves, with this choice."""
    config = fields.default(choice) if section == "method" else fields.default()
    if section != "method":
        config[section].name = choice
    for option, value in REQUIRED.get((section, choice), {}).items():
        config[section][option] = value
    return config


NAMES = {("data", option) for option in ("classes", "features", "ignore")}  # tuples of names, not of numbers


def nasty_of(kind: type) -> list:
    return list(NEVER[kind]) if kind in NEVER else [("a",), (None,), (math.nan,), (-1,), (True,)]


@pytest.mark.parametrize("section", REGISTRIES)
def test_every_number_of_a_choice_has_a_range_with_its_default_inside(section: str) -> None:
    registry = REGISTRIES[section]
    for choice, option, what in ((one, *pair) for one in registry for pair in registry.options(one).items()):
        if what.type not in (int, float, tuple) or f"{section}.{option}" in fields.FIELDS:
            continue
        if (section, option) in NAMES:
            continue
        assert option in ranges.OPTIONS[section], f"give {section}.{option} a range in fedjax_ssl/config/ranges.py"
        allowed = ranges.range_of(section, choice, option, what.type)
        assert allowed is not None and (allowed.depth > 0) == (what.type is tuple), (choice, option)
        if isinstance(what.default, what.type):
            ranges.check_range(option, what.default, allowed)
        for value in nasty_of(what.type):
            with pytest.raises(ValueError, match=rf"^{option}.* is "):
                ranges.check_range(option, value, allowed)


@pytest.mark.parametrize(
    ("section", "choice", "option", "value", "message"),
    [
        ("method", "fedul", "l1", math.nan, "config.method.l1 is nan; it must be a number of at least 0"),
        ("method", "xclp", "num_bits", 10**9, "config.method.num_bits is 1000000000; it must be a whole number from 1"),
        ("method", "fedmt", "threshold", 2.0, "config.method.threshold is 2.0; it must be a number in [0, 1]"),
        ("method", "uda", "temperature", 1e-300, "config.method.temperature is 1e-300; single precision"),
        ("method", "xclp", "alpha", None, "config.method.alpha is None; give a number"),
        ("supervision", "all", "server_labels", -1, "config.supervision.server_labels is -1; it must be"),
        ("data", "npz", "input_max", math.inf, "config.data.input_max is inf; it must be a number above 0"),
        ("model", "mlp", "hidden", (64, 0), "config.model.hidden[1] is 0; it must be a whole number of at least 1"),
        ("federated", "grouped", "group_sizes", ("a",), "config.federated.group_sizes[0] is 'a'; it must be"),
    ],
)
def test_the_message_names_field_value_and_range(section, choice, option, value, message) -> None:
    config = config_of(section, choice)
    with config.unlocked():
        config[section][option] = value
    with pytest.raises(configs.ConfigError, match=f"^{re.escape(message)}"):
        configs.resolve(config)


def test_a_seed_is_not_cut_to_that_of_another_run() -> None:
    """jax.random.key(2**32) has the bits of key(0)."""
    with pytest.raises(configs.ConfigError, match=r"config\.seed is 4294967296; it must be a whole number from 0 to"):
        configs.check_field("seed", 2**32)


def test_options_of_ones_own_are_any_finite_number() -> None:
    assert ranges.range_of("method", "my:method", "strength", float) == ranges.FINITE
    assert ranges.range_of("method", "my:method", "text", str) is None
    assert ranges.range_of("method", "my:method", "alpha", float) == ranges.FINITE, "not what xclp means by the name"


@pytest.mark.thorough
def test_nasty_values_in_every_field_get_one_message_or_are_harmless() -> None:
    script = Path(__file__).parents[2] / "experiments" / "benchmarks" / "settings_faults.py"
    found = runpy.run_path(str(script))["try_all"](every=5)
    assert found.tried > 3_000
    assert not found.fell_through, "\n".join(found.fell_through[:20])
