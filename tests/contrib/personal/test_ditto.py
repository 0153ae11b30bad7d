"""Ditto and APFL: models of clients' own beside the common one."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_ssl import federated, methods, models
from fedjax_ssl.contrib.personal.ditto import apfl, ditto
from fedjax_ssl.federated import Recipe, Stage, Term, Training, build, local
from tests import toy

KEY = jax.random.key(5)


def on_a_line(start: float, minimum: float, steps: int, **changes) -> Recipe:
    """A recipe of one number w whose loss is (w - minimum)^2 / 2, `steps` steps at rate 0.1."""
    data = toy.federation()

    def apply(params, state, inputs, *, train, key=None, mask=None):
        scores = jnp.zeros((inputs.shape[0], toy.NUM_CLASSES)) + params["w"]
        return models.Outputs(scores, inputs, None), state

    network = models.Model(lambda key: ({"w": jnp.full((1,), start)}, {}), apply)
    setup = toy.setup(data, model=network, **changes)
    term = Term("line", (), lambda step: 0.5 * jnp.sum((step.params["w"] - minimum) ** 2))
    stage = Stage(Training((term,), toy.in_order("labelled", 4, steps)), labelled_quota="any")
    return Recipe(setup, (stage,), name="line")


def own_model(method, state, client: int = 0) -> float:
    return float(method.network(state, client)[0]["w"][0])


def after_one_round(method, start: float, name: str):
    """The state after a round of clients whose own models start elsewhere."""

    @jax.jit
    def one_round(data):
        state = method.init(KEY, data)
        kept = state.clients.terms[name]
        weights = jax.tree.map(lambda x: jnp.full_like(x, start), kept.model.weights)
        kept = kept._replace(model=kept.model._replace(weights=weights))
        clients = state.clients._replace(terms={**state.clients.terms, name: kept})
        return method.round(KEY, state._replace(clients=clients), data)[0]

    return one_round(toy.federation())


@pytest.mark.parametrize(
    "steps, expected",
    [
        pytest.param(1, 1.05, marks=pytest.mark.thorough),
        pytest.param(2, 1.0925, marks=pytest.mark.thorough),
        (3, 1.128625),
    ],
)
def test_dittos_pull_on_a_quadratic(float64, steps: int, expected: float) -> None:
    method = build(ditto(on_a_line(0.0, 2.0, steps), pull=0.5))
    end = after_one_round(method, 1.0, "ditto")
    np.testing.assert_allclose(own_model(method, end), expected, atol=1e-12)
    common = 2.0 - 2.0 * 0.9**steps  # which knows nothing of the others
    np.testing.assert_allclose(float(method.network(end)[0]["w"][0]), common, atol=1e-12)


def test_apfls_mixture_on_a_quadratic(float64) -> None:
    """Two steps by hand: v takes a times the step of the mixture, a moves in the first one."""
    method = build(apfl(on_a_line(0.0, 2.0, 2), mix=0.25, adaptive=True))
    end = after_one_round(method, 1.0, "apfl")
    v, w, share = 1.0, 0.0, 0.25
    for number in range(2):
        slope = share * v + (1 - share) * w - 2.0
        moved = share * slope
        better = share - 0.1 * (v - w) * slope
        v, w = v - 0.1 * moved, w - 0.1 * (w - 2.0)
        share = min(max(better, 0.0), 1.0) if number == 0 else share
    kept = end.clients.terms["apfl"].model
    np.testing.assert_allclose(kept.mix, share, atol=1e-12)
    np.testing.assert_allclose(own_model(method, end), share * v + (1 - share) * w, atol=1e-12)


def recipe_of(data, **changes) -> Recipe:
    return methods.recipe("fedavg", toy.setup(data, **changes))


@pytest.mark.thorough
@pytest.mark.parametrize("wrapped", [partial(ditto, pull=0.0), partial(apfl, mix=1.0)])
def test_an_own_model_that_knows_no_other_is_that_of_a_client_alone(wrapped) -> None:
    """It has its own momentum, and FedProx holds the common one alone."""
    data = toy.federation()
    changes = {"local_optimizer": federated.local_optimizer("sgd", momentum=0.9)}
    fedprox = federated.fedprox(0.3)
    held = build(wrapped(recipe_of(data, **changes, federated_optimizer=fedprox)))
    alone = build(recipe_of(data, **changes, federated_optimizer=local()))
    (end, _), (other, _) = (toy.train(method, KEY, data, 1) for method in (held, alone))
    for client in (0, 4, 5):
        chex.assert_trees_all_close(
            held.network(end, client), alone.network(other, client), atol=1e-6
        )
    stranger = held.network(end, 2)  # has no labels
    chex.assert_trees_all_equal(stranger, held.network(end))


def test_methods_that_they_are_not_for_are_refused() -> None:
    data = toy.weak_federation("coarse")
    two_heads = toy.setup(data, model_options={"aux_head": True})
    with pytest.raises(ValueError, match="has the parameter groups aux_head, head, body"):
        ditto(methods.recipe("fedrep", two_heads))
    with pytest.raises(ValueError, match="pull is -1"):
        ditto(recipe_of(toy.federation()), pull=-1.0)
    with pytest.raises(ValueError, match="mix is 2"):
        apfl(recipe_of(toy.federation()), mix=2.0)
