"""Compositions that a config names: equal to methods, shared passes, refused in a sentence."""

import re
from types import SimpleNamespace
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_ssl as fs
from fedjax_ssl import methods
from fedjax_ssl.config import ConfigNote, resolve, traced_numbers, with_settings
from fedjax_ssl.federated import Stage, Term, build
from fedjax_ssl.methods.parts.composition import Part, _rising
from fedjax_ssl.methods.parts.terms import augmented_view
from fedjax_ssl.testing import check_method
from tests import toy
from tests.methods import cases
from tests.methods.test_mixed import four_kinds

KEY = jax.random.key(1)
FOUR = ("supervised", "sets", "coarse", "prototypes", "fixmatch")
FIXMATCH = {"fixmatch.threshold": 0.5, "unlabelled_ratio": 2}


def composed(data, *parts: Any, **settings: Any):
    setup = toy.setup(data, augment=toy.jitter)
    return methods.build("compose", setup, parts=parts, **settings)


def program(method, data) -> str:
    state = jax.eval_shape(method.init, KEY, data)
    return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(method.round)(KEY, state, data)))


def entropy(setup: fs.Setup, *, factor: float = 1.0) -> Term:
    """Entropy of predictions for unlabelled examples."""
    view = augmented_view(setup, "unlabelled")

    def loss(step):
        log_probs = jax.nn.log_softmax(step.outputs[view.name].logits)
        return -factor * jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=1))

    return Term("entropy", (view,), loss)


def elsewhere(setup: fs.Setup) -> Term:
    return Term("elsewhere", (augmented_view(setup, "moon"),), lambda step: jnp.zeros(()))


def whole(setup: fs.Setup) -> fs.Recipe:
    """Return a method."""
    return methods.recipe("fedavg", setup)


OWN = f"{__name__}:entropy"


@pytest.mark.parametrize(("name", "part"), [("fedavg", "supervised"), ("fedul", "channels")])
def test_a_method_is_a_composition_of_one_part(name: str, part: str) -> None:
    """The same program, so that every bit is the same."""
    data = toy.weak_federation("labels" if name == "fedavg" else "sets")
    method = methods.build(name, toy.setup(data, augment=toy.jitter))
    assert program(method, data) == program(composed(data, part), data)


def test_fixmatch_is_its_terms_bit_for_bit() -> None:
    data = toy.federation()
    settings = {"threshold": 0.5, "unlabelled_ratio": 2}
    method = methods.build("fixmatch", toy.setup(data, augment=toy.jitter), **settings)
    alone, _ = toy.train(method, KEY, data, 2)
    terms, _ = toy.train(composed(data, "supervised", "fixmatch", **FIXMATCH), KEY, data, 2)
    chex.assert_trees_all_equal(alone.params, terms.params)


def test_another_term_costs_no_other_pass_and_no_row() -> None:
    data = four_kinds()
    setup = toy.setup(data, augment=toy.jitter)
    trained = []

    def apply(params, state, inputs, *, train, **how):
        if train:
            trained.append(inputs.shape[0])
        return setup.model.apply(params, state, inputs, train=train, **how)

    seen = setup._replace(model=setup.model._replace(apply=apply))
    passes = []
    for parts in (("supervised", "fixmatch"), FOUR, (*FOUR, OWN)):
        trained.clear()
        method = methods.build("compose", seen, parts=parts, **FIXMATCH)
        jax.eval_shape(method.round, KEY, jax.eval_shape(method.init, KEY, data), data)
        passes.append(sorted(trained))
    assert passes[0] == passes[1] == passes[2] and len(set(passes[0])) == 1


def test_four_terms_learn_from_four_kinds_of_clients() -> None:
    """Also for several seeds at once."""
    data = four_kinds()
    method = composed(data, *FOUR, **FIXMATCH, **{"prototypes.threshold": 0.4})
    assert method.recipe.needs.kinds == ("labels", "sets", "coarse")
    assert not method.recipe.check(data)
    _, infos = toy.train(method, KEY, data, 3)
    assert "fixmatch/pseudo_label_coverage" in infos[-1]
    assert infos[-1]["loss"] < infos[1]["loss"] and infos[-1]["clients"] == 6
    assert infos[-1]["pseudo_label_coverage"] > 0.5
    keys = jax.random.split(KEY, 2)
    states = jax.eval_shape(jax.vmap(lambda key: method.init(key, data)), keys)
    after, _ = jax.eval_shape(jax.vmap(method.round, in_axes=(0, 0, None)), keys, states, data)
    assert after.round.shape == (2,)


@pytest.mark.thorough
def test_four_terms_keep_every_promise() -> None:
    special = cases.special("compose")
    check_method(lambda setup: methods.recipe("compose", setup, parts=FOUR, **FIXMATCH), special)


def test_a_weight_is_the_factor_of_a_parts_losses() -> None:
    data = toy.federation()
    twice, own = (
        composed(data, "supervised", OWN, **{f"entropy.{setting}": 2.0})
        for setting in ("weight", "factor")
    )
    changed = [toy.train(method, KEY, data, 1)[0].params for method in (twice, own)]
    chex.assert_trees_all_close(*changed, rtol=1e-6)
    assert program(composed(data, "supervised", OWN), data) != program(twice, data)


def test_a_part_joins_after_rounds_of_the_others_in_a_stage_of_its_own() -> None:
    """Each stage is the program of the parts that are there."""
    data = toy.federation()
    setup = toy.setup(data, augment=toy.jitter)
    parts = ("supervised", OWN)
    later = methods.recipe("compose", setup, parts=parts, **{"entropy.after": 2})
    assert [stage.rounds for stage in later.stages] == [2, None]
    for stage, there in zip(later.stages, (parts[:1], parts), strict=True):
        alone = build(later._replace(stages=(stage._replace(rounds=None),)))
        assert program(alone, data) == program(composed(data, *there), data)


