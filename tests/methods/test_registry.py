import math

import pytest

from fedjax_ssl import methods
from tests import toy


@pytest.fixture(scope="module")
def setup():
    return toy.setup(toy.federation())


def test_label_propagation_alone_and_across_clients_have_the_same_variant() -> None:
    """XCLP section 2: per-client LP and XCLP must always use the same variant."""
    alone, across = methods.settings("per_client_lp"), methods.settings("xclp")
    for name in ("alpha", "num_neighbors", "similarity_power", "label_norm", "confidence_scale", "class_weighting"):
        assert alone[name] == across[name], name


@pytest.mark.parametrize("name", sorted(methods.available()))
def test_a_setting_outside_what_it_declares_is_refused_by_its_name(name: str) -> None:
    run = toy.setup(toy.federation(), rounds=3)
    for setting, option in methods.METHODS.options(name).items():
        if option.type is bool or option.allowed is None:
            continue
        wrong = ("no such name",) if option.type is str else (math.nan, math.inf, -1e300)
        for value in wrong if option.type is not int else (-(2**31), 1.5, True):
            with pytest.raises(ValueError, match=f"^{setting} is "):
                methods.build(name, run, **{setting: value})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("fedmatch", {"preset": "papre"}, "preset is 'papre'. Did you mean 'paper'"),
        ("fedul", {"temperature": 1.0}, "method 'fedul' has no option 'temperature'"),
        # settings that contradict each other, or the run
        ("uda", {}, "tsa_rounds is 0"),
        ("pseudo_label", {"ramp_end": 10}, "ramp_end is 10"),
        ("mixed", {"channel_weight": 0.0, "pseudo_label_weight": 0.0}, "all weights are 0"),
        ("fl2", {"pseudo_label_weight": 0.0, "consistency_weight": 0.0}, "both 0; clients would have nothing to learn"),
        ("fedmt", {"gate": "none"}, "projection_examples must be 'all'"),
        (
            "fedmt",
            {"gate": "none", "projection_examples": "all", "projection_weight": 0.0},
            "projection_weight must be above 0",
        ),
        ("fedmt", {"fix_weight": 0.0, "mix_weight": 0.0, "projection_weight": 0.0}, "all 0"),
    ],
)
def test_messages_about_settings(setup, name: str, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        methods.build(name, setup, **settings)
