import inspect

import jax
import pytest

from fedjax_ssl import methods
from tests import toy

EXPECTED = {"fedavg", "xclp", "per_client_lp", "network_pseudo_label", "fedsem", "fedsiam"}


@pytest.fixture(scope="module")
def setup():
    return toy.setup(toy.federation())


def test_all_methods_are_listed_with_a_line_about_each() -> None:
    assert methods.available().keys() >= EXPECTED
    assert all(line.endswith((".", ":")) and len(line) > 20 for line in methods.available().values())


def test_settings_are_the_names_and_defaults_of_the_recipe() -> None:
    assert methods.settings("fedavg") == {}
    found = methods.settings("xclp")
    assert (found["num_bits"], found["num_neighbors"], found["alpha"]) == (4096, 10, 0.99)
    assert (found["similarity_power"], found["label_norm"]) == (3.0, "class")
    assert (found["confidence_scale"], found["class_weighting"]) == ("max", "inverse_freq")
    assert methods.settings("fedsiam")["consistency_weight"] == 100.0
    for name in methods.available():
        assert inspect.Parameter.empty not in methods.settings(name).values(), "every setting has a default"
        assert "setup" not in methods.settings(name)


def test_label_propagation_alone_and_across_clients_have_the_same_variant() -> None:
    """XCLP section 2: per-client LP and XCLP must always use the same variant."""
    alone, across = methods.settings("per_client_lp"), methods.settings("xclp")
    for name in ("alpha", "num_neighbors", "similarity_power", "label_norm", "confidence_scale", "class_weighting"):
        assert alone[name] == across[name], name


@pytest.mark.parametrize(
    ("name", "hint"), [("xlcp", "Did you mean 'xclp'"), ("fedavgg", "Did you mean 'fedavg'"), ("zzz", "Available:")]
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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("xclp", {"graph_features": "pixels"}, "'pixels'.*network, inputs"),
        ("xclp", {"class_weighting": "sqrt"}, "'sqrt'.*none, inverse_freq"),
        ("per_client_lp", {"graph_features": "pixels"}, "'pixels'.*network, inputs"),
        ("fedsiam", {"predict_with": "both"}, "'both'.*student, teacher"),
        ("fedsiam", {"ramp_rounds": 0}, "ramp_rounds is 0"),
    ],
)
def test_settings_outside_what_is_allowed_are_refused(setup, name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        methods.build(name, setup, **options)


@pytest.mark.parametrize("name", sorted(EXPECTED - {"fedavg"}))
def test_a_negative_first_stage_is_refused(setup, name: str) -> None:
    with pytest.raises(ValueError, match="warmup_rounds is -1"):
        methods.build(name, setup, warmup_rounds=-1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("xclp", {"alpha": 1.0}, "alpha"),
        ("xclp", {"num_bits": 0}, "num_bits"),
        ("xclp", {"num_neighbors": 0}, "num_neighbors"),
        ("xclp", {"label_norm": "rows"}, "rows"),
        ("xclp", {"confidence_scale": "sum"}, "sum"),
        ("per_client_lp", {"similarity": "dot"}, "dot"),
        ("per_client_lp", {"alpha": -0.5}, "alpha"),
    ],
)
def test_settings_of_the_graph_are_checked_before_training(setup, name: str, options: dict, message: str) -> None:
    """At the latest when the first round is traced."""
    data = toy.federation()
    with pytest.raises(ValueError, match=message):
        method = methods.build(name, setup, **options)
        jax.eval_shape(method.round, jax.random.key(0), method.init(jax.random.key(0), data), data)


def test_fedsiam_without_a_second_head_says_which_field_to_set(setup) -> None:
    data = toy.federation()
    with pytest.raises(ValueError, match=r"config\.model\.aux_head"):
        method = methods.build("fedsiam", setup)
        jax.eval_shape(method.round, jax.random.key(0), method.init(jax.random.key(0), data), data)