def test_the_weight_of_a_part_rises_once_it_is_there() -> None:
    term = Term("whole", (), lambda step: (jnp.ones(()), step.local))
    ramp = _rising(Part(term, after=2, rise=4)).loss
    found = [
        ramp(
            SimpleNamespace(now=SimpleNamespace(round=jnp.asarray(number)), local=jnp.asarray(7.0))
        )
        for number in (1, 2, 4, 5, 9)
    ]
    assert [float(value) for value, _ in found] == [0, 0.25, 0.75, 1, 1]
    assert all(local == 7 for _, local in found)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("part", "settings"),
    [("graph", {"num_bits": 256, "num_neighbors": 3}), ("prototypes", {"threshold": 0.4})],
)
def test_a_part_that_joins_later_teaches_nothing_before_and_the_run_goes_on(part, settings) -> None:
    data = toy.federation()
    sections = {f"{part}.{name}": value for name, value in settings.items()}
    method = composed(data, "supervised", part, **sections, **{f"{part}.after": 2})
    states, infos = toy.every_state(method, KEY, data, 4)
    alone, _ = toy.train(composed(data, "supervised"), KEY, data, 2)
    chex.assert_trees_all_equal(states[2].params, alone.params)
    assert np.isnan(infos[1]["pseudo_label_accuracy"])
    assert infos[-1]["pseudo_label_coverage"] > 0.5
    stored = jax.tree.map(jnp.asarray, jax.device_get(states[3]))
    chex.assert_trees_all_equal(toy.every_state(method, KEY, data, 1, stored)[0][-1], states[4])


@pytest.mark.parametrize(
    ("parts", "settings", "message"),
    [
        (("supervised", "protofssl"), {}, "'protofssl' is a method with batches or stages of its"),
        (("pooled",), {}, "'pooled' is a method with batches"),
        (("fixmatch", "prototypes"), {}, "no part of fixmatch, prototypes learns from labels"),
        (("supervised",), {"supervised.after": 2}, "all parts join after 2 rounds or later"),
        (("supervised", OWN), {"entropy.after": -1}, "entropy.after is -1; it must be a whole"),
        ((), {}, "parts is empty; name terms of"),
        (("fixmatch", "fixmach"), {}, "unknown part 'fixmach'. Did you mean 'fixmatch'"),
        (("compose",), {}, "'compose' is a method with batches"),
        ((OWN, "other:entropy"), {}, "parts are called entropy, entropy; two of one name"),
        (("supervised",), {"uda.threshold": 0.5}, "settings of uda, which is not among the parts"),
        (("fedul", "fixmatch"), {"fixmatch.ema_decay": 0.5}, "the part 'fixmatch': .* no option"),
        (("supervised", "fixmatch"), {"fixmatch.weight": 0.0}, "weight of 'fixmatch' is 0; leave"),
        (("supervised", "channels"), {}, "'supervised' and 'channels' both have a loss on class"),
        (("sets", "fedul"), {}, "'sets' and 'fedul' both have a loss on sets with known"),
        (("supervised", f"{__name__}:elsewhere"), {}, "'elsewhere' reads the stream 'moon'"),
        ((f"{__name__}:whole",), {}, "whole' is a Recipe, with batches or stages of its own"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts, settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        composed(toy.federation(), *parts, **settings)


def test_what_the_federation_lacks_is_said() -> None:
    data = toy.federation(weak="sets", labelled=(0,) * 6)
    sentence = "'coarse' learns from coarse labels, and this federation has sets with known class"
    with pytest.raises(ValueError, match=sentence):
        composed(data, "sets", "coarse").recipe.check(data)
    assert not composed(data, "fedul", "fixmatch").recipe.check(data)


def test_a_config_has_the_settings_of_its_parts() -> None:
    config = fs.load_config(
        "digits",
        {
            "method.fixmatch.threshold": "0.8",
            "method.parts": "supervised,fixmatch," + OWN,
            "method.name": "compose",
            "method.entropy.weight": 0.5,
        },
    )
    assert config.method.fixmatch.threshold == 0.8 and config.method.entropy.factor == 1.0
    short = with_settings(config, {"rounds": 10, "method.entropy.after": 10})
    with pytest.warns(ConfigNote, match=r"joins after 10 \(config.method.entropy.after\)"):
        resolve(short)
    assert traced_numbers(resolve(config))["method.entropy.weight"] == 0.5
    fewer = with_settings(config, {"method.parts": ("supervised", "fixmatch")})
    assert fewer.method.fixmatch.threshold == 0.8 and "entropy" not in fewer.method
    with fewer.unlocked():
        fewer.method.parts = ("supervised", "moon")
        del fewer.method["fixmatch"]
    assert resolve(fewer).method.moon.weight == 1.0
    for field, message in (
        ("method.uda.threshold", "'uda' is not among method.parts: supervised, fixmatch, "),
        ("method.fixmatch.threshhold", "Did you mean 'method.fixmatch.threshold'"),
    ):
        with pytest.raises(ValueError, match=message):
            with_settings(config, {field: 0.5})


def test_a_term_of_ones_own_has_a_name(monkeypatch) -> None:
    monkeypatch.setattr(methods.TERMS, "_builders", dict(methods.TERMS._builders))
    monkeypatch.setattr(methods.TERMS, "_lines", dict(methods.TERMS._lines))
    fs.register("term", "calm", entropy)
    recipe = methods.recipe("compose", toy.setup(toy.federation()), parts=("supervised", "calm"))
    assert isinstance(recipe.stages[0], Stage) and recipe.needs.kinds == ("labels",)
