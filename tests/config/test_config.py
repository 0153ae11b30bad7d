"""Defaults, resolving and what is refused."""

import re
import warnings
from importlib import util
from pathlib import Path

import pytest

from fedjax_ssl import config as configs
from fedjax_ssl import methods, presets

FILES = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))


def load(path: Path):
    spec = util.spec_from_file_location(path.stem, path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_config_file_resolves(path):
    resolved = configs.resolve(load(path)())
    assert resolved.method.name in methods.available()
    assert f"--config configs/{path.name}" in path.read_text(), "the docstring shows the command"
    assert len(path.read_text().splitlines()) <= 110


def test_there_is_a_digits_config_for_every_method():
    """The baselines of FedUL, and fedtrans of FedMT, are variants of their configs; `alone` and
    `pooled` are FedAvg without a federation.
    """
    found = {path.stem.removeprefix("digits_") for path in FILES if path.stem.startswith("digits_")}
    variants = {*presets.FEDUL_METHODS, "fedtrans", "alone", "pooled"}
    assert found | variants == {*methods.available(), "predict", "private", "unreliable"}


def test_cifar10_variants_follow_the_spec():
    """XCLP section 5.3: batch min(50, labels per client), rate 0.3 / 0.1 / 0.05 by batch size."""
    get_config = load(next(path for path in FILES if path.stem == "cifar10_xclp"))
    expected = {
        "5000,100,iid": (50, 0.3),
        "5000,50,noniid": (50, 0.3),
        "1000,50,iid": (20, 0.1),
        "1000,100,iid": (10, 0.05),
    }
    for variant, (batch_size, rate) in expected.items():
        config = get_config(variant)
        assert (config.optimizer.batch_size, config.optimizer.learning_rate) == (batch_size, rate)


def test_sage_is_standardized_as_in_its_code_where_that_is_asked_for():
    get_config = load(next(path for path in FILES if path.stem == "cifar100_sage"))
    assert get_config("0.1").data.test_std is None
    section = configs.resolve(get_config("0.1,code")).data
    assert (section.std, section.test_std) == ((0.2471, 0.2435, 0.2616), (0.2673, 0.2564, 0.2762))
    cinic = load(next(path for path in FILES if path.stem == "cinic10_fixmatch"))("0.1,code").data
    assert (cinic.std[0], cinic.test_std[0]) == (0.2471, 0.2421)
    with pytest.raises(
        configs.ConfigError,
        match=r"standardize is 'codes' in the argument '0.1,codes' of this config; give SPLIT,STAND",
    ):
        get_config("0.1,codes")


@pytest.mark.parametrize(
    ("before", "set_there", "name", "method"),
    [
        ("xclp", {"warmup_rounds": 7}, "fedsem", {"name": "fedsem", "warmup_rounds": 7}),
        ("fixmatch", {"unlabelled_ratio": 3}, "uda", {"threshold": 0.8, "unlabelled_ratio": 3}),
        ("fixmatch", {"threshold": 0.7}, "uda", {"threshold": 0.7}),
    ],
)
def test_another_name_in_a_file_takes_over_what_was_set_and_says_so(
    before: str, set_there: dict[str, object], name: str, method: dict[str, object]
) -> None:
    config = configs.default(before)
    config.method.update(set_there)
    config.method.name = name
    with pytest.warns(configs.ConfigNote, match=f"^method.name={name}: carried from the config: "):
        resolved = configs.resolve(config)
    assert method.items() <= resolved.method.to_dict().items()
    assert {*resolved.method} == {"name", *methods.settings(name)}


def test_a_misspelt_field_is_refused_when_it_is_set_and_when_it_was_unlocked():
    config = configs.default()
    with pytest.raises(AttributeError, match="learning_rate"):
        config.optimizer.learning_rat = 1.0
    with config.unlocked():
        config.optimizer.learning_rat = 1.0
    with pytest.raises(
        configs.ConfigError, match=r"Did you mean 'config\.optimizer\.learning_rate'"
    ):
        configs.resolve(config)


def test_resolving_fills_in_what_depends_on_other_fields_and_locks():
    config = configs.default()
    config.rounds = 33
    resolved = configs.resolve(config)
    assert resolved.optimizer.schedule_rounds == 33 and resolved.is_locked
    assert config.optimizer.schedule_rounds is None


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("0", "labels is '0' in the argument '0' of this config; give LABELS. labels: a whole"),
        ("many", "a whole number of at least 1 or all. For example 5"),
        ("5,6", "there are 2 values in the argument '5,6' of this config; give LABELS"),
    ],
)
def test_what_an_argument_does_not_take_is_said_with_what_it_takes(argument, message):
    get_config = presets.variants(presets.digits_by_writer, "fedavg")
    assert get_config("all").supervision.name == "all"
    assert get_config("").supervision.labels == get_config("5").supervision.labels == 5
    with pytest.raises(configs.ConfigError, match=message):
        get_config(argument)


