"""ProxyFL: its parts in a round, limits and edge cases; numbers: tests/contrib/methods/test_proxies.py."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.contrib.methods._proxies import Tuning, tuned_proxies
from fedjax_ssl.contrib.methods._whole_batches import whole_batches
from fedjax_ssl.contrib.methods.proxyfl import TUNING, head_of, with_projections
from fedjax_ssl.federated import Execution, Recipe, Step, build
from fedjax_ssl.keys import named_key
from fedjax_ssl.methods.parts.consistency import strong_view
from fedjax_ssl.methods.parts.guess import Guessing, guesses_of
from fedjax_ssl.methods.parts.terms import UNLABELLED, augmented_view, supervised_term
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


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Two rounds in which nothing is confident, with the clients' models."""
    run = toy.setup(DATA, augment=toy.jitter)
    settings = {"threshold": 1.0, "tuning_epochs": 3}
    method = methods.build("proxyfl", run, **settings)
    start = jax.jit(method.init)(KEY, DATA)
    one_round = jax.jit(lambda state: method.round(KEY, state, DATA, Execution(keep_models=True)))
    state, info = one_round(start)
    return {"run": run, "start": start, "state": state, "info": info, "later": one_round(state)[0]}


def test_the_prior_follows_the_classes_of_the_last_epoch(trained: dict[str, Any]) -> None:
    """Each step sees every label once; none of the other examples is confident."""
    counts = np.zeros(3)
    for rows, labelled, size in zip(DATA.index, DATA.num_labelled, DATA.num_examples, strict=True):
        own = np.asarray(DATA.labels)[np.asarray(rows)[: int(labelled)]]
        counts += (int(size) // 4) * np.bincount(own, minlength=3)
    expected = 0.99 / 3 + 0.01 * counts / counts.sum()
    prior = trained["state"].terms["candidates"]
    np.testing.assert_allclose(prior, expected, rtol=1e-6)
    assert max(expected) - min(expected) > 1e-4


def test_the_head_is_tuned_by_the_heads_of_the_clients(trained: dict[str, Any]) -> None:
    kept = trained["info"]["client_models"]
    heads = kept["params"]["head"]["kernel"]
    weights = np.asarray(DATA.num_labelled + DATA.num_examples) * np.asarray(kept["trained"])
    shares = np.float32(weights / weights.sum())
    averaged = jnp.tensordot(shares, heads, 1)
    round_key = jax.random.fold_in(named_key(KEY, "round"), 0)
    tuned = jax.jit(tuned_proxies, static_argnums=5)(
        named_key(round_key, TUNING), averaged, heads, kept["trained"], kept["client"], Tuning(3)
    )
    after = trained["state"].params["model"]
    np.testing.assert_allclose(after["head"]["kernel"], tuned, rtol=1e-4, atol=1e-6)
    assert float(jnp.max(jnp.abs(tuned - averaged))) > 1e-3
    bias = jnp.tensordot(shares, kept["params"]["head"]["bias"], 1)
    np.testing.assert_allclose(after["head"]["bias"], bias, rtol=1e-5, atol=1e-6)


def test_projections_learn_and_predict_nothing(trained: dict[str, Any]) -> None:
    before, after = (trained[name].params["model"] for name in ("start", "later"))
    for old, new in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        assert np.any(np.asarray(old) != np.asarray(new))
    method = methods.build("proxyfl", trained["run"])
    without = {**after, "projections": jax.tree.map(jnp.zeros_like, after["projections"])}
    changed = trained["later"]._replace(params={"model": without})
    inputs = DATA.inputs[:5]
    np.testing.assert_array_equal(
        method.predict(changed, inputs), method.predict(trained["later"], inputs)
    )


def round_of(**settings: Any) -> Any:
    run = toy.setup(DATA, augment=toy.jitter, local_epochs=3)
    method = methods.build("proxyfl", run, threshold=0.5, tuning_epochs=0, **settings)
    return jax.jit(method.round)(KEY, method.init(KEY, DATA), DATA)[0]


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
    expected = jax.jit(plain.round)(KEY, plain.init(KEY, DATA), DATA)[0]
    found = round_of(contrast_weight=0.0)
    chex.assert_trees_all_close(found.params, expected.params, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_without_its_parts_and_without_a_confident_row_it_is_federated_averaging() -> None:
    """Check 5: no contrast, no epoch of tuning, a threshold that is never reached."""
    run = toy.setup(DATA, augment=toy.jitter, local_epochs=3)
    settings = {"threshold": 1.0, "contrast_weight": 0.0, "tuning_epochs": 0}
    results = []
    terms = (supervised_term(run),)
    for method in (
        methods.build("proxyfl", run, **settings),
        build(Recipe(run, (whole_batches(run, terms, 2, 1.0),))),
    ):
        results.append(jax.jit(method.round)(KEY, method.init(KEY, DATA), DATA)[0].params)
    chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-6)


def test_what_cannot_be_is_said() -> None:
    run = toy.setup(DATA)
    with pytest.raises(ValueError, match="one class alone"):
        methods.build("proxyfl", toy.setup(DATA, model=one_class())._replace(num_classes=1))
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


@pytest.mark.thorough
def test_a_head_of_columns_trains_as_one_of_rows() -> None:
    run = toy.setup(DATA, augment=toy.jitter)
    found = []
    for one in (run, by_columns(run)):
        method = methods.build("proxyfl", one, threshold=0.5, tuning_epochs=2)
        state, _ = jax.jit(method.round)(KEY, method.init(KEY, DATA), DATA)
        model = state.params["model"]
        head = {**model["head"], "kernel": head_of(one).rows(model)}
        found.append({**model, "head": head})
    chex.assert_trees_all_close(*found, rtol=1e-4, atol=1e-6)


def one_class() -> Any:
    return models.build("mlp", num_classes=1, input_shape=DATA.inputs.shape[1:], hidden=(4,))


def test_what_teaches_little_is_said() -> None:
    seen = toy.changed(DATA, observed=np.where(np.asarray(DATA.observed) == 2, -1, DATA.observed))
    method = methods.build("proxyfl", toy.setup(DATA, cohort_size=1))
    assert [line[:21] for line in method.recipe.check(seen)] == [
        "a round has one clien",
        "no client has a label",
    ]
    assert not methods.build("proxyfl", toy.setup(DATA)).recipe.check(DATA)
