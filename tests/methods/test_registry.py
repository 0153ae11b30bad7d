import inspect
import math

import jax
import pytest

from fedjax_ssl import methods
from fedjax_ssl.methods.parts.recommended import PLACES
from tests import toy


@pytest.fixture(scope="module")
def setup():
    return toy.setup(toy.federation())


def test_all_methods_are_listed_with_a_line_about_each() -> None:
    assert all(
        line.endswith((".", ":")) and len(line) > 20 for line in methods.available().values()
    )


def test_every_setting_has_a_default() -> None:
    for name in methods.available():
        assert not {inspect.Parameter.empty, "setup"} & {*methods.settings(name).values()}
        assert "setup" not in methods.settings(name)


def test_label_propagation_alone_and_across_clients_have_the_same_variant() -> None:
    """XCLP section 2: per-client LP and XCLP must always use the same variant."""
    alone = methods.settings("per_client_lp")
    across = methods.settings("xclp")
    for name in (
        "alpha",
        "num_neighbors",
        "similarity_power",
        "label_norm",
        "confidence_scale",
        "class_weighting",
    ):
        assert alone[name] == across[name], name


def test_a_method_fits_the_labels_that_it_can_learn_from() -> None:
    """What files recommend and what recipes need say the same."""
    for name in methods.METHODS:
        for place in methods.recommended(name):
            assert methods.fits(name, place), (name, place)
    fitting = {
        place: {name for name in methods.METHODS if methods.fits(name, place)}
        for place in ("per_client", "server", "sets", "none")
    }
    assert {"fedavg", "xclp", "fedmatch", "protofssl", "cbafed"} <= fitting["per_client"]
    assert not {"semifl", "fedmt", "fedul"} & fitting["per_client"]
    assert {"semifl", "fixmatch", "fedmatch", "pooled"} <= fitting["server"]
    assert "fedavg" not in fitting["server"] and "fedul" in fitting["sets"]
    assert not fitting["none"]


@pytest.mark.parametrize("name", [*methods.METHODS])
def test_recommended_settings_are_settings_of_the_method(name: str) -> None:
    """A shared one, such as the epochs at a server, may be no setting of a method."""
    known = {f"method.{setting}" for setting in methods.settings(name)}
    shared = {field for fields in PLACES.values() for field in fields}
    for fields in methods.recommended(name).values():
        assert {field for field in fields if field.startswith("method.")} <= known | shared


@pytest.mark.parametrize(
    ("name", "hint"),
    [("xlcp", "Did you mean 'xclp'"), ("fedavgg", "Did you mean 'fedavg'"), ("zzz", "Available:")],
)
def test_an_unknown_method_is_refused_with_the_nearest_one(setup, name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"unknown method '{name}'.*{hint}"):
        methods.build(name, setup)
    with pytest.raises(ValueError, match=hint):
        methods.settings(name)


def test_an_unknown_setting_is_refused(setup) -> None:
    with pytest.raises(ValueError, match=r"'xclp' has no option 'bits'.*num_bits"):
        methods.build("xclp", setup, bits=8)
    with pytest.raises(ValueError, match=r"'fedavg' has no option 'alpha'.*none"):
        methods.build("fedavg", setup, alpha=0.5)


def test_fedsiam_without_a_second_head_says_which_field_to_set(setup) -> None:
    data = toy.federation()
    with pytest.raises(ValueError, match=r"config\.model\.aux_head"):
        method = methods.build("fedsiam", setup)
        jax.eval_shape(method.round, jax.random.key(0), method.init(jax.random.key(0), data), data)


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
        ("fedul", {"temperature": 1.0}, "method 'fedul' has no option 'temperature'"),
        # settings that contradict each other, or the run
        ("uda", {}, "tsa_rounds is 0"),
        ("pseudo_label", {"ramp_end": 10}, "ramp_end is 10"),
        ("mixed", {"channel_weight": 0.0}, "channel_weight is 0"),
        (
            "fl2",
            {"pseudo_label_weight": 0.0, "consistency_weight": 0.0},
            "both 0; clients would have nothing to learn",
        ),
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
