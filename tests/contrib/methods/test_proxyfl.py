"""ProxyFL: its parts in a round, limits and edge cases; numbers: tests/contrib/methods/test_proxies.py."""

from typing import Any

import chex
import jax
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.contrib.methods._whole_batches import whole_batches
from fedjax_ssl.contrib.methods.proxyfl import head_of, with_projections
from fedjax_ssl.errors import ConfigError
from fedjax_ssl.federated import Recipe, Step, build
from fedjax_ssl.methods.parts.guess import Guessing, guesses_of
from fedjax_ssl.methods.parts.terms import UNLABELLED, augmented_view, supervised_term
from fedjax_ssl.methods.parts.views_and_teachers import strong_view
from fedjax_ssl.models.model import count_parameters
from fedjax_ssl.objectives import batch_mean, cross_entropy
from tests import toy

KEY = jax.random.key(3)
DATA = toy.federation(labelled=(4, 4, 0, 1, 4, 4))  # in a batch of four, each label once


@pytest.mark.parametrize(("classes", "parameters"), [(10, 1_358_922), (100, 1_382_052)])
def test_projections_are_parameters(classes: int, parameters: int) -> None:
    network = models.build("resnet8_basic", num_classes=classes, input_shape=(32, 32, 3))
    run = toy.setup(DATA, model=network)._replace(num_classes=classes)
    grown = with_projections(run)
    params, _ = jax.eval_shape(grown.model.init, KEY)
    assert count_parameters(params) == parameters
    assert with_projections(grown) is grown


@pytest.mark.thorough
def test_without_contrast_and_tuning_it_is_fixmatch_with_either_models_confidence() -> None:
    """Check 5."""
    run = toy.setup(DATA, augment=toy.jitter, local_epochs=3)
    weak = augmented_view(run, UNLABELLED)
    strong = strong_view(run)
    guesses = guesses_of(run, Guessing(labels_from="either"), 0.5)

    def loss(step: Step):
        guess = guesses(step, step.inputs[weak.name], step.outputs[weak.name].logits)
        learns = step.outputs[strong.name].logits
        losses = cross_entropy(learns, guess.labels)
        return batch_mean(losses, step.streams[UNLABELLED].mask, guess.counted), guess, learns

    terms = supervised_term(run), guesses.term("pseudo-labels", (weak, strong), loss)
    plain = build(Recipe(run, (whole_batches(run, terms, 2, 1.0),)))
    settings = {"threshold": 0.5, "tuning_epochs": 0, "contrast_weight": 0.0}
    ends = [
        toy.train(method, KEY, DATA, 1)[0].params
        for method in (methods.build("proxyfl", run, **settings), plain)
    ]
    chex.assert_trees_all_close(*ends, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_said() -> None:
    run = toy.setup(DATA)
    method = methods.build("proxyfl", run, train="dense1")
    start = jax.eval_shape(method.init, KEY, DATA)
    with pytest.raises(ConfigError, match=r"model\.train leaves out the layer head"):
        jax.eval_shape(method.round, KEY, start, DATA)
    one_class = models.build("mlp", num_classes=1, input_shape=(toy.NUM_FEATURES,), hidden=(4,))
    with pytest.raises(ValueError, match="one class alone"):
        methods.build("proxyfl", toy.setup(DATA, model=one_class)._replace(num_classes=1))
    with pytest.raises(ValueError, match="head/kernel with a row or a column for each of 3"):
        methods.build("proxyfl", toy.setup(DATA, model=toy.linear_model()))
    alone = run._replace(federated_optimizer=federated.local())
    with pytest.raises(ValueError, match="clients that train alone"):
        methods.build("proxyfl", alone)


def by_columns(run: Any, hidden: int = 8) -> Any:
    """The network with its head's weight stored as [d, K]."""
    shape = DATA.inputs.shape[1:]
    model = models.build("mlp", num_classes=3, input_shape=shape, hidden=(hidden,))

    def turned(params: Any) -> Any:
        head = params["head"]
        return {**params, "head": {**head, "kernel": head["kernel"].T}}

    def init(key: Any) -> Any:
        params, state = model.init(key)
        return turned(params), state

    def apply(params: Any, *given: Any, **how: Any) -> Any:
        return model.apply(turned(params), *given, **how)

    return run._replace(model=model._replace(init=init, apply=apply))


def test_a_head_of_columns_has_their_rows() -> None:
    run = toy.setup(DATA)
    params, _ = jax.eval_shape(by_columns(run).model.init, KEY)
    params = jax.tree.map(lambda leaf: np.arange(leaf.size).reshape(leaf.shape), params)
    head = head_of(by_columns(run))
    rows = head.rows(params)
    assert params["head"]["kernel"].shape == (8, 3) and rows.shape == (3, 8)
    np.testing.assert_array_equal(head.with_rows(params, 2 * rows)["head"]["kernel"], 2 * rows.T)


@pytest.mark.thorough
def test_a_head_of_columns_whose_shape_does_not_tell_is_refused() -> None:
    """It has as many features as classes."""
    run = toy.setup(DATA)
    square = methods.build("proxyfl", by_columns(run, hidden=3))
    with pytest.raises(ValueError, match=r"3 classes and as many features.* store it as \[classes"):
        square.recipe.check(DATA)
    three = models.build("mlp", num_classes=3, input_shape=DATA.inputs.shape[1:], hidden=(3,))
    rows_of_three = methods.build("proxyfl", toy.setup(DATA, model=three))
    assert not rows_of_three.recipe.check(DATA)


def test_what_teaches_little_is_said() -> None:
    seen = toy.changed(DATA, observed=np.where(np.asarray(DATA.observed) == 2, -1, DATA.observed))
    method = methods.build("proxyfl", toy.setup(DATA, cohort_size=1))
    assert [line[:21] for line in method.recipe.check(seen)] == [
        "a round has one clien",
        "no client has a label",
    ]
    assert not methods.build("proxyfl", toy.setup(DATA)).recipe.check(DATA)