def test_a_run_that_ends_within_stage_1_is_noted():
    config = presets.digits_by_writer("xclp")
    config.rounds = 3
    config.method.warmup_rounds = 3
    with pytest.warns(configs.ConfigNote, match="stage 1 takes 3 rounds"):
        configs.resolve(config)
    transfer = load(next(path for path in FILES if path.stem == "digits_fedmt"))(
        "20,shape,fedtrans"
    )
    assert configs.resolve(transfer).method.coarse_rounds == 15
    transfer.rounds = 15
    with pytest.warns(configs.ConfigNote, match="stage 1 takes 15 rounds"):
        configs.resolve(transfer)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"parts": 6}, "4 rounds come to 4 of the 6 parts"),
        (
            {"parts": 4, "rounds_per_part": 3},
            r"4 rounds come to 2 of the 4 parts .*rounds_per_part is 3",
        ),
        ({"rounds_per_part": 2}, "rounds_per_part=2 has no effect without config.partition.parts"),
        ({"parts": 3}, ""),
    ],
)
def test_parts_of_a_stream_that_do_not_come_are_noted(given: dict[str, int], said: str) -> None:
    config = configs.default("fixmatch")
    config.rounds = 4
    config.partition.name = "fedmatch"
    config.partition.num_clients = 5
    config.partition.update(given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        configs.resolve(config)
    notes = [str(note.message) for note in caught if "part" in str(note.message)]
    assert len(notes) == bool(said) and all(re.search(said, note) for note in notes)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"optimizer.name": "adam", "optimizer.momentum": 0.9, "optimizer.learning_rate": 0.01},
            ["momentum=0.9"],
        ),
        ({"optimizer.nesterov": True}, ["nesterov=True"]),
        ({"optimizer.schedule_rounds": 5}, ["schedule_rounds=5"]),
        ({"optimizer.keep_state": True}, ["keep_state=True"]),
        ({"data.shuffle_pools": True}, ["shuffle_pools=True"]),
        ({"supervision.which": "random"}, ["which=random"]),
        ({"prediction.alpha": 0.5}, ["alpha=0.5"]),
        (
            {"prediction.predictors": "network, xclp", "prediction.hamming": "paillier"},
            ["hamming=paillier"],
        ),
        ({"prediction.predictors": "network,xclp", "prediction.groups": 2}, []),
        (
            {
                "method.name": "fixmatch",
                "method.threshold_rule": "freematch",
                "method.threshold": 0.5,
                "method.threshold_decay": 0.9,
            },
            ["method.threshold=0.5"],
        ),
        (
            {
                "method.name": "compose",
                "method.parts": ("supervised", "fixmatch"),
                "method.fixmatch.threshold_decay": 0.9,
                "method.fixmatch.threshold": 0.5,
            },
            ["method.fixmatch.threshold_decay=0.9"],
        ),
    ],
)
def test_settings_that_do_nothing_beside_the_others_are_named(
    fields: dict[str, object], said: list[str]
) -> None:
    config = configs.with_settings(presets.digits_by_writer("fedavg"), fields)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        configs.resolve(configs.resolve(config))
    assert {note.filename for note in caught} <= {__file__}
    notes = {str(note.message) for note in caught}
    assert len(notes) == len(said) and all("has no effect" in note for note in notes)
    assert all(any(one in note for note in notes) for one in said)


def test_with_validation_data_the_model_of_stage_1_has_to_be_evaluated():
    config = presets.digits_by_writer("xclp")
    config.method.warmup_rounds = 7
    config.data.validation_fraction = 0.1
    with pytest.raises(
        configs.ConfigError, match=r"of 'xclp' is 7; .* multiple of .*: use config.eval_every=1 or"
    ):
        configs.resolve(config)
