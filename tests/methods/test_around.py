"""Wrappers of recipes, which a config names in `around`."""

import runpy
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import pytest

import fedjax_ssl as fs
from fedjax_ssl import federated, methods, runs
from fedjax_ssl.federated import Facts, Recipe, build
from fedjax_ssl.methods.around import WRAPPERS, wrapped
from fedjax_ssl.methods.around.slow_clients import slow_clients
from tests import toy
from tests.methods import cases

KEY = jax.random.key(1)
DATA = toy.federation()


def recipe_of(name: str, data) -> Recipe:
    return methods.recipe(name, cases.setup(name, data), **cases.of(name).settings)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "fedavg" else pytest.param(name, marks=pytest.mark.thorough)
        for name in sorted(methods.available())
    ],
)
def test_slow_clients_take_the_first_of_their_steps_in_every_method(name: str) -> None:
    kind = build(recipe_of(name, toy.weak_federation("labels"))).recipe.needs.kinds[0]
    data = toy.weak_federation(kind)
    recipe = recipe_of(name, data)
    usual, slowed = (
        toy.train(build(slow_clients(recipe, slow=slow, least_work=0.1)), KEY, data, 2)[1][1]
        for slow in (0.0, 1.0)
    )
    assert slowed["clients"] == usual["clients"]
    if name not in ("single", "fedtrans"):  # the server alone; a step of each client
        assert usual["local_steps"] / 10 <= slowed["local_steps"] < usual["local_steps"]


@pytest.mark.thorough
@pytest.mark.promise
def test_the_page_on_composition_and_wrappers_runs(tmp_path, monkeypatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "extending.md"
    mark = "<!-- tests/methods/test_around.py runs this block. -->\n```python\n"
    block = page.read_text(encoding="utf-8").partition(mark)[2].partition("```")[0]
    (tmp_path / "my_parts.py").write_text(block, encoding="utf-8")
    runpy.run_path(str(tmp_path / "my_parts.py"), run_name="__main__")
    monkeypatch.syspath_prepend(tmp_path)
    config = fs.load_config(
        "digits_fedul",
        {"method.name": "my_parts:both", "around": ("slow_clients", "my_parts:tired"), "rounds": 2},
    )
    assert fs.run(config, tmp_path / "run", quiet=True)["rounds"] == 2


def test_nobody_slow_changes_no_bit() -> None:
    data = toy.federation()
    recipe = recipe_of("fedavg", data)
    one, _ = toy.train(build(recipe), KEY, data, 1)
    other, _ = toy.train(build(slow_clients(recipe, slow=0.0)), KEY, data, 1)
    chex.assert_trees_all_equal(one, other)


def test_a_config_names_wrappers_with_facts_of_the_run(monkeypatch) -> None:
    monkeypatch.setattr(WRAPPERS, "_builders", dict(WRAPPERS._builders))
    monkeypatch.setattr(WRAPPERS, "_lines", dict(WRAPPERS._lines))
    told = []

    @fs.register("around")
    def telling(recipe: Recipe, facts: Facts) -> Recipe:
        told.append(facts)
        return recipe

    names = ("slow_clients", "telling")
    config = fs.load_config("digits_fedavg", {"around": names, "rounds": 3})
    experiment = runs.load_experiment(config)
    federation = runs.federate(experiment, KEY)
    runs.build(experiment, federation)
    assert told == [Facts(federation.num_clients, federation.num_clients, 3)]


def test_what_is_no_wrapper_is_refused() -> None:
    recipe = recipe_of("fedavg", toy.federation())
    with pytest.raises(ValueError, match="Did you mean 'slow_clients'"):
        wrapped(recipe, ["slow_client"])
    with pytest.raises(
        ValueError, match=r"load_config' returned ConfigDict; it has to return a .*Recipe"
    ):
        wrapped("digits", ["fedjax_ssl:load_config"])


def test_a_closed_method_is_no_part(monkeypatch) -> None:
    monkeypatch.setitem(
        methods.METHODS._builders, "closed", lambda setup: methods.build("fedavg", setup)
    )
    assert isinstance(methods.build("closed", toy.setup(DATA)), federated.Method)
    with pytest.raises(ValueError, match="closed returned a Method, to which nothing can be added"):
        methods.recipe("closed", toy.setup(DATA))


def nothing(recipe: Recipe) -> Recipe:
    return recipe.with_schedules(lambda key, client, drawn: None)


def broken(recipe: Recipe) -> Recipe:
    return {}["fedavg"]


def halved(recipe: Recipe) -> Recipe:
    return recipe.with_schedules(
        lambda key, client, drawn: drawn._replace(num_steps=drawn.num_steps.astype(jnp.float32))
    )


def of_one(recipe: Recipe) -> Recipe:
    return recipe.with_schedules(lambda drawn: drawn)


def first_round(*around: str) -> None:
    method = build(wrapped(recipe_of("fedavg", DATA), around))
    state = jax.eval_shape(method.init, KEY, DATA)
    jax.eval_shape(method.round, KEY, state, DATA)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: fs.build(3), r"fs.build takes .* a fedjax_ssl.Recipe, and was given int"),
        (lambda: fs.build(None), "fs.build .* was given NoneType"),
        (lambda: first_round("nothing"), r"returned NoneType; .* the Schedule .*test_around.py"),
        (lambda: first_round("halved"), r"num_steps of type float32 .* a number of type int32"),
        (lambda: first_round("of_one"), "config.around: .* cannot be called with key, client, sch"),
        (lambda: first_round("broken"), "config.around: broken raised KeyError: 'fedavg' .*test_a"),
    ],
)
def test_what_is_no_recipe_or_wrapper_is_refused_in_a_sentence(ask, message, monkeypatch) -> None:
    own = {"nothing": nothing, "broken": broken, "halved": halved, "of_one": of_one}
    monkeypatch.setattr(WRAPPERS, "_builders", {**WRAPPERS._builders, **own})
    with pytest.raises(ValueError, match=message):
        ask()
