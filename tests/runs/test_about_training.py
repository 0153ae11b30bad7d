"""What a run says of its training before it starts: parts that are right each by itself and that
together do what few people mean.
"""

from types import SimpleNamespace

import jax
import pytest

import fedjax_ssl as fs
from fedjax_ssl import config as configs
from fedjax_ssl import methods
from fedjax_ssl.config import ConfigError
from fedjax_ssl.runs import advice
from fedjax_ssl.runs.build import Built, build, federate, load_experiment
from fedjax_ssl.runs.loop import run
from fedjax_ssl.runs.model_file import registered_elsewhere
from fedjax_ssl.runs.notes import _rounds_of_server, about_training
from fedjax_ssl.runs.own_sources import registered_in_words
from tests import toy


@pytest.fixture(scope="module")
def federation():
    experiment = load_experiment(fs.load_config("digits_fedavg", {"data.validation_fraction": 0.2}))
    return experiment, federate(experiment, jax.random.key(0))


def said(federation, **settings) -> list[str]:
    settings = {"rounds": 6, "data.validation_fraction": 0.2} | settings
    config = configs.resolve(fs.load_config("digits_fedavg", settings))
    experiment, data = federation
    return list(about_training(build(experiment._replace(config=config), data)))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, None),
        ({"model.train": "head"}, "the rest of it stays as random as it starts"),
        ({"personalize.name": "ditto"}, "the models of the last round are kept"),
        (
            {"personalize.name": "ditto", "select_from": 2},
            "the round in best/ may be a poor one for these",
        ),
    ],
)
def test_what_parts_do_together(federation, settings, told) -> None:
    found = said(federation, **settings)
    assert [told in line for line in found] == [True] if told else found == []


def test_a_wrapper_is_named_at_the_start() -> None:
    settings = {"around": ("slow_clients",), "personalize.name": "ditto"}
    words = advice._wrappers_in_words(fs.load_config("digits_fedavg", settings))["wrapper"]
    assert words.startswith(
        "slow_clients (config.around): Slow clients, drawn anew in every round, take"
    )
    assert "; ditto (config.personalize): Every client trains a model of its own" in words
    assert advice._wrappers_in_words(fs.load_config("digits_fedavg")) == {}


def test_upload_transforms_are_named_at_the_start() -> None:
    config = fs.load_config("digits_fedavg", {"uploads": ("mine:top",)})
    assert advice._uploads_in_words(config) == {"uploads": "mine:top: your own"}
    assert advice._uploads_in_words(fs.load_config("digits_fedavg")) == {}


def test_a_round_of_the_server_alone_is_named(federation) -> None:
    data = toy.weak_federation("server")
    config = configs.resolve(fs.load_config("digits_fedmt", {"rounds": 3}))
    method = methods.build("fedmt", toy.setup(data))
    experiment = federation[0]._replace(config=config)
    assert list(_rounds_of_server(Built(experiment, data, method, None, None))) == [
        "in round 1 only the server trains, on its own labelled examples"
    ]


def test_no_more_rounds_of_the_server_are_named_than_the_run_has(federation) -> None:
    config = configs.resolve(fs.load_config("digits_fedmt", {"rounds": 3}))
    recipe = methods.build("fedmt", toy.setup(toy.weak_federation("server"))).recipe
    recipe = recipe._replace(stages=(recipe.stages[0]._replace(rounds=9), *recipe.stages[1:]))
    experiment = federation[0]._replace(config=config)
    method = SimpleNamespace(recipe=recipe)
    assert list(_rounds_of_server(Built(experiment, None, method, None, None))) == [
        "in rounds 1 to 3 only the server trains, on its own labelled examples"
    ]


def test_double_precision_is_named(federation) -> None:
    built = federation[0]._replace(config=configs.resolve(fs.load_config("digits", {"rounds": 1})))
    with jax.enable_x64(True):
        line = next(about_training(Built(built, federation[1], None, None, None)))
    assert line.startswith("JAX_ENABLE_X64 is set")


def test_a_search_for_nan_is_refused(tmp_path) -> None:
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(ConfigError, match="JAX_DEBUG_NANS is set"):
            run(fs.load_config("digits_fedavg", {"rounds": 1}), tmp_path / "a")
    finally:
        jax.config.update("jax_debug_nans", False)
    assert not (tmp_path / "a").exists()


def test_a_name_that_a_session_has_registered_is_said_at_both_ends() -> None:
    config = fs.load_config("digits_fedavg")
    assert not [*registered_in_words(config)] and not registered_elsewhere(config.to_dict())
    fs.register("model", "of_a_cell", lambda num_classes, input_shape: None)
    try:
        own = fs.load_config("digits_fedavg", {"model.name": "of_a_cell"})
        (line,) = registered_in_words(own)
        assert line.startswith("model 'of_a_cell' is registered in this session")
        assert not registered_elsewhere(own.to_dict())
    finally:
        del configs.REGISTRIES["model"]._builders["of_a_cell"]
        del configs.REGISTRIES["model"]._lines["of_a_cell"]
    assert registered_elsewhere(own.to_dict()) == ["model 'of_a_cell'"]


def test_own_models_start_from_the_common_one(federation) -> None:
    experiment, data = federation
    built = build(
        experiment._replace(
            config=configs.resolve(
                fs.load_config("digits_fedavg", {"personalize.name": "ditto", "start_from": "runs"})
            )
        ),
        data,
    )
    assert any("clients' own models start as a copy" in line for line in about_training(built))


def test_a_start_whose_checkpoints_are_gone_stops_no_run_that_goes_on(federation, tmp_path) -> None:
    for name in ("model.json", "config.json"):
        (tmp_path / name).write_text('{"version": 1, "rounds": 2}')
    assert not said(federation, start_from=str(tmp_path))
